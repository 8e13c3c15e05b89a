"""Partitions rows by a stable hash of a column, in stored order within each partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.exchange.operation import Divided, MapTask, cuts_of, order_by_partition
from windrow.pipeline.exchange.parent import Parent
from windrow.pipeline.tasks.key_columns import check_column
from windrow.shuffle.order.value_hash import check_hashable, hash_values

__all__ = ["HashOperation", "plan_hash"]


@dataclass(frozen=True)
class HashOperation:
    """All rows with one value of a column share a partition."""

    column: str
    partitions: int
    columns = None
    sampled_columns = ()
    counts_rows = False

    def with_samples(self, samples: pa.Table, weights: NDArray[np.float64]) -> HashOperation:
        return self

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        hashes = hash_values(table.column(self.column))
        numbers = (hashes % np.uint64(self.partitions)).astype(np.int64)
        order = order_by_partition(numbers, self.partitions)
        return Divided(table.take(pa.array(order)), cuts_of(numbers, self.partitions))

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        return table


def plan_hash(column: str, partitions: int) -> Callable[[Parent], HashOperation]:
    """Return the function that makes the operation, and checks its column then."""
    return partial(_make_hash, column, partitions)


def _make_hash(column: str, partitions: int, parent: Parent) -> HashOperation:
    call = f"repartition(by={column!r})"
    check_hashable(check_column(parent.schema, column, call), column, call)
    return HashOperation(column, partitions)

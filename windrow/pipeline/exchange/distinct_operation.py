"""Distinct rows: partitions by a hash of the compared columns, and of equal rows the first one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.chosen_rows import take_rows
from windrow.pipeline.exchange.operations import Divided, MapTask, divide_by_number
from windrow.pipeline.tasks.key_columns import find_group_starts, plain_columns, sort_rows
from windrow.shuffle.order.value_hash import hash_rows


@dataclass(frozen=True)
class DistinctOperation:
    """The first of all rows that are equal in some columns; null equals null, and NaN equals NaN.

    A task leaves out the repetitions among its own rows before it spills them.
    """

    compared: tuple[str, ...]
    partitions: int
    columns = None
    sampled_columns = ()
    counts_rows = False

    def with_samples(self, samples: pa.Table, weights: NDArray[np.float64]) -> DistinctOperation:
        return self

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        first = self.merge(table, 0)
        hashes = hash_rows([first.column(name) for name in self.compared])
        numbers = (hashes % np.uint64(self.partitions)).astype(np.int64)
        return divide_by_number(first, numbers, self.partitions)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        keys = plain_columns(table, self.compared)
        # the sort is stable, so a group of equal rows begins with the first of them
        order = sort_rows(keys, (False,) * keys.num_columns)
        starts = find_group_starts(take_rows(keys, order))
        return table if len(starts) == table.num_rows else take_rows(table, np.sort(order[starts]))

"""Puts all rows into the order of a keyed permutation: a partition is a range of positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.exchange.operation import Divided, MapTask, cuts_of, order_by_partition
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation

__all__ = ["ShuffleOperation"]


@dataclass(frozen=True)
class ShuffleOperation:
    """A full shuffle: row x of ``rows`` gets the position that the permutation of ``seed`` gives it."""

    seed: int
    rows: int
    partitions: int
    columns = None
    sampled_columns = ()
    counts_rows = True

    def with_samples(self, samples: pa.Table, weights: NDArray[np.float64]) -> ShuffleOperation:
        return self

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        permutation = Permutation(derive_key(self.seed, "random_shuffle", 0, 0), self.rows)
        positions = permutation.positions(task.first_row, task.first_row + table.num_rows)
        # the partition p whose borders p * rows // partitions enclose the position
        numbers = ((positions + 1) * self.partitions - 1) // max(1, self.rows)
        order = order_by_partition(numbers, self.partitions)
        # the last column; it is dropped by its place, so any name will do
        placed = table.append_column("position", pa.array(positions))
        return Divided(placed.take(pa.array(order)), cuts_of(numbers, self.partitions))

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        positions = table.column(table.num_columns - 1).to_numpy()
        order = np.empty(table.num_rows, np.int64)
        order[positions - partition * self.rows // self.partitions] = np.arange(table.num_rows)
        return table.select(list(range(table.num_columns - 1))).take(pa.array(order))

"""Sorts rows by keys: range partitions, each sorted on its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.exchange.key_ranges import KeyRanges, find_ranges
from windrow.pipeline.exchange.operation import Divided, MapTask
from windrow.pipeline.tasks.key_columns import plain_columns, sort_rows

__all__ = ["SortOperation"]


@dataclass(frozen=True, eq=False)
class SortOperation:
    """A stable sort; with ``keeps_groups``, rows with equal keys share a partition."""

    keys: tuple[str, ...]
    descending: tuple[bool, ...]
    partitions: int
    keeps_groups: bool = False
    ranges: KeyRanges | None = None
    columns = None
    counts_rows = False

    @property
    def sampled_columns(self) -> tuple[str, ...]:
        return self.keys if self.partitions > 1 else ()

    def with_samples(self, samples: pa.Table, weights: NDArray[np.float64]) -> SortOperation:
        keys = plain_columns(samples, self.keys)
        return replace(self, ranges=find_ranges(keys, weights, self.descending, self.partitions))

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        keys = plain_columns(table, self.keys)
        if self.ranges is None or not self.ranges.boundaries.num_rows:
            # partitions without boundaries stay empty
            cuts = np.full(self.partitions + 1, table.num_rows, np.int64)
            cuts[0] = 0
            return Divided(table, cuts)
        order, cuts = self.ranges.divide(keys, task.number, task.tasks, divides_equal=not self.keeps_groups)
        return Divided(table.take(pa.array(order)), cuts)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        order = sort_rows(plain_columns(table, self.keys), self.descending)
        return table.take(pa.array(order))

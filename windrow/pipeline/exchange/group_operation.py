"""Aggregates groups of rows: partial results of each task, range partitions of the keys, and their combination."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.exchange.aggregates import Aggregate, combine_partials, make_partials
from windrow.pipeline.exchange.key_ranges import KeyRanges, find_ranges
from windrow.pipeline.exchange.operation import Divided, MapTask
from windrow.pipeline.tasks.key_columns import find_group_starts, plain_columns, sort_rows

__all__ = ["GroupOperation"]


@dataclass(frozen=True, eq=False)
class GroupOperation:
    """The groups in ascending order of their keys, nulls last; without keys, all rows are one group."""

    keys: tuple[str, ...]
    aggregates: tuple[Aggregate, ...]
    partitions: int
    ranges: KeyRanges | None = None
    counts_rows = False

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The keys and what is aggregated; None where only rows are counted, which needs a column."""
        on = [aggregate.on for aggregate in self.aggregates if aggregate.on is not None]
        return tuple(dict.fromkeys([*self.keys, *on])) or None

    @property
    def sampled_columns(self) -> tuple[str, ...]:
        return self.keys if self.partitions > 1 else ()

    def with_samples(self, samples: pa.Table, weights: NDArray[np.float64]) -> GroupOperation:
        keys = plain_columns(samples, self.keys)
        return replace(self, ranges=find_ranges(keys, weights, self._ascending, self.partitions))

    def divide(self, table: pa.Table, task: MapTask) -> Divided:
        decoded = plain_columns(table, self.keys)
        for place, name in enumerate(self.keys):
            table = table.set_column(table.schema.get_field_index(name), name, decoded.column(place))
        partials = make_partials(table, self.keys, self.aggregates)
        cuts = np.full(self.partitions + 1, partials.num_rows, np.int64)
        cuts[0] = 0
        if self.ranges is None or not self.ranges.boundaries.num_rows:
            return Divided(partials, cuts)
        order, cuts = self.ranges.divide(
            plain_columns(partials, self.keys), task.number, task.tasks, divides_equal=False
        )
        return Divided(partials.take(pa.array(order)), cuts)

    def merge(self, table: pa.Table, partition: int) -> pa.Table:
        if self.keys:
            order = sort_rows(plain_columns(table, self.keys), self._ascending)
            table = table.take(pa.array(order)).combine_chunks()
            starts = find_group_starts(plain_columns(table, self.keys))
        else:
            if not table.num_rows:
                # no rows are a group too
                table = pa.table([pa.nulls(1, kind) for kind in table.schema.types], schema=table.schema)
            starts = np.zeros(1, np.int64)
        found = table.select(list(range(len(self.keys)))).take(pa.array(starts))
        results = combine_partials(table, starts, self.aggregates, len(self.keys))
        names = [*self.keys, *(aggregate.name for aggregate in self.aggregates)]
        return pa.table([*found.columns, *results], names=names)

    @property
    def _ascending(self) -> tuple[bool, ...]:
        return (False,) * len(self.keys)

"""Range partitioning: boundaries between partitions from samples of the keys, and the rows between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.tasks.key_columns import find_group_starts, sort_rows

__all__ = ["KeyRanges", "find_ranges"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class KeyRanges:
    """The boundaries between partitions: a row belongs to the first partition whose boundary is not before it."""

    # (partitions - 1) rows, sorted; of equal ones, all but the first are there to divide equal rows
    boundaries: pa.Table
    descending: tuple[bool, ...]

    def divide(self, keys: pa.Table, task: int, tasks: int, *, divides_equal: bool) -> tuple[Ints, Ints]:
        """Return the order of the rows by key and the cuts between partitions, given the task of the rows.

        With ``divides_equal``, the rows that equal several boundaries are divided between their partitions
        by task. The order stays stable, since earlier tasks have earlier partitions.
        """
        rows, count = keys.num_rows, self.boundaries.num_rows
        if not count:
            return sort_rows(keys, self.descending), np.array([0, rows])
        # a stable sort puts the first copies of the boundaries before equal rows, and the last ones behind
        copies = pa.concat_tables([self.boundaries, keys, self.boundaries]).combine_chunks()
        found = sort_rows(copies, self.descending)
        is_row = (found >= count) & (found < count + rows)
        rows_before = np.cumsum(is_row)
        before = rows_before[np.flatnonzero(found < count)]
        behind = rows_before[np.flatnonzero(found >= count + rows)]
        cuts = np.where(self._holds(task, tasks), behind, before) if divides_equal else behind
        return found[is_row] - count, np.concatenate([[0], cuts, [rows]])

    def _holds(self, task: int, tasks: int) -> NDArray[np.bool_]:
        """(boundaries,) whether the rows of a task that equal a boundary are before it."""
        starts = find_group_starts(self.boundaries)
        lengths = np.diff(np.append(starts, self.boundaries.num_rows))
        within = np.arange(self.boundaries.num_rows) - np.repeat(starts, lengths)
        return within >= task * np.repeat(lengths, lengths) // tasks


def find_ranges(
    samples: pa.Table, weights: NDArray[np.float64], descending: Sequence[bool], partitions: int
) -> KeyRanges:
    """Choose boundaries so that partitions have about equally many rows; each sample stands for some rows."""
    if samples.num_rows == 0 or partitions == 1:
        return KeyRanges(samples.slice(0, 0), tuple(descending))
    order = sort_rows(samples, descending)
    reached = np.cumsum(weights[order])
    wanted = np.arange(1, partitions) * reached[-1] / partitions
    chosen = order[np.minimum(np.searchsorted(reached, wanted), len(order) - 1)]
    return KeyRanges(samples.take(pa.array(chosen)).combine_chunks(), tuple(descending))

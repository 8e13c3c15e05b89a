"""Lays out the runs of a window: consecutive rows of one shard's stream that are placed together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["Run", "WindowRuns"]


@dataclass(frozen=True)
class Run:
    """One run, as seen by the shard that places it."""

    slice: int  # of the map outputs that hold the run
    index: int  # its number within the slice
    place: int  # of its first row in the shard's stream
    rows: int
    skip: int = 0  # how many of its first rows are not needed


@dataclass(frozen=True)
class WindowRuns:
    """The runs of one window for the shards of one destination.

    Runs start at multiples of ``run_rows`` in a shard's stream and hold whole batches, so only the first and
    the last run of a window can be short. Run ids are assigned slice by slice, then shard by shard, so that a
    slice is a range of ids.
    """

    assignment: ShardAssignment
    first_row: int  # this and stop_row: the window's range of rows in the epoch's order
    stop_row: int
    total: int | None  # rows of the epoch; None while unknown, then every row here belongs to a full step
    shards: tuple[int, ...]  # those of this destination
    run_rows: int  # rows of a full run: a multiple of the batch size
    slices: int  # number of slices that the runs are divided into

    def __reduce__(self) -> tuple[Any, ...]:
        # recomputing the cached arrays is cheaper than sending them; a task carries one layout per node, so
        # the fields are named here instead of looked up
        rows = self.assignment, self.first_row, self.stop_row, self.total
        return WindowRuns, (*rows, self.shards, self.run_rows, self.slices)

    @cached_property
    def _borders(self) -> NDArray[np.int64]:
        """(shards, 2) first and stop place of each shard's stream in this window."""
        rows = [
            [self.assignment.rows_before(row, shard, self.total) for row in (self.first_row, self.stop_row)]
            for shard in self.shards
        ]
        return np.array(rows, dtype=np.int64).reshape(-1, 2)

    @cached_property
    def _run_counts(self) -> NDArray[np.int64]:
        first, stop = self._borders.T
        return np.where(stop > first, -(-stop // self.run_rows) - first // self.run_rows, 0)

    @cached_property
    def ids(self) -> NDArray[Any]:
        """Ids of all runs, shard by shard; in 16 bits where they fit, since those sort fastest."""
        shard = np.repeat(np.arange(len(self.shards)), self._run_counts)
        local = np.concatenate([np.arange(count) for count in self._run_counts] or [np.zeros(0)])
        slice_of_run = local.astype(np.int64) * self.slices // np.maximum(self._run_counts[shard], 1)
        ids = np.empty(len(shard), dtype=np.uint16 if len(shard) < 2**15 else np.uint32)
        ids[np.lexsort((local, shard, slice_of_run))] = np.arange(len(shard))
        return ids

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        return np.cumsum(self._run_counts) - self._run_counts

    @cached_property
    def streams(self) -> NDArray[np.int64]:
        """(shards, 3) numbers that map each shard's stream to ``ids``, the table of `native.assign`."""
        first_runs, skipped = np.divmod(self._borders[:, 0], self.run_rows)
        return np.stack([self._offsets - first_runs, first_runs, skipped], axis=1)

    @property
    def padding_ids(self) -> NDArray[np.int64]:
        """The run id of each repeated row of ``padding``; these are the last ids."""
        return int(self.slice_starts[-1]) - self._padding_runs + self._padding_groups

    @property
    def padding_places(self) -> NDArray[np.int64]:
        """The place of each repeated row of ``padding`` within its run."""
        places, firsts = self.padding[2], self._padding_firsts
        return places - places[firsts][self._padding_groups]

    @cached_property
    def slice_starts(self) -> NDArray[np.int64]:
        """(slices + 1,) the first run id of each slice; repeated rows have runs of their own in the last slice."""
        counts = np.zeros(self.slices, dtype=np.int64)
        for runs in self._run_counts:
            counts += np.bincount(np.arange(runs) * self.slices // max(runs, 1), minlength=self.slices)
        counts[-1] += self._padding_runs
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @cached_property
    def padding(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """(rows, shards, places) of the repeated rows in this window for these shards."""
        if self.total is None:
            none = np.zeros(0, dtype=np.int64)
            return none, none, none
        rows, shards, places = self.assignment.padding(self.total)
        here = (rows >= self.first_row) & (rows < self.stop_row) & np.isin(shards, self.shards)
        return rows[here], shards[here], places[here]

    @cached_property
    def _padding_firsts(self) -> NDArray[np.intp]:
        """The first row of each run of repeated rows: those of one shard at consecutive places."""
        _, shards, places = self.padding
        return np.flatnonzero((np.diff(shards, prepend=-1) != 0) | (np.diff(places, prepend=-2) != 1))

    @cached_property
    def _padding_groups(self) -> NDArray[np.int64]:
        """For each repeated row, the number of its run among those of repeated rows."""
        sizes = np.diff(self._padding_firsts, append=len(self.padding[0]))
        return np.repeat(np.arange(len(sizes)), sizes)

    @property
    def _padding_runs(self) -> int:
        return len(self._padding_firsts)

    def runs_from(self, row: int, shard: int) -> list[Run]:
        """The runs of a shard that hold rows of the epoch from ``row``, a step's first row, on."""
        begin = self.assignment.rows_before(row, shard, self.total)
        runs = [run for run in self.runs(shard) if run.place + run.rows > begin]
        return [replace(run, skip=max(0, begin - run.place)) for run in runs[:1]] + runs[1:]

    def runs(self, shard: int) -> list[Run]:
        """The runs of a shard in this window, in stream order."""
        at = self.shards.index(shard)
        first, stop = (int(place) for place in self._borders[at])
        ids = self.ids[self._offsets[at] : self._offsets[at] + self._run_counts[at]]
        borders = [(first // self.run_rows + i) * self.run_rows for i in range(1, len(ids))]
        starts, stops = [first, *borders], [*borders, stop]
        return [
            self._run(int(run_id), start, end - start)
            for run_id, start, end in zip(ids, starts, stops, strict=False)
        ]

    def padding_runs(self, shard: int) -> list[Run]:
        """The runs of a shard's repeated rows in this window."""
        _, shards, places = self.padding
        firsts = self._padding_firsts
        sizes = np.diff(firsts, append=len(shards))
        columns = (self.padding_ids[firsts], shards[firsts], places[firsts], sizes)
        padded = zip(*(column.tolist() for column in columns), strict=True)
        return [self._run(run_id, place, rows) for run_id, owner, place, rows in padded if owner == shard]

    def _run(self, run_id: int, place: int, rows: int) -> Run:
        slice_number = int(np.searchsorted(self.slice_starts, run_id, side="right")) - 1
        return Run(
            slice=slice_number, index=run_id - int(self.slice_starts[slice_number]), place=place, rows=rows
        )

"""Lays out the runs of a window (consecutive rows of one shard, placed together), and finds the run of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.shuffle.kernels import native, row_positions
from windrow.shuffle.kernels.native import RunIds
from windrow.shuffle.order.shard_assignment import ShardAssignment

_MAX_UINT32 = 2**32 - 1
# added to any run number, the result is an invalid index
_NO_RUN = -(2**40)


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

    def pieces_from(self, row: int, shard: int) -> None:
        """None: batches are even, so the parts of steps need not be told, as `StepRuns` does."""

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


class RunNumbers:
    """Numbers the runs of a window consecutively over all destinations, given where the slices of each begin.

    ``slice_starts`` has the first run id of each slice of each, then the end of the last slice.
    """

    def __init__(self, slice_starts: Sequence[NDArray[np.int64]]) -> None:
        # by destination, the id of its first run; the last one is behind all runs, for rows that are dropped
        self._ends = np.cumsum([0, *(int(starts[-1]) for starts in slice_starts)]).tolist()
        self._word: Any = np.uint16 if self._ends[-1] < 2**16 else np.uint32
        numbered = (starts[1:] + end for starts, end in zip(slice_starts, self._ends, strict=False))
        self.slice_starts: NDArray[np.int64] = np.concatenate([[0], *numbered])


def find_repeated(
    rows: NDArray[np.int64], repeated: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The index in ``rows`` of each repeated row that is among them, and (repeated,) whether it is."""
    (held,) = np.nonzero(np.isin(rows, repeated)) if len(repeated) else (repeated,)
    if not len(held):
        return held, np.zeros(len(repeated), np.bool_)
    order = held[np.argsort(rows[held], kind="stable")]
    found = order[np.minimum(np.searchsorted(rows[order], repeated), len(order) - 1)]
    is_held: NDArray[np.bool_] = rows[found] == repeated
    return found[is_held], is_held


class Destinations(RunNumbers):
    """Finds the run of each row, over all destinations; ``layouts`` are the runs of one window for each of them.

    The time per call does not depend on the number of destinations; only the lookup tables, built once, do.
    """

    def __init__(self, layouts: Sequence[WindowRuns]) -> None:
        super().__init__([layout.slice_starts for layout in layouts])
        self._layouts = layouts

    def assign(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64] | None, RunIds, NDArray[np.uint32]]:
        """Find the run, and the place within it, of rows of this window given by their position in the epoch.

        Returns for each entry the source row (None: entry i is row i), the run id (past the last run: the row
        is dropped), and the place, its offset within the run. If rows are repeated as padding, there are more
        entries than rows.
        """
        find = self._find if native.LIBRARY is not None and self._fits_32_bits else self._find_numpy
        runs, places = find(rows)
        repeated, ids, pad_places = self._padding
        sources, is_held = find_repeated(rows, repeated)
        if not len(sources):
            return None, runs, places
        return (
            np.concatenate([np.arange(len(rows)), sources]),
            np.concatenate([runs, ids[is_held].astype(runs.dtype)]),
            np.concatenate([places, pad_places[is_held].astype(np.uint32)]),
        )

    @property
    def _fits_32_bits(self) -> bool:
        """Whether all positions up to the end of the window fit into 32 bits."""
        return self._layouts[0].stop_row <= _MAX_UINT32

    def _find(self, rows: NDArray[np.int64]) -> tuple[RunIds, NDArray[np.uint32]]:
        """Use the kernel, except for the rows of an incomplete last step, which have another assignment."""
        layout = self._layouts[0]
        assignment, total, stop = layout.assignment, layout.total, _MAX_UINT32
        if total is not None and not assignment.ends_regularly(total):
            stop = assignment.start_row + assignment.full_steps(total) * assignment.step_rows
        # clamping is safe: a divisor beyond 32 bits is larger than every row number here
        divisors = (
            min(assignment.step_rows, _MAX_UINT32),
            min(assignment.batch_rows, _MAX_UINT32),
            min(layout.run_rows, _MAX_UINT32),
        )
        ids, streams = self._tables
        row_numbers = np.ascontiguousarray(rows, np.int64)
        runs, places, rest = row_positions.assign(
            row_numbers, assignment.start_row, stop, divisors, streams, ids, self._ends[-1]
        )
        if len(rest):
            runs[rest], places[rest] = self._find_numpy(rows[rest])
        return runs, places

    @cached_property
    def _tables(self) -> tuple[RunIds, NDArray[np.int64]]:
        """The ids of all runs, and the ``shards`` table of `native.assign`, with one more row for no shard."""
        streams = np.zeros((self._layouts[0].assignment.shards + 1, 3), np.int64)
        streams[:, 0] = _NO_RUN
        ids, before = [], 0
        for layout, end in zip(self._layouts, self._ends, strict=False):
            streams[list(layout.shards)] = layout.streams
            streams[list(layout.shards), 0] += before
            ids.append(layout.ids.astype(self._word) + self._word(end))
            before += len(ids[-1])
        return np.concatenate(ids), streams

    def _find_numpy(self, rows: NDArray[np.int64]) -> tuple[RunIds, NDArray[np.uint32]]:
        """The NumPy twin of the kernel, which handles all rows."""
        layout = self._layouts[0]
        # divisions dominate, and cost half as much on 32 bits
        row_numbers: NDArray[Any] = rows.astype(np.uint32) if self._fits_32_bits else rows
        shards, places = layout.assignment.assign_rows(row_numbers, layout.total)
        run_rows = row_numbers.dtype.type(min(layout.run_rows, int(np.iinfo(row_numbers.dtype).max)))
        of_stream = places // run_rows
        within = places - of_stream * run_rows
        ids, streams = self._tables
        offsets, first_runs, skipped = streams.T
        own = 0 if shards is None else shards
        at = of_stream + offsets[own]
        runs: RunIds = np.full(len(rows), self._ends[-1], self._word)
        here = (at >= 0) & (at < len(ids))
        runs[here] = ids[at[here]]
        if skipped.any():
            within = within - np.where(of_stream == first_runs[own], skipped[own], 0)
        return runs, within.astype(np.uint32)

    @cached_property
    def _padding(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The positions of the rows that padding repeats, and the run ids and places of the copies."""
        ids = [layout.padding_ids + end for layout, end in zip(self._layouts, self._ends, strict=False)]
        rows = np.concatenate([layout.padding[0] for layout in self._layouts])
        places = np.concatenate([layout.padding_places for layout in self._layouts])
        return rows, np.concatenate(ids), places

"""Lays out the runs of a mixture's rounds, and finds the run of each row of a source's window, which spans several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.shuffle.kernels import native, row_positions
from windrow.shuffle.kernels.native import RunIds
from windrow.shuffle.order.permutation import Permutation
from windrow.shuffle.order.runs import RunNumbers, WindowRuns, find_repeated
from windrow.shuffle.order.share_sequence import ShareSequence
from windrow.shuffle.order.window_order import WindowOrder

Ints = NDArray[np.int64]
MAX_SLICES = 8
# of a row that no shard gets
_NOWHERE = -1
# added to any run number, the result is no run id
_NO_RUN = -(2**60)


def count_slices(first_round: int, stop_round: int, most: int) -> int:
    """The number of slices of a window that has rows in these rounds."""
    return min(most, stop_round - first_round)


def find_slice(number: int, first_round: int, stop_round: int, most: int) -> int:
    """The slice of such a window that holds the rows of a round."""
    return (number - first_round) * count_slices(first_round, stop_round, most) // (stop_round - first_round)


@dataclass(frozen=True)
class RoundRuns:
    """The runs of the rounds that a source's window has rows in, for the shards of one destination.

    Runs end with their round. Run ids are assigned round by round, as `WindowRuns` numbers those of one round. A
    slice of the window's map outputs holds the runs of one or more rounds.
    """

    round: WindowRuns  # any of them; its range of rows is not used
    round_rows: int
    first_round: int
    stop_round: int
    first_row: (
        int  # of the mixture's rows, those before are not delivered, and there are none from stop_row on
    )
    stop_row: int
    most_slices: int

    @property
    def slices(self) -> int:
        """The number of slices."""
        return count_slices(self.first_round, self.stop_round, self.most_slices)

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards of this destination."""
        return self.round.shards

    def layout(self, number: int) -> WindowRuns:
        """The runs of a round."""
        first, stop = number * self.round_rows, (number + 1) * self.round_rows
        return replace(self.round, first_row=max(first, self.first_row), stop_row=min(stop, self.stop_row))

    def slice_of(self, number: int) -> int:
        """The slice that holds the runs of a round."""
        return find_slice(number, self.first_round, self.stop_round, self.most_slices)

    def runs_of(self, number: int) -> tuple[int, int]:
        """The first run of a round within its slice, and the number of its runs."""
        at = number - self.first_round
        first = self.slice_starts[self.slice_of(number)]
        return int(self.starts[at] - first), int(self.starts[at + 1] - self.starts[at])

    @cached_property
    def borders(self) -> Ints:
        """(rounds + 1, shards) where each round begins in each shard's stream, and where the last one ends."""
        rows = np.arange(self.first_round, self.stop_round + 1, dtype=np.int64) * self.round_rows
        # np.clip() looks at the range of the type each time
        rows = np.minimum(np.maximum(rows, self.first_row), self.stop_row)
        assignment, total = self.round.assignment, self.round.total
        shards = np.array(self.shards, np.int64)
        steps, within = np.divmod(np.maximum(rows - assignment.start_row, 0), assignment.step_rows)
        own = np.minimum(
            np.maximum(within[:, None] - shards * assignment.batch_rows, 0), assignment.batch_rows
        )
        found: Ints = steps[:, None] * assignment.batch_rows + own
        if total is not None:
            for at in np.flatnonzero(steps >= assignment.full_steps(total)).tolist():
                found[at] = [assignment.rows_before(int(rows[at]), shard, total) for shard in self.shards]
        return found

    @cached_property
    def run_counts(self) -> Ints:
        """(rounds, shards) the runs of each shard in each round."""
        first, stop = self.borders[:-1], self.borders[1:]
        run_rows = self.round.run_rows
        found: Ints = np.where(stop > first, -(-stop // run_rows) - first // run_rows, 0)
        return found

    @cached_property
    def padded(self) -> list[tuple[int, WindowRuns]]:
        """The rounds in which rows are repeated as padding, by index, with their runs."""
        assignment, total = self.round.assignment, self.round.total
        if total is None or assignment.equal != "pad":
            return []
        rows = assignment.padding(total)[0]
        rounds = np.unique(rows // self.round_rows)
        here = rounds[(rounds >= self.first_round) & (rounds < self.stop_round)].tolist()
        return [(number - self.first_round, self.layout(number)) for number in here]

    @cached_property
    def starts(self) -> Ints:
        """(rounds + 1,) the first run id of each round, and the end of the last one's."""
        counts = self.run_counts.sum(axis=1)
        for at, layout in self.padded:
            counts[at] = layout.slice_starts[-1]
        return np.append(0, np.cumsum(counts))

    @cached_property
    def slice_starts(self) -> Ints:
        """(slices + 1,) the first run id of each slice, and the end of the last one's."""
        rounds = np.arange(self.first_round, self.stop_round)
        slices = (rounds - self.first_round) * self.slices // len(rounds)
        firsts = np.searchsorted(slices, np.arange(self.slices))
        return np.append(self.starts[firsts], self.starts[-1])


class RoundDestinations(RunNumbers):
    """Finds the run of each row of a source's window, over all destinations; stands for `Destinations`."""

    def __init__(self, layouts: Sequence[RoundRuns]) -> None:
        super().__init__([layout.slice_starts for layout in layouts])
        self._layouts = layouts

    def assign(self, rows: Ints) -> tuple[Ints | None, RunIds, NDArray[np.uint32]]:
        """As `Destinations.assign`; ``rows`` are the mixture's, `_NOWHERE` for those that it has delivered before."""
        find = self._find_numpy if native.LIBRARY is None or self._kernel_arguments is None else self._find
        return self._add_padding(rows, *find(rows))

    @property
    def _within(self) -> tuple[int, int]:
        """The mixture's rows that belong to these runs."""
        layout = self._layouts[0]
        first = max(layout.first_row, layout.first_round * layout.round_rows)
        return first, min(layout.stop_row, layout.stop_round * layout.round_rows)

    @cached_property
    def _kernel_arguments(self) -> tuple[Any, ...] | None:
        """What the kernel gets beside rows; None if they do not fit into its 32 bits."""
        layout, (first, stop) = self._layouts[0], self._within
        assignment, total, run_rows = layout.round.assignment, layout.round.total, layout.round.run_rows
        start, rest = assignment.start_row, stop
        if total is not None and not assignment.ends_regularly(total):
            rest = start + assignment.full_steps(total) * assignment.step_rows
        # runs hold whole batches, so every so many steps one begins in all shards
        stride = run_rows // assignment.batch_rows * assignment.step_rows
        strides = (first - start) // stride
        divisors = assignment.step_rows, assignment.batch_rows, run_rows
        if (
            stop - start - strides * stride > native.MAX_ROWS
            or max(*divisors, layout.round_rows) > native.MAX_ROWS
        ):
            return None
        runs_before = strides * stride // assignment.step_rows * assignment.batch_rows // run_rows
        tables = self._tables + np.array([runs_before, -runs_before, 0]) if runs_before else self._tables
        steps = start + strides * stride, rest
        rounds = layout.first_round * layout.round_rows, layout.round_rows
        return (first, stop), steps, divisors, rounds, tables, self._ends[-1], self._word

    def _find(self, rows: Ints) -> tuple[RunIds, NDArray[np.uint32]]:
        """Use the kernel, except for the rows of an incomplete last step, which have another assignment."""
        runs, places, rest = row_positions.assign_rounds(
            np.ascontiguousarray(rows, np.int64),
            *self._kernel_arguments,  # type: ignore[misc]
        )
        if len(rest):
            runs[rest], places[rest] = self._find_numpy(rows[rest])
        return runs, places

    def _find_numpy(self, rows: Ints) -> tuple[RunIds, NDArray[np.uint32]]:
        """The NumPy twin of the kernel, which handles all rows."""
        layout, (first, stop) = self._layouts[0], self._within
        outside = None
        known = rows
        if len(rows) and (rows.min() < first or rows.max() >= stop):
            outside = (rows < first) | (rows >= stop)
            known = np.where(outside, first, rows)
        if stop <= native.MAX_ROWS:
            # divisions dominate, and cost half as much on 32 bits
            known = known.astype(np.uint32)
        word = known.dtype.type
        shards, places = layout.round.assignment.assign_rows(known, layout.round.total)
        run_rows = word(min(layout.round.run_rows, int(np.iinfo(known.dtype).max)))
        of_stream = places // run_rows
        within = places - of_stream * run_rows
        bases, first_runs, skipped = np.moveaxis(self._tables, 2, 0)
        at = (known // word(layout.round_rows)).astype(np.int64)
        at -= layout.first_round
        if shards is not None:
            at *= bases.shape[1]
            at += shards
        else:
            bases, first_runs, skipped = bases[:, 0], first_runs[:, 0], skipped[:, 0]
        found = bases.ravel()[at]
        if skipped.any():
            within = within - np.where(of_stream == first_runs.ravel()[at], skipped.ravel()[at], 0)
        nowhere = found == _NO_RUN if self._has_gaps else None
        found += of_stream
        for dropped in (outside, nowhere):
            if dropped is not None:
                found[dropped] = self._ends[-1]
        return found.astype(self._word), within.astype(np.uint32)

    @cached_property
    def _has_gaps(self) -> bool:
        """Whether some rows go to no run of these layouts: those of other shards, and those that are left out."""
        total, assignment = self._layouts[0].round.total, self._layouts[0].round.assignment
        is_whole = total is None or assignment.ends_regularly(total)
        return not is_whole or bool((self._tables[:, :-1, 0] == _NO_RUN).any())

    @cached_property
    def _tables(self) -> Ints:
        """(rounds, shards + 1, 3): what added to a run of a stream gives its id; its first run; the places before."""
        layout = self._layouts[0]
        shape = layout.stop_round - layout.first_round, layout.round.assignment.shards + 1, 3
        tables = np.full(shape, _NO_RUN, np.int64)
        for each, end in zip(self._layouts, self._ends, strict=False):
            columns, counts = list(each.shards), each.run_counts
            firsts, skips = np.divmod(each.borders[:-1], each.round.run_rows)
            ids = (end + each.starts[:-1])[:, None] + np.cumsum(counts, axis=1) - counts - firsts
            tables[:, columns, 0] = np.where(counts > 0, ids, _NO_RUN)
            tables[:, columns, 1], tables[:, columns, 2] = firsts, skips
        return tables

    def _add_padding(
        self, rows: Ints, runs: RunIds, places: NDArray[np.uint32]
    ) -> tuple[Ints | None, RunIds, NDArray[np.uint32]]:
        sources, ids, copies = [], [], []
        for each, end in zip(self._layouts, self._ends, strict=False):
            for at, layout in each.padded:
                found, is_held = find_repeated(rows, layout.padding[0])
                sources.append(found)
                ids.append(layout.padding_ids[is_held] + end + int(each.starts[at]))
                copies.append(layout.padding_places[is_held])
        if not any(map(len, sources)):
            return None, runs, places
        return (
            np.concatenate([np.arange(len(rows)), *sources]),
            np.concatenate([runs, *ids]).astype(self._word),
            np.concatenate([places, *copies]).astype(np.uint32),
        )


class SourceStretch(NamedTuple):
    """Rows ``start`` to ``stop`` of a mixture, before which a source has ``before`` rows; its sequence of sources."""

    start: int
    stop: int
    before: int
    sequence: ShareSequence


def find_rows(stretches: Sequence[SourceStretch], source: int, numbers: Ints) -> Ints:
    """(rows,) the mixture's rows in which the rows of a source that have these numbers come; -1: in other stretches."""
    rows = np.full(len(numbers), _NOWHERE, np.int64)
    after = np.searchsorted([each.before for each in stretches], numbers, side="right") - 1
    for at, stretch in enumerate(stretches):
        # the source may have no share behind the stretch
        most = stretch.sequence.most(source, stretch.stop - stretch.start)
        here = (after == at) & (numbers < stretch.before + most)
        if here.any():
            found = stretch.start + stretch.sequence.places(source, numbers[here] - stretch.before)
            rows[here] = np.where(found < stretch.stop, found, _NOWHERE)
    return rows


@dataclass(frozen=True)
class ScatteredOrder(WindowOrder):
    """The order of a source's window in a mixture: ``first_row`` is its first row in the source's stream."""

    source: int
    stretches: tuple[SourceStretch, ...]

    @property
    def is_stored(self) -> bool:
        """False: rows of other sources come between them."""
        return False

    def epoch_rows(self, start: int, stop: int) -> Ints:
        """(stop - start,) the mixture's rows of stored rows [start, stop); -1 for those of other stretches."""
        if not self._is_within_one:
            return find_rows(self.stretches, self.source, super().epoch_rows(start, stop))
        numbers = (
            np.arange(start, stop, dtype=np.int64)
            if self.permutation is None
            else self.permutation.positions(start, stop)
        )
        (stretch,) = self.stretches
        rows = range(self.first_row, self.first_row + self.rows)
        stretch.sequence.scatter(self.source, numbers, rows, stretch.before, stretch.start)
        return numbers

    @cached_property
    def _is_within_one(self) -> bool:
        """Whether all rows come in a single stretch."""
        if len(self.stretches) != 1 or self.first_row < self.stretches[0].before:
            return False
        stretch = self.stretches[0]
        last = self.first_row + self.rows - 1 - stretch.before
        if last < stretch.sequence.least(self.source, stretch.stop - stretch.start):
            return True
        if last >= stretch.sequence.most(self.source, stretch.stop - stretch.start):
            return False
        (place,) = stretch.sequence.places(self.source, np.array([last], np.int64)).tolist()
        return bool(stretch.start + place < stretch.stop)

    def stored_rows(self, epoch_rows: Ints) -> Ints:
        """(rows,) the stored row numbers of some of the mixture's rows, all of this window."""
        numbers = np.zeros(len(epoch_rows), np.int64)
        after = np.searchsorted([each.start for each in self.stretches], epoch_rows, side="right") - 1
        for at, stretch in enumerate(self.stretches):
            for row in np.flatnonzero(after == at).tolist():
                found = stretch.sequence.count(self.source, int(epoch_rows[row]) - stretch.start)
                numbers[row] = stretch.before + found
        return super().stored_rows(numbers)


def scatter_window(
    key: bytes | None, rows: int, first_row: int, source: int, stretches: Sequence[SourceStretch]
) -> ScatteredOrder:
    """The order of a source's window of ``rows`` rows in a mixture; ``key`` is that of its rows, None: stored order."""
    permutation = None if key is None else Permutation(key, rows)
    return ScatteredOrder(rows, first_row, permutation, source, tuple(stretches))

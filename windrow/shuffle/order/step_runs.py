"""Lays out the runs of a window whose steps are divided by cost, and finds the run of each row.

The rows of a window are numbered run by run. So a map task gets the number of each of its rows, and finds a row's run
among the numbers at which runs begin.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.errors import StateError
from windrow.shuffle.kernels import native, step_bins
from windrow.shuffle.kernels.native import RunIds
from windrow.shuffle.kernels.pieces import piece_rows
from windrow.shuffle.order.divided_rounds import KeyedDestinations, KeyedRounds
from windrow.shuffle.order.round_runs import RoundDestinations, RoundRuns
from windrow.shuffle.order.runs import Destinations, Run, RunNumbers, WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_balance import number_rows
from windrow.shuffle.order.step_rows import StepRows, WindowCuts
from windrow.shuffle.order.step_sequences import number_sequences

Ints = NDArray[np.int64]


class Pieces(NamedTuple):
    """Rows of microbatches of steps, where those of one stand together in a shard's stream; (pieces,) each.

    None is empty. ``ends``: whether no later rows belong to the step. ``costs`` are those of whole microbatches.
    """

    steps: Ints
    microbatches: Ints
    rows: Ints
    ends: NDArray[np.bool_]
    costs: NDArray[np.float64]

    def cut(self, start: int, stop: int) -> Pieces:
        """Some of the pieces."""
        own = slice(start, stop)
        return Pieces(
            self.steps[own], self.microbatches[own], self.rows[own], self.ends[own], self.costs[own]
        )


@dataclass(frozen=True, eq=False)
class StepRuns:
    """The runs of one window for the shards of one destination, where `Balance` divides its steps.

    As `WindowRuns`, runs start at multiples of ``run_rows`` by the rows of even batches, and their ids are assigned
    slice by slice, then shard by shard.
    """

    assignment: ShardAssignment
    total: int | None  # rows of the epoch; None while unknown, then every row here belongs to a full step
    shards: tuple[int, ...]  # those of this destination
    run_rows: int
    slices: int
    first: int  # the number of the first row of these runs
    # (runs,) in order of their ids: the index in ``shards``, the slice, the rows, the place in the shard's stream
    owners: Ints
    slice_numbers: Ints
    rows: Ints
    places: Ints
    # (repeated, 4) of the rows that padding repeats, each alone or those of a sequence: the number of the first, the
    # index in ``shards``, the place, and how many they are
    padding: Ints
    # by index in ``shards``, its pieces, in the stream's order; None in a task
    pieces: tuple[Pieces, ...] | None
    # where steps begin, if they end by their tokens; None in a task
    cuts: WindowCuts | None = None
    # of a mixture's round, (rows,) of the shard that fetches it, with sequences these: where each comes in its run, if
    # microbatches change the order in which rows are placed
    moves: Ints | None = None
    # whether rows were placed before it was known how many of a step each shard has
    has_gaps: bool = False

    @property
    def for_tasks(self) -> StepRuns:
        """The same without what only shards need."""
        return replace(self, pieces=None, cuts=None)

    @property
    def own_runs(self) -> list[int]:
        """The ids of the runs that hold rows, of a mixture's round: those of the shard that fetches it."""
        found: list[int] = np.flatnonzero(self.owners >= 0).tolist()
        return found + [len(self.rows) + at for at, (_, _, rows) in enumerate(self._padding_runs) if rows]

    @cached_property
    def _padding_runs(self) -> list[tuple[int, int, int]]:
        """(owner, place, rows) of each run of repeated rows: those of one shard at consecutive places."""
        found: list[tuple[int, int, int]] = []
        for _, owner, place, rows in self.padding.tolist():
            if found and found[-1][0] == owner and found[-1][1] + found[-1][2] == place:
                found[-1] = owner, found[-1][1], found[-1][2] + rows
            else:
                found.append((owner, place, rows))
        return found

    @cached_property
    def slice_starts(self) -> Ints:
        """(slices + 1,) the first run id of each slice; repeated rows have runs of their own in the last slice."""
        counts = np.bincount(self.slice_numbers, minlength=self.slices)
        counts[-1] += len(self._padding_runs)
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)

    @property
    def padded(self) -> tuple[Ints, Ints, Ints, Ints]:
        """By entry of ``padding``: the first number, the rows, the run id of their copies, the place in that run."""
        stops = np.cumsum(self.padding[:, 3])
        firsts = stops - self.padding[:, 3]
        begins = np.cumsum([0, *(rows for _, _, rows in self._padding_runs)])
        runs = np.searchsorted(begins, firsts, side="right") - 1
        return self.padding[:, 0], self.padding[:, 3], len(self.rows) + runs, firsts - begins[runs]

    def runs_from(self, row: int, shard: int) -> list[Run]:
        """The runs of a shard that hold rows of the epoch from ``row``, a step's first row, on."""
        self._check_start(row)
        pieces = self._of(shard)
        left = int(pieces.rows[pieces.steps < self._step_at(row)].sum())
        found = []
        for run in self.runs(shard):
            if left < run.rows:
                found.append(replace(run, skip=left))
            left = max(0, left - run.rows)
        return found

    def pieces_from(self, row: int, shard: int) -> Pieces:
        """The pieces of a shard's steps from the one that begins at ``row`` on."""
        pieces = self._of(shard)
        return pieces.cut(int(np.searchsorted(pieces.steps, self._step_at(row))), len(pieces.steps))

    def _check_start(self, row: int) -> None:
        """Raise StateError if a shard would go on inside a step, as others cut it by its tokens."""
        cuts = self.cuts
        if cuts is not None and cuts.starts[0] < row < cuts.starts[-1] and row not in cuts.starts:
            raise StateError(
                f"a shard would go on at row {row:,} of the epoch, inside a step of other shards, which read it from "
                f"row {self.assignment.start_row:,} on: load the same state into all shards"
            )

    def _step_at(self, row: int) -> int:
        if self.cuts is not None:
            return row
        return max(0, row - self.assignment.start_row) // self.assignment.step_rows

    def _of(self, shard: int) -> Pieces:
        assert self.pieces is not None, "a task does not know the pieces of shards"
        return self.pieces[self.shards.index(shard)]

    def runs(self, shard: int) -> list[Run]:
        """The runs of a shard in this window, in stream order."""
        (ids,) = np.nonzero(self.owners == self.shards.index(shard))
        return sorted((self._run(int(each)) for each in ids), key=lambda run: run.place)

    def padding_runs(self, shard: int) -> list[Run]:
        """The runs of a shard's repeated rows in this window."""
        last, owner = self.slices - 1, self.shards.index(shard)
        index = len(self.rows) - int(self.slice_starts[last])
        return [
            Run(last, index + number, place, rows)
            for number, (of, place, rows) in enumerate(self._padding_runs)
            if of == owner
        ]

    def _run(self, run_id: int) -> Run:
        of_slice = int(self.slice_numbers[run_id])
        index = run_id - int(self.slice_starts[of_slice])
        return Run(of_slice, index, int(self.places[run_id]), int(self.rows[run_id]))


def find_run_places(layout: WindowRuns | StepRuns, shard: int) -> list[Ints]:
    """By slice, the place in a shard's stream at which each run starts; -1 for runs of other shards."""
    found = [np.full(size, -1, np.int64) for size in np.diff(layout.slice_starts).tolist()]
    for run in layout.runs(shard) + layout.padding_runs(shard):
        found[run.slice][run.index] = run.place
    return found


class StepDestinations(RunNumbers):
    """Finds the run of each row by its number, over all destinations, as `Destinations` does by its position."""

    def __init__(self, layouts: Sequence[StepRuns]) -> None:
        super().__init__([layout.slice_starts for layout in layouts])
        firsts = [layout.first + np.cumsum(layout.rows) - layout.rows for layout in layouts]
        ids = [np.arange(len(layout.rows)) + end for layout, end in zip(layouts, self._ends, strict=False)]
        last = layouts[-1].first + int(layouts[-1].rows.sum())
        # rows behind the last run are left out; tokens can be more than 32 bits count
        fits = last + layouts[0].assignment.sequence_rows <= 2**32
        self._firsts = np.concatenate([*firsts, [last]]).astype(np.uint32 if fits else np.int64)
        self._ids = np.concatenate([*ids, self._ends[-1:]]).astype(self._word)
        padded = [layout.padded for layout in layouts]
        self._repeated, self._repeated_rows = (np.concatenate([each[at] for each in padded]) for at in (0, 1))
        own_ids = [each[2] + end for each, end in zip(padded, self._ends, strict=False)]
        self._padding_ids = np.concatenate(own_ids)
        self._padding_places = np.concatenate([each[3] for each in padded])

    def assign(self, rows: NDArray[np.uint32] | Ints) -> tuple[Ints | None, RunIds, NDArray[np.uint32]]:
        """Find the run, and the place within it, of rows of this window given by their number.

        With sequences, rows are the first ones of pieces, each of which lies in one sequence. Returns what
        `Destinations.assign` does.
        """
        runs, places = self._find(np.ascontiguousarray(rows, self._firsts.dtype))
        if not len(self._repeated):
            return None, runs, places
        order = np.argsort(rows, kind="stable")
        begins, ends = (
            np.searchsorted(rows, each, sorter=order)
            for each in (self._repeated, self._repeated + self._repeated_rows)
        )
        # which entry of the padding each copy is of
        entry = np.repeat(np.arange(len(begins)), ends - begins)
        sources = order[piece_rows(begins, ends - begins)]
        offsets = rows[sources].astype(np.int64) - self._repeated[entry]
        return (
            np.concatenate([np.arange(len(rows)), sources]),
            np.concatenate([runs, self._padding_ids[entry].astype(runs.dtype)]),
            np.concatenate([places, (self._padding_places[entry] + offsets).astype(np.uint32)]),
        )

    def _find(self, rows: NDArray[np.uint32] | Ints) -> tuple[RunIds, NDArray[np.uint32]]:
        if native.LIBRARY is not None and rows.dtype == np.uint32:
            return step_bins.find_runs(cast("NDArray[np.uint32]", rows), self._firsts, self._ids)
        at = np.searchsorted(self._firsts, rows, side="right") - 1
        return self._ids[at], (rows - self._firsts[at]).astype(np.uint32)


def find_destinations(
    layouts: Sequence[WindowRuns] | Sequence[RoundRuns] | Sequence[StepRuns],
) -> Destinations | RoundDestinations | KeyedDestinations | StepDestinations:
    """What finds the run of each row of a window with these layouts, one for each destination."""
    keyed = [layout for layout in layouts if isinstance(layout, KeyedRounds)]
    if keyed:
        return KeyedDestinations(keyed)
    of_rounds = tuple(layout for layout in layouts if isinstance(layout, RoundRuns))
    if of_rounds:
        return _find_round_destinations(of_rounds)
    of_steps = [layout for layout in layouts if isinstance(layout, StepRuns)]
    if of_steps:
        return StepDestinations(of_steps)
    return Destinations([layout for layout in layouts if isinstance(layout, WindowRuns)])


@lru_cache(maxsize=256)
def _find_round_destinations(layouts: tuple[RoundRuns, ...]) -> RoundDestinations:
    # windows of many sources have rows in the same rounds
    return RoundDestinations(layouts)


def lay_out_steps(
    divided: StepRows, *, destinations: Sequence[tuple[int, ...]], run_rows: int, slices: int
) -> tuple[tuple[StepRuns, ...], NDArray[Any]]:
    """Lay out the runs of a window.

    Returns one layout for each destination, and (rows,) the number of each of the window's rows; those that no shard
    of a destination gets have the last numbers. With sequences, it is the number of the first token of each that lies
    in the window.
    """
    assignment, sizes = divided.assignment, divided.sizes
    units, trainers, parts = sizes.shape
    unit = np.repeat(np.arange(units), trainers)
    shard = (divided.first_unit + unit) % assignment.workers * trainers + np.tile(np.arange(trainers), units)
    # by shard, then by step
    by_shard = np.lexsort((unit, shard))
    shard, unit = shard[by_shard], unit[by_shard]
    step = divided.steps[unit]
    rows = sizes.reshape(-1, parts)[by_shard]
    in_unit = rows.sum(axis=1)
    if assignment.ends_by_tokens:
        group = unit // max(1, run_rows * len(in_unit) // max(1, int(in_unit.sum())))
    else:
        group = step // max(1, run_rows // assignment.batch_rows)
    is_run = np.diff(group, prepend=-1).astype(bool) | np.diff(shard, prepend=-1).astype(bool)
    run_of = np.cumsum(is_run) - 1
    run_sizes = np.bincount(run_of, in_unit).astype(np.int64)
    run_shard, run_step = shard[is_run], step[is_run]
    filled = run_sizes > 0

    # shards that are served elsewhere come behind all destinations, so that their rows have no run here
    destination_of = np.full(assignment.shards, len(destinations), np.int64)
    index_of = np.zeros(assignment.shards, np.int64)
    for number, shards in enumerate(destinations):
        destination_of[list(shards)], index_of[list(shards)] = number, np.arange(len(shards))
    # among the filled runs of its shard
    local = np.cumsum(filled) - 1
    counts = np.bincount(run_shard, filled, minlength=assignment.shards).astype(np.int64)
    local -= (np.cumsum(counts) - counts)[run_shard]
    slice_of = local * slices // np.maximum(counts[run_shard], 1)
    destination = destination_of[run_shard]
    order = np.lexsort((local, index_of[run_shard], slice_of, destination, ~filled))[: int(filled.sum())]
    starts = np.zeros(len(run_sizes), np.int64)
    starts[order] = np.cumsum(run_sizes[order]) - run_sizes[order]

    # where the rows of each microbatch begin within their run, then in the window's numbering
    before = np.cumsum(rows).reshape(rows.shape) - rows
    begins = before - before[is_run, 0][run_of][:, None] + starts[run_of][:, None]
    firsts = np.empty_like(begins)
    firsts[by_shard] = begins
    kept = int(run_sizes.sum())
    if divided.tokens is None:
        numbers: NDArray[Any] = number_rows(divided.keys, np.append(firsts.ravel(), kept))
    else:
        numbers = number_sequences(divided, firsts.ravel(), kept)

    earlier = divided.earlier.ravel()
    # a run's first place: full batches before its step, and what earlier windows hold of that
    run_places = run_step * assignment.place_stride + np.where(
        unit[is_run] == 0,
        earlier[run_shard % trainers],
        0,
    )
    layouts, first = [], 0
    for number, shards in enumerate(destinations):
        own = order[destination[order] == number]
        layouts.append(
            StepRuns(
                assignment=assignment,
                total=divided.total,
                shards=tuple(shards),
                run_rows=run_rows,
                slices=slices,
                first=first,
                owners=index_of[run_shard[own]],
                slice_numbers=slice_of[own],
                rows=run_sizes[own],
                places=run_places[own],
                padding=_find_padding(divided, shards, numbers),
                pieces=tuple(_find_pieces(divided, each) for each in shards),
                cuts=divided.cuts,
            )
        )
        first += int(run_sizes[own].sum())
    return tuple(layouts), numbers


def _find_pieces(divided: StepRows, shard: int) -> Pieces:
    """The rows of each microbatch of a shard's steps in the window."""
    worker, trainer = divmod(shard, divided.sizes.shape[1])
    workers = divided.assignment.workers
    first = (worker - divided.first_unit) % workers
    sizes, costs = divided.sizes[first::workers, trainer], divided.costs[first::workers, trainer]
    number, part = np.nonzero(sizes)
    unit = first + number * workers
    goes_on = (unit == len(divided.sizes) - 1) & bool(divided.later[trainer])
    is_last = np.diff(number, append=-1) != 0
    return Pieces(divided.steps[unit], part, sizes[number, part], is_last & ~goes_on, costs[number, part])


def _find_padding(divided: StepRows, shards: Sequence[int], numbers: NDArray[Any]) -> Ints:
    index = {shard: number for number, shard in enumerate(shards)}
    own = [
        (int(numbers[row]), index[shard], place, 1 if divided.tokens is None else int(divided.tokens[row]))
        for row, shard, place in divided.padding
        if shard in index
    ]
    return np.array(sorted(own, key=lambda each: each[1:]), np.int64).reshape(-1, 4)

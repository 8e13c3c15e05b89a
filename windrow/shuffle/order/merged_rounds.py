"""Puts together what the windows of several sources have in a round, and divides batches into microbatches by costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.divided_rounds import DividedRounds, PlacedRows
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_balance import balance_steps, find_imbalances
from windrow.shuffle.order.step_runs import Pieces, StepRuns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class RoundParts(NamedTuple):
    """What a round has of each microbatch, by shard and unit; rows that padding repeats are not counted."""

    shards: Ints
    units: Ints
    parts: Ints
    rows: Ints  # with sequences, tokens
    costs: Floats
    lengths: Floats
    longest: Floats

    def select(self, at: Any) -> RoundParts:
        """Some of them."""
        return RoundParts(*(each[at] for each in self))


class EndedSteps(NamedTuple):
    """Of the steps that end in a round."""

    imbalances: tuple[float, ...]
    # the lengths of all rows, and what they come to if each microbatch is padded to its longest row
    length: float
    padded_length: float


@dataclass(frozen=True, eq=False)
class MergedRound:
    """A round whose windows are all placed."""

    number: int
    layout: DividedRounds  # of any window
    parts: RoundParts
    # the same and others of their steps, with what the round before has of them
    whole: RoundParts
    # by shard, where its rows come in their runs; None: in the order in which they are placed
    moves: tuple[Ints, ...] | None
    # (copies, 3): of rows that padding repeats, the shard, the place in the batch, and how many rows, or tokens
    copies: Ints

    @property
    def _stop(self) -> int:
        return min((self.number + 1) * self.layout.round_rows, self.layout.stop_row)

    def _unit_stops(self, units: Ints) -> Ints:
        assignment = self.layout.assignment
        unit = assignment.step_rows // assignment.workers
        return np.minimum(assignment.start_row + (units + 1) * unit, self.layout.stop_row)

    @property
    def open_parts(self) -> RoundParts:
        """Those of the unit that goes on in the next round."""
        return self.whole.select(self._unit_stops(self.whole.units) > self._stop)

    @property
    def ended(self) -> EndedSteps:
        """What is known of the steps that end here."""
        assignment = self.layout.assignment
        trainers = assignment.trainers
        own = self.whole.select(self._unit_stops(self.whole.units) <= self._stop)
        units, unit = np.unique(own.units, return_inverse=True)
        bins = unit * trainers + own.shards % trainers
        spent = np.bincount(bins, own.costs, minlength=len(units) * trainers).reshape(-1, trainers)
        return EndedSteps(
            find_imbalances(spent),
            float(own.lengths.sum()),
            float((own.longest * (own.rows // assignment.sequence_rows)).sum()),
        )

    def for_shard(self, shard: int, shards: tuple[int, ...]) -> StepRuns:
        """The runs of a shard among those of its destination, ``shards``, which have their ids one after the other."""
        layout, assignment = self.layout, self.layout.assignment
        own = self.parts.select(slice(*np.searchsorted(self.parts.shards, [shard, shard + 1]).tolist()))
        steps = own.units // assignment.workers
        first, stop = layout.groups_of(self.number)
        count, index = stop - first, shards.index(shard)
        sizes = np.bincount(steps // layout.run_steps - first, own.rows, minlength=count).astype(np.int64)
        ids = slice(index * count, (index + 1) * count)
        owners = np.full(len(shards) * count, -1, np.int64)
        owners[ids] = np.where(sizes > 0, index, -1)
        rows, places = np.zeros((2, len(owners)), np.int64)
        rows[ids], places[ids] = sizes, self._find_places(np.arange(first, stop))
        # rows that padding repeats join those before, which can lie in another round
        stops = self._unit_stops(own.units)
        goes_on = (assignment.equal == "pad" and not assignment.drop_last) & (stops >= layout.stop_row)
        is_last = np.diff(own.units, append=-1) != 0
        pieces = Pieces(
            steps,
            own.parts,
            own.rows,
            is_last & (stops <= self._stop) & ~goes_on,
            self._whole_costs(own),
        )
        return StepRuns(
            assignment=assignment,
            total=layout.stop_row,
            shards=shards,
            run_rows=layout.round.run_rows,
            slices=1,
            first=0,
            owners=owners,
            slice_numbers=np.zeros(len(owners), np.int64),
            rows=rows,
            places=places,
            padding=self._find_padding(index, shards),
            pieces=tuple(pieces if each == shard else _NO_PIECES for each in shards),
            moves=None if self.moves is None else self.moves[shard],
            has_gaps=True,
        )

    def _find_padding(self, index: int, shards: tuple[int, ...]) -> Ints:
        """`StepRuns.padding`, with an entry for each shard, if this one has any."""
        own = self.copies[self.copies[:, 0] == shards[index]]
        found = np.zeros((len(shards) if len(own) else 0, 4), np.int64)
        found[:, 1] = np.arange(len(found))
        if len(own):
            assignment, stop_row = self.layout.assignment, self.layout.stop_row
            step = (stop_row - 1 - assignment.start_row) // assignment.step_rows
            place = step * assignment.place_stride + own[:, 1].min() * assignment.sequence_rows
            found[index, 2:] = place, own[:, 2].sum()
        return found

    def _find_places(self, groups: Ints) -> Ints:
        """The place in its shard's stream at which each run begins: by the rows of even batches."""
        layout, assignment = self.layout, self.layout.assignment
        begin = max(0, self.number * layout.round_rows - assignment.start_row)
        # where a run goes on with a step of the round before, it begins behind that part
        within = np.where(
            begin > groups * layout.run_steps * assignment.step_rows, begin % assignment.step_rows, 0
        )
        steps = np.maximum(groups * layout.run_steps, begin // assignment.step_rows)
        found: Ints = steps * assignment.place_stride + np.minimum(
            within, assignment.place_stride - assignment.sequence_rows
        )
        return found

    def _whole_costs(self, own: RoundParts) -> Floats:
        if self.whole is self.parts:
            return own.costs
        at = np.searchsorted(_make_keys(self.whole, self.whole), _make_keys(own, self.whole))
        found: Floats = self.whole.costs[at]
        return found


_EMPTY = np.zeros(0, np.int64)
_NO_PIECES = Pieces(_EMPTY, _EMPTY, _EMPTY, np.zeros(0, np.bool_), np.zeros(0, np.float64))


def merge_round(number: int, layouts: Sequence[DividedRounds], before: RoundParts | None) -> MergedRound:
    """Put together what the windows of a round have in it, given one layout of each.

    ``before`` are the parts of a step that has begun in the round before.
    """
    layout = layouts[0].for_tasks
    assignment = layout.assignment.of_sequences
    round_rows = layout.round_rows // layout.assignment.sequence_rows
    found = []
    for each in layouts:
        assert each.placed is not None, "a task does not know the rows of other shards"
        low, high = np.searchsorted(each.placed.rows, np.array([number, number + 1]) * round_rows)
        found.append(each.placed.select(slice(low, high)))
    columns: list[Any] = [np.concatenate(each) for each in zip(*found, strict=True)]
    rows = _join(assignment, PlacedRows(*columns))
    units = (rows.rows - assignment.start_row) // (assignment.step_rows // assignment.workers)
    parts = np.zeros(len(units), np.int64)
    (own,) = np.nonzero(~rows.is_copy)
    of_rows = rows.select(own)
    lengths = of_rows.lengths.astype(np.float64)
    if assignment.cost_balance.microbatches > 1:
        total = layout.stop_row // layout.assignment.sequence_rows
        parts[own] = _divide_batches(assignment, of_rows, units[own], number * round_rows, total)
    counted = _sum(
        RoundParts(
            of_rows.shards.astype(np.int64),
            units[own],
            parts[own],
            of_rows.sizes.astype(np.int64),
            of_rows.costs,
            lengths,
            lengths,
        )
    )
    copied = rows.select(rows.is_copy)
    whole = counted
    if before is not None:
        joined: list[Any] = [np.concatenate(each) for each in zip(before, counted, strict=True)]
        whole = _sum(RoundParts(*joined))
    moves = None
    if assignment.cost_balance.microbatches > 1:
        moves = _find_moves(layout, rows, units // assignment.workers, parts)
    copies = np.stack([copied.shards, copied.ranks, copied.sizes], axis=1).astype(np.int64)
    return MergedRound(number, layout, counted, whole, moves, copies)


def _join(assignment: ShardAssignment, found: PlacedRows) -> PlacedRows:
    """The rows by shard, in the order in which they are placed, copies last; a sequence of two windows is one."""
    if not len(found.rows):
        return found
    steps = (found.rows - assignment.start_row) // assignment.step_rows
    # one key sorts much faster than several
    first = int(steps.min())
    span = (int(steps.max()) + 1 - first) * assignment.step_rows
    keys = (steps - first) * assignment.step_rows + found.ranks
    keys += (found.shards * np.int64(2) + found.is_copy) * span
    order = np.argsort(keys, kind="stable")
    found = found.select(order)
    is_first = np.diff(keys[order], prepend=-1) != 0
    if is_first.all():
        return found
    (firsts,) = np.nonzero(is_first)
    sums = {name: np.add.reduceat(getattr(found, name), firsts) for name in ("sizes", "costs", "lengths")}
    return found.select(firsts)._replace(**sums)


def _divide_batches(
    assignment: ShardAssignment, rows: PlacedRows, units: Ints, round_row: int, total: int
) -> Ints:
    """(rows,) the microbatch of each row of what shards have of their batches in the round."""
    balance, trainers = assignment.cost_balance, assignment.trainers
    is_first = np.diff(rows.shards, prepend=-1).astype(bool) | np.diff(units, prepend=-1).astype(bool)
    (first,) = np.nonzero(is_first)
    starts = np.append(first, len(units)).astype(np.int64)
    to = balance_steps(rows.costs, starts, balance.microbatches, None)
    # each microbatch gets a row of a batch that lies in two rounds, where it has enough
    if balance.rows == "equal":
        _, places = assignment.assign_rows(rows.rows[first], total)
        begun = places.astype(np.int64) % assignment.batch_rows
    else:
        begins = assignment.start_row + units[first] * (trainers * assignment.batch_rows)
        begun = np.maximum(0, round_row - begins) // trainers
    found = (to + np.repeat(begun, np.diff(starts))) % balance.microbatches
    return found.astype(np.int64)


def _find_moves(layout: DividedRounds, rows: PlacedRows, steps: Ints, parts: Ints) -> tuple[Ints, ...]:
    """By shard, the place in its run of each row, given them in the order in which they are placed."""
    # copies have runs of their own
    runs = np.where(rows.is_copy, -2, steps // layout.run_steps)
    begins_run = np.diff(rows.shards, prepend=-1).astype(bool) | np.diff(runs, prepend=-1).astype(bool)
    begins_step = begins_run | np.diff(steps, prepend=-1).astype(bool)
    keys = np.cumsum(begins_step) * layout.assignment.cost_balance.microbatches + parts
    order = np.argsort(keys, kind="stable")
    (first,) = np.nonzero(begins_run)
    sizes = np.diff(np.append(first, len(runs)))
    moved = np.empty(len(runs), np.int64)
    moved[order] = np.arange(len(runs)) - np.repeat(first, sizes)
    borders = np.searchsorted(rows.shards, np.arange(1, layout.assignment.shards))
    return tuple(np.split(moved, borders))


def _make_keys(parts: RoundParts, of: RoundParts) -> Ints:
    """One number for each part, in their order; ``of`` has all units and parts that there are."""
    units, most = 1 + of.units.max(initial=0), 1 + of.parts.max(initial=0)
    found: Ints = (parts.shards * units + parts.units) * most + parts.parts
    return found


def _sum(parts: RoundParts) -> RoundParts:
    """Parts of which each is named once, in order."""
    keys = _make_keys(parts, parts)
    order = np.argsort(keys, kind="stable")
    (first,) = np.nonzero(np.diff(keys[order], prepend=-1))
    if not len(first):
        return parts
    sums = {
        name: np.add.reduceat(getattr(parts, name)[order], first) for name in ("rows", "costs", "lengths")
    }
    longest = np.maximum.reduceat(parts.longest[order], first)
    return parts.select(order[first])._replace(**sums, longest=longest)

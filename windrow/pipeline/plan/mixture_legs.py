"""The legs of a mixture that have been opened, each as an epoch: where a `Program` of a mixture gets its plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.cursor import Cursor, MixturePoint
from windrow.pipeline.plan.joined_leg import JoinedLeg
from windrow.pipeline.plan.joined_places import JoinedPlaces
from windrow.pipeline.plan.leg import Leg
from windrow.pipeline.plan.leg_order import LegOrder
from windrow.pipeline.plan.measured_leg import MeasuredLeg, expect_rows
from windrow.pipeline.plan.mixed_step_places import divide_rows_of_source, divide_sequences_of_source
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.plan.plan_leg import KEPT_LEGS, as_mixture_leg, plan_leg
from windrow.pipeline.plan.window_places import (
    EpochParts,
    WindowPlaces,
    WindowPlan,
    cut_parts,
    find_documents,
    place_all_documents,
)
from windrow.pipeline.tasks.task import Work
from windrow.shuffle.order.epoch_plan import EpochPlan
from windrow.shuffle.order.length_groups import LengthGroups
from windrow.shuffle.order.permutation import Permutation
from windrow.shuffle.order.round_runs import RoundRuns, scatter_window
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.sequence_places import SequencePlaces
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.window_order import WindowOrder

# a point of the mixture, a row behind it, the rows of a step, and what else tells the order of the leg's rows
LegStart = tuple[MixturePoint, int, int, LegOrder | None]
# the one that is read, and one that slow shards still read
_KEPT_MEASURED = 2


def _groups_from(leg: Leg, row: int) -> list[LengthGroups]:
    return leg.order.groups_from(leg.row, row)


@lru_cache(maxsize=256)
def _lay_out_rounds(
    assignment: ShardAssignment,
    destinations: tuple[tuple[int, ...], ...],
    run_rows: int,
    round_rows: int,
    *,
    rounds: tuple[int, int],
    rows: tuple[int, int],
    most_slices: int,
) -> tuple[RoundRuns, ...]:
    """The runs of some rounds of a leg with these ``rows``; windows of many sources have rows in the same ones."""
    (first_row, stop_row), (first_round, stop_round) = rows, rounds
    return tuple(
        RoundRuns(
            WindowRuns(
                assignment=assignment,
                first_row=first_row,
                stop_row=stop_row,
                total=stop_row,
                shards=shards,
                run_rows=run_rows,
                slices=1,
            ),
            round_rows=round_rows,
            first_round=first_round,
            stop_round=stop_round,
            first_row=first_row,
            stop_row=stop_row,
            most_slices=most_slices,
        )
        for shards in destinations
    )


class MixtureLegs:
    """By epoch, the legs that have been opened in this process.

    ``sizes`` holds the bytes of each block, which tasks of about ``task_bytes`` read. Windows have ``most_slices`` or
    fewer. With packing, a leg counts sequences, and all else counts tokens.
    """

    def __init__(self, mixture: Mixture, sizes: NDArray[np.int64], task_bytes: int, most_slices: int) -> None:
        self.mixture = mixture
        self._row_tokens = mixture.row_tokens
        self._sizes = sizes
        self._task_bytes = task_bytes
        self._most_slices = most_slices
        # what `Mixture.leg` plans them from; the mixture keeps the plans of the latest
        self._opened: dict[int, LegStart] = {}
        # the shards that have opened each, and have not gone back since
        self._readers: dict[int, set[int]] = {}
        self._parts: dict[int, EpochParts] = {}
        self._measured: dict[int, MeasuredLeg] = {}
        self._joined: dict[int, JoinedPlaces] = {}

    def _start_of(self, cursor: Cursor, assignment: ShardAssignment | None) -> LegStart:
        point, row = cursor.mixed or self.mixture.start, cursor.row // self._row_tokens
        if assignment is None:
            return point, row, 1, None
        by_rows, balance, begun = assignment.of_sequences, assignment.balance, cursor.groups
        if assignment.ends_by_tokens:
            return point, row, 0, LegOrder(0)
        step_rows, steps = by_rows.step_rows, None if balance is None else balance.group_steps
        if begun is None and steps is None:
            return point, row, step_rows, None
        groups = None
        if balance is not None and steps is not None:
            groups = LengthGroups(balance.column, steps, step_rows)
        order = LegOrder(step_rows, row % step_rows, begun, groups)
        return point, row if begun is None else begun.first_row, step_rows, order

    def open(self, cursor: Cursor, assignment: ShardAssignment, stop: int | None = None) -> bool:
        """Plan a leg from a cursor on, as its epoch; returns whether that was planned otherwise before.

        ``assignment`` is that of its rows. If its steps end by their tokens, the leg ends at ``stop``, or where the
        last step ends that is known.
        """
        is_open, start = cursor.epoch in self._opened, self._start_of(cursor, assignment)
        if is_open and self._serves(cursor.epoch, start, assignment, stop):
            return False
        self._parts.pop(cursor.epoch, None)
        self._measured.pop(cursor.epoch, None)
        self._joined.pop(cursor.epoch, None)
        if assignment.ends_by_tokens:
            start = self._end_by_tokens(cursor.epoch, start, assignment, stop)
        self._opened[cursor.epoch] = start
        return is_open

    def _serves(self, epoch: int, start: LegStart, assignment: ShardAssignment, stop: int | None) -> bool:
        """Whether the leg of an epoch, as planned, holds what one from another start on would."""
        leg, (point, row, step_rows, order) = self.leg(epoch), start
        if not assignment.ends_by_tokens:
            return leg.serves(point, row, step_rows, order)
        if self._opened[epoch][2] or not leg.row <= row <= leg.stop:
            return False
        if stop is not None:
            return leg.stop == stop
        starts = self.measured(epoch).cut(assignment).starts
        return row in starts and leg.agrees(plan_leg(self.mixture, *start))

    def _end_by_tokens(
        self, epoch: int, start: LegStart, assignment: ShardAssignment, stop: int | None
    ) -> LegStart:
        """The start of the leg that ends with a step, given one whose last step may not be whole."""
        point, row, step_rows, _ = start
        longest = as_mixture_leg(plan_leg(self.mixture, *start))
        if stop is not None:
            is_known = longest.is_last and longest.stop == stop
            return start if is_known else (point, row, step_rows, LegOrder(0, stop=stop))
        rows = expect_rows(self.mixture, assignment)
        while True:
            leg = longest
            if row + rows < longest.stop:
                until = LegOrder(0, stop=row + rows)
                leg = as_mixture_leg(plan_leg(self.mixture, point, row, step_rows, until))
            measured = MeasuredLeg(leg)
            cuts = measured.cut(assignment)
            if leg.is_last or len(cuts.starts) > 1:
                break
            # not even one step is whole
            measured.check_budget(assignment.cost_balance)
            rows *= 2
            if leg is longest:
                start = point, row, step_rows, LegOrder(0, least_rows=2 * (leg.stop - row))
                longest = as_mixture_leg(plan_leg(self.mixture, *start))
        if not (leg.is_last and cuts.is_complete):
            start = point, row, step_rows, LegOrder(0, stop=cuts.starts[-1])
            measured = measured.up_to(as_mixture_leg(plan_leg(self.mixture, *start)))
        self._keep_measured(epoch, measured)
        return start

    def differs(self, cursor: Cursor, assignment: ShardAssignment) -> bool:
        """Whether an epoch was opened with other shares, in another order, or from rows that were counted otherwise."""
        if cursor.epoch not in self._opened:
            return False
        own, other = self.leg(cursor.epoch), plan_leg(self.mixture, *self._start_of(cursor, assignment))
        return not (own.agrees(other) and _groups_from(own, other.row) == _groups_from(other, other.row))

    def note_reader(self, epoch: int, shard: int) -> None:
        """A shard opens an epoch, so it has discarded those behind it, if it comes from an earlier state."""
        for later in self._readers.keys() - {*range(epoch + 1)}:
            self._readers[later].discard(shard)
        self._readers.setdefault(epoch, set()).add(shard)

    def is_open(self, epoch: int) -> bool:
        """Whether an epoch has been planned: not yet where a restarted coordinator has not heard of it again."""
        return epoch in self._opened

    def passed_change(self, epoch: int, row: int) -> int | None:
        """The first row at which a later epoch changed shares, if ``row`` of this one lies behind it, else None.

        Epochs that all of their shards have discarded do not count.
        """
        if not self.is_open(epoch):
            return None
        own = self.leg(epoch)
        # a step in which the mixture ends counts as taken, and there are no rows behind the end
        row = min(row, own.stop)
        later = sorted(
            (start[1], other)
            for other, start in self._opened.items()
            if other > epoch and own.row <= start[1] < row and self._readers.get(other, True)
        )
        return next((first for first, other in later if not own.agrees(self.leg(other))), None)

    def has_rows_at(self, cursor: Cursor) -> bool:
        """Whether the mixture has a row at a cursor."""
        if cursor.groups is not None:
            # in the middle of a group, all of which there is
            return True
        leg = plan_leg(self.mixture, *self._start_of(cursor, None))
        return leg.stop > leg.row

    def leg(self, epoch: int) -> Leg:
        """The leg of an epoch; before any was opened, the mixture's start."""
        start = self._opened.get(epoch)
        if start is None:
            start = self._opened[epoch] = self._start_of(Cursor(epoch), None)
        return plan_leg(self.mixture, *start)

    def measured(self, epoch: int) -> MeasuredLeg:
        """The leg of an epoch, with what its rows measure."""
        found = self._measured.get(epoch)
        return found or self._keep_measured(epoch, MeasuredLeg(as_mixture_leg(self.leg(epoch))))

    def _keep_measured(self, epoch: int, measured: MeasuredLeg) -> MeasuredLeg:
        while len(self._measured) >= _KEPT_MEASURED:
            self._measured.pop(next(iter(self._measured)), None)
        self._measured[epoch] = measured
        return measured

    def _joined_places(self, epoch: int, leg: JoinedLeg) -> JoinedPlaces:
        found = self._joined.get(epoch)
        if found is None:
            while len(self._joined) >= _KEPT_MEASURED:
                self._joined.pop(next(iter(self._joined)), None)
            found = self._joined[epoch] = JoinedPlaces(leg)
        return found

    def stop(self, epoch: int) -> int:
        """Where the leg of an epoch ends."""
        return self.leg(epoch).stop * self._row_tokens

    def plan(self, epoch: int) -> EpochPlan:
        """The blocks of each window of a source that the leg needs."""
        return self.leg(epoch).plan

    def parts_of(self, epoch: int) -> EpochParts:
        found = self._parts.get(epoch)
        if found is None:
            found = cut_parts(self.plan(epoch), self._sizes, self._task_bytes)
            while len(self._parts) >= KEPT_LEGS:
                self._parts.pop(next(iter(self._parts)), None)
            self._parts[epoch] = found
        return found

    def window(self, epoch: int, window: int) -> WindowPlan:
        return self.parts_of(epoch).window(window)

    def round_starts(self, epoch: int) -> NDArray[np.int64]:
        """(rounds + 1,) the first row of each round, counted from the mixture's start, and where the leg ends."""
        rounds = np.arange(self.leg(epoch).rounds.stop + 1, dtype=np.int64)
        return np.minimum(rounds * self.mixture.round_rows * self._row_tokens, self.stop(epoch))

    def locate(self, epoch: int, row: int) -> Cursor:
        """The cursor at a row of a leg; at its end, that of the next one."""
        leg, number = self.leg(epoch), row // self._row_tokens
        groups = leg.order.group_before(leg.row, number, leg.stop)
        # what is known of the mixture in the middle of a group is where it begins
        point = leg.point_at(number if groups is None else groups.first_row)
        at = replace(self.mixture.cursor(epoch, point, number), groups=groups)
        return at.next_epoch() if number >= leg.stop else at

    def place(
        self,
        work: Work,
        rows: NDArray[np.int64],
        assignment: ShardAssignment,
        destinations: Sequence[tuple[int, ...]],
        run_rows: int,
        lengths: Sequence[NDArray[np.int32] | None] = (),
        measures: Sequence[NDArray[np.float32] | None] | None = None,
    ) -> WindowPlaces:
        """Where the rows of a work's window go: into the runs of several rounds.

        With packing, ``lengths`` hold the tokens of each document of every block of the mixture; with `Balance`,
        ``measures`` hold what each of its rows measures.
        """
        planned, plan = self.leg(work.epoch), self.window(work.epoch, work.window)
        needed, size = planned.windows[work.window], self.mixture.round_rows
        first_row, stop_row = planned.row * self._row_tokens, planned.stop * self._row_tokens
        layouts = _lay_out_rounds(
            assignment,
            tuple(destinations),
            run_rows,
            size * self._row_tokens,
            rounds=(needed.first_row // size, -(-needed.stop_row // size)),
            rows=(first_row, stop_row),
            most_slices=self._most_slices,
        )
        before = plan.rows_before(rows)
        if isinstance(planned, JoinedLeg):
            return self._joined_places(work.epoch, planned).place(needed, plan, before, lengths, layouts)
        leg, source, window = as_mixture_leg(planned), self.mixture.sources[needed.source], needed.window
        balance = assignment.balance
        if balance is not None and balance.column == self.mixture.length_column:
            return self.measured(work.epoch).place(needed, plan, before, layouts)
        stretches = leg.stretches_of(needed)
        key = source.window_key(window)
        if source.seq_len is None:
            order = scatter_window(key, int(before[-1]), window.start, needed.source, stretches)
            if measures is None:
                return WindowPlaces(plan, order, layouts, before)
            of_rows = order.epoch_rows(0, order.rows)
            divided, keys = divide_rows_of_source(
                leg, needed, of_rows, plan.select(measures), assignment, layouts
            )
            given = tuple(np.split(keys, before[1:-1]))
            return WindowPlaces(plan, order, divided, before, given_rows=given)
        # documents lie end to end as in the source's own pipeline; the sequences that they are cut into are scattered
        counted = find_documents(plan, lengths)
        count = sum(map(len, counted))
        laid_out = WindowOrder(count, window.before, None if key is None else Permutation(key, count))
        sequences = SequencePlaces(
            needed.source,
            tuple(stretches),
            source.seq_len,
            first=window.epoch * source.pass_rows,
            count=source.pass_rows,
        )
        documents = place_all_documents(laid_out, counted)
        if assignment.balance is not None:
            divided, numbered = divide_sequences_of_source(leg, needed, documents, assignment, layouts)
            return WindowPlaces(plan, laid_out, divided, before, numbered)
        return WindowPlaces(plan, laid_out, layouts, before, documents, sequences=sequences)

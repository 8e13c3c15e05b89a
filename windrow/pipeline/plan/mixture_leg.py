"""A leg of a mixture: where the rows of each source come in it, as the sequence of sources says."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.pipeline.plan.cursor import MixturePoint
from windrow.pipeline.plan.leg import MAX_ROWS, Leg
from windrow.pipeline.plan.leg_order import LegOrder
from windrow.pipeline.plan.mixed_source import NeededWindow, Stretch, window_work
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.plan.shares import phase_starts
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.round_runs import SourceStretch
from windrow.shuffle.order.share_sequence import ShareSequence, share_sequence

Ints = NDArray[np.int64]


class MixtureLeg(Leg):
    """A leg that consists of stretches in which shares stay the same, and all is arithmetic."""

    def __init__(
        self, mixture: Mixture, point: MixturePoint, row: int, step_rows: int, order: LegOrder | None = None
    ) -> None:
        super().__init__(mixture, point, row, step_rows, order)
        self._is_last = True
        self.stretches = list(self._plan_stretches())

    @property
    def is_last(self) -> bool:
        """Whether the mixture ends with this leg."""
        return self._is_last

    @property
    def goes_on(self) -> bool:
        """Whether the mixture can go on from the point by the shares that hold there."""
        return bool(self.stretches)

    @property
    def stop(self) -> int:
        """The row behind the last one."""
        return self.stretches[-1].stop if self.stretches else self.row

    def _plan_stretches(self) -> Iterator[Stretch]:
        mixture, at = self.mixture, self.point.row
        counts = np.array(self.point.counts, np.int64)
        totals = [source.total_rows for source in mixture.sources]
        limits = np.array([MAX_ROWS if total is None else total for total in totals], np.int64)
        budget, horizon = self._work_budget, self.order.stop
        for begin, stop, weights in self.phases():
            at = max(at, begin)
            while at < stop:
                left = np.where(counts < limits, weights, 0)
                if not left.any() or (mixture.when_exhausted != "drop" and (left != weights).any()):
                    return
                # another choice wherever shares change, so that deviations do not add up
                sequence = share_sequence(tuple(left.tolist()), derive_key(mixture.seed, "shares", at, 0))
                rest = limits - counts
                ends = [
                    at + int(sequence.places(source, rest[source : source + 1])[0])
                    for source in np.flatnonzero((left > 0) & (limits < MAX_ROWS)).tolist()
                    # others have rows enough
                    if rest[source] < sequence.most(source, stop - at)
                ]
                end = min([stop, *ends])
                begun = max(at, self.row)
                wanted = self._limit(begun + self._fitting_rows(sequence, budget))
                if horizon is None and end > wanted:
                    # whole steps, or groups of them, and at least one; if shares change within it, up to its end
                    horizon = self.order.end_behind(self.row, at, wanted)
                if horizon is not None and end >= horizon:
                    self._is_last = False
                    yield Stretch(at, horizon, sequence, counts)
                    return
                budget -= self._work_of(sequence, max(0, end - begun))
                yield Stretch(at, end, sequence, counts)
                counts = counts + sequence.counts(end - at)
                at = end

    def phases(self) -> Iterator[tuple[int, int, Ints]]:
        """Where each phase begins and ends, and its weights."""
        mixture, point, names = self.mixture, self.point, self.mixture.names
        if point.shares is not None:
            yield point.row, MAX_ROWS, np.array(point.shares, np.int64)
            return
        shares, row, steps = mixture.shares, point.steps_row, point.steps
        begins = list(phase_starts(shares, row=row, row_of=self._row_of, steps=steps))
        place = steps if shares.unit == "steps" else row
        current = shares.phase_at(place)
        if current and point.row < row and shares.phases[current].start == place:
            # the one before held up to here
            begins.insert(0, (point.row, shares.phases[current - 1]))
        # the first one holds since the shares last changed
        begins[0] = point.row, begins[0][1]
        ends = [*(begin for begin, _ in begins[1:]), MAX_ROWS]
        for (begin, phase), stop in zip(begins, ends, strict=True):
            yield begin, stop, np.array(phase.weights(names), np.int64)

    @cached_property
    def _counted_steps(self) -> tuple[int, int]:
        """A row from which on steps have the leg's rows, and the steps up to there."""
        group = self.order.begun
        if group is None:
            return self.point.steps_row, self.point.steps
        row = self.order.next_step(group.stop_row)
        return row, self.point.steps + group.steps + (row > group.stop_row)

    def _row_of(self, step: int) -> int:
        """The row at which a later step begins. Those of a group that has begun have the size that they had."""
        group, ahead = self.order.begun, step - self.point.steps
        if group is not None and ahead <= group.steps:
            return group.first_row + ahead * group.step_rows
        row, steps = self._counted_steps
        return row + (step - steps) * self._step_rows

    def _limit(self, row: int) -> int:
        """Where a leg that is planned up to a row ends at the latest."""
        if self.mixture.length_column is not None:
            row = min(row, self.row + self._measured_rows)
        return max(row, self.row + self.order.least_rows)

    def _work_of(self, sequence: ShareSequence, rows: int) -> float:
        """About how much work it is to plan this many rows."""
        found = 0.0
        for source, weight in zip(self.mixture.sources, sequence.weights.tolist(), strict=True):
            if source.pass_rows:
                windows = rows * weight / sequence.period * source.windows_per_pass / source.pass_rows
                found += windows * window_work(source)
        return found

    def _fitting_rows(self, sequence: ShareSequence, budget: float) -> int:
        per_row = self._work_of(sequence, 1)
        return MAX_ROWS if not per_row else max(1, int(budget / per_row))

    def stretch_at(self, row: int) -> Stretch:
        """The stretch that holds a row; at the end of the leg, its last one."""
        return next((each for each in self.stretches if row < each.stop), self.stretches[-1])

    def stretch_up_to(self, row: int) -> Stretch:
        """The stretch that holds the row before; that which begins here, if a phase does.

        A source is dropped with the first row that it does not have. Before that row, the mixture is where one that
        repeats its sources would be, also where a leg or the mixture ends.
        """
        stretch = self.stretch_at(row)
        if row != stretch.start or self._changes_at(row):
            return stretch
        return next(each for each in self.stretches if each.stop == row)

    def _changes_at(self, row: int) -> bool:
        """Whether a phase begins at a row; the first one does at the leg's point."""
        return any(begin == row for begin, _, _ in self.phases())

    def counts_at(self, row: int) -> Ints:
        """(sources,) the rows of each source before a row of the mixture."""
        if not self.stretches:
            return np.array(self.point.counts, np.int64)
        return self.stretch_at(row).counts_at(row)

    def shared_rows(self, row: int) -> int:
        """How many of the rows that shares are shares of come before a row of the mixture: all of them."""
        return row

    def rows_before(self, rows: Ints) -> Ints:
        """(sources, rows) the rows of each source before some rows of the leg, or of the step in which it begins."""
        found = np.zeros((len(self.mixture.sources), len(rows)), np.int64)
        if self.stretches:
            at = np.searchsorted([each.start for each in self.stretches[1:]], rows, side="right")
            for number in np.unique(at).tolist():
                (inside,), stretch = np.nonzero(at == number), self.stretches[number]
                # what lies before the first stretch has been delivered
                ahead = np.maximum(rows[inside] - stretch.start, 0)
                found[:, inside] = stretch.counts[:, None] + stretch.sequence.table(ahead)
        return found

    def weights_at(self, row: int) -> Ints:
        """(sources,) the weights of the phase that holds at a row, those of exhausted sources included."""
        phases = list(self.phases())
        return next((weights for _, stop, weights in phases if row < stop), phases[-1][2])

    def begun_at(self, row: int) -> list[int]:
        """The rows of each source when the shares last changed before a row; -1 for sources that had no more."""
        point = self.point_at(row)
        if not self.stretches:
            return list(point.counts)
        holding = self.stretch_up_to(row).sequence.weights.tolist()
        weights = self.weights_at(row).tolist()
        return [
            -1 if weight and not held else count
            for count, weight, held in zip(point.counts, weights, holding, strict=True)
        ]

    def point_at(self, row: int) -> MixturePoint:
        """What has to be known at a row to go on from there."""
        if not self.stretches:
            return self.point
        stretch = self.stretch_up_to(row)
        begun, steps = self._counted_steps if row >= self._counted_steps[0] else (row, self.point.steps)
        # steps that end by their tokens are not counted
        taken, rest = divmod(row - begun, self._step_rows) if self._step_rows else (0, 0)
        # the mixture can end within a step, which has then been taken
        steps += taken + (rest > 0 and row == self.stop)
        if row == stretch.stop and self._changes_at(row):
            # the leg ends where shares change
            return MixturePoint(tuple(stretch.counts_at(row).tolist()), row, self.point.shares, steps, row)
        return MixturePoint(tuple(stretch.counts.tolist()), stretch.start, self.point.shares, steps, row)

    def places(self, source: int, numbers: Ints) -> Ints:
        """(rows,) where the rows of a source that have these numbers come in the mixture."""
        found = np.full(len(numbers), MAX_ROWS, np.int64)
        stops = [*self.stretches[1:], None]
        for stretch, after in zip(self.stretches, stops, strict=True):
            inside = numbers >= stretch.counts[source]
            if after is not None:
                inside &= numbers < after.counts[source]
            if inside.any() and stretch.sequence.weights[source]:
                found[inside] = stretch.start + stretch.sequence.places(
                    source, numbers[inside] - stretch.counts[source]
                )
        return found

    def stretches_of(self, needed: NeededWindow) -> list[SourceStretch]:
        """The stretches that hold rows of a source's window."""
        return [
            SourceStretch(each.start, each.stop, int(each.counts[needed.source]), each.sequence)
            for each in self.stretches
            if each.start < needed.stop_row
            and each.stop > needed.first_row
            and each.sequence.weights[needed.source]
        ]

    def agrees(self, other: Leg) -> bool:
        """Whether both have the same rows from where the later one starts."""
        row = max(self.row, other.row)
        return bool(
            (self.weights_at(row) == other.weights_at(row)).all()
            and (self.counts_at(row) == other.counts_at(row)).all()
        )

    def serves(self, point: MixturePoint, row: int, step_rows: int, order: LegOrder | None = None) -> bool:
        """Whether this leg, which has been planned, holds what a leg from ``row`` on would."""
        if not self.row <= row <= self.stop or step_rows != self._step_rows:
            return False
        # both number the steps from there on alike
        if self.point.steps_row - point.steps_row != (self.point.steps - point.steps) * step_rows:
            return False
        if (row, point, order or LegOrder(step_rows, row)) == (self.row, self.point, self.order):
            return True
        if not self.stretches or (point.shares is None) != (self.point.shares is None):
            return False
        other = MixtureLeg(self.mixture, point, row, step_rows, order)
        if other.stop != self.stop or self.order.groups_from(self.row, row) != other.order.groups_from(
            row, row
        ):
            return False
        return all(
            mine.stop == theirs.stop
            and (mine.sequence.weights == theirs.sequence.weights).all()
            and (mine.counts_at(row) == theirs.counts_at(row)).all()
            for mine, theirs in zip(reversed(self.stretches), reversed(other.stretches), strict=False)
            if mine.start <= row or mine.start == theirs.start
        )

    # --- windows

    @cached_property
    def windows(self) -> list[NeededWindow]:
        """The source windows that hold rows of the leg."""
        if not self.stretches:
            return []
        last = self.stretches[-1].counts_at(self.stop)
        first = self.counts_at(self.row)
        merged = heapq.merge(
            *(
                self._windows_of(source, int(first[source]), int(last[source]))
                for source in range(len(self.mixture.sources))
            ),
            key=lambda window: (window.first_row, window.source),
        )
        return list(merged)

    def _windows_of(self, source: int, first: int, last: int) -> Iterator[NeededWindow]:
        if first == last:
            # of the window that it stands in, no row is needed here
            return
        windows = self.mixture.sources[source].windows(first)
        found = list(takewhile(lambda window: window.start < last, windows))
        starts, stops = np.array([(each.start, each.stop) for each in found], np.int64).reshape(-1, 2).T
        first_rows = self.places(source, np.maximum(starts, first)).tolist()
        last_rows = self.places(source, np.minimum(stops, last) - 1).tolist()
        for window, first_row, last_row in zip(found, first_rows, last_rows, strict=True):
            rows = first_row, last_row + 1
            if self.order.is_grouped:
                first_row, stop_row = self.order.widen(self.row, *rows)
                rows = max(first_row, self.row), min(stop_row, self.stop)
            yield NeededWindow(source, window, *rows)

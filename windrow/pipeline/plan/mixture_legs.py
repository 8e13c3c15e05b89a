"""The legs of a mixture that have been opened, each as an epoch: where a `Program` of a mixture gets its plans."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.cursor import Cursor, MixturePoint
from windrow.pipeline.plan.mixed_step_places import divide_rows_of_source, divide_sequences_of_source
from windrow.pipeline.plan.mixture import KEPT_LEGS, Mixture, MixtureLeg
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
from windrow.shuffle.order.permutation import Permutation
from windrow.shuffle.order.round_runs import RoundRuns, scatter_window
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.sequence_places import SequencePlaces
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.window_order import WindowOrder


class MixtureLegs:
    """By epoch, the legs that have been opened in this process.

    ``sizes`` holds the bytes of each block, which tasks of about ``task_bytes`` read. With packing, a leg counts
    sequences, and all else counts tokens.
    """

    def __init__(self, mixture: Mixture, shards: int, sizes: NDArray[np.int64], task_bytes: int) -> None:
        self.mixture = mixture
        self._row_tokens = mixture.row_tokens
        self._shards = shards
        self._sizes = sizes
        self._task_bytes = task_bytes
        # what `Mixture.leg` plans them from; the mixture keeps the plans of the latest
        self._opened: dict[int, tuple[MixturePoint, int, int]] = {}
        self._parts: dict[int, EpochParts] = {}

    def _start_of(self, cursor: Cursor, batch_size: int) -> tuple[MixturePoint, int, int]:
        return cursor.mixed or self.mixture.start, cursor.row // self._row_tokens, self._shards * batch_size

    def open(self, cursor: Cursor, batch_size: int) -> bool:
        """Plan a leg from a cursor on, as its epoch; returns whether that was planned otherwise before."""
        is_open, start = cursor.epoch in self._opened, self._start_of(cursor, batch_size)
        if is_open and self.leg(cursor.epoch).serves(*start):
            return False
        self._opened[cursor.epoch] = start
        self._parts.pop(cursor.epoch, None)
        return is_open

    def differs(self, cursor: Cursor, batch_size: int) -> bool:
        """Whether an epoch was opened with other shares, or from rows that were counted otherwise."""
        is_open, planned = cursor.epoch in self._opened, self.mixture.leg(*self._start_of(cursor, batch_size))
        return is_open and not self.leg(cursor.epoch).agrees(planned)

    def is_open(self, epoch: int) -> bool:
        """Whether an epoch has been planned: not yet where a restarted coordinator has not heard of it again."""
        return epoch in self._opened

    def passed_change(self, epoch: int, row: int) -> int | None:
        """The first row at which a later epoch changed shares, if ``row`` of this one lies behind it, else None."""
        if not self.is_open(epoch):
            return None
        own = self.leg(epoch)
        # a step in which the mixture ends counts as taken, and there are no rows behind the end
        row = min(row, own.stop)
        later = sorted(
            (start[1], other)
            for other, start in self._opened.items()
            if other > epoch and own.row <= start[1] < row
        )
        return next((first for first, other in later if not own.agrees(self.leg(other))), None)

    def has_rows_at(self, cursor: Cursor) -> bool:
        """Whether the mixture has a row at a cursor."""
        leg = self.mixture.leg(*self._start_of(cursor, 1))
        return leg.stop > leg.row

    def leg(self, epoch: int) -> MixtureLeg:
        """The leg of an epoch; before any was opened, the mixture's start."""
        start = self._opened.get(epoch)
        if start is None:
            start = self._opened[epoch] = self._start_of(Cursor(epoch), 1)
        return self.mixture.leg(*start)

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
        at = self.mixture.cursor(epoch, leg.point_at(number), number)
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
        leg, plan = self.leg(work.epoch), self.window(work.epoch, work.window)
        needed, size = leg.windows[work.window], self.mixture.round_rows
        first_row, stop_row = leg.row * self._row_tokens, leg.stop * self._row_tokens
        layouts = tuple(
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
                round_rows=size * self._row_tokens,
                first_round=needed.first_row // size,
                stop_round=-(-needed.stop_row // size),
                first_row=first_row,
                stop_row=stop_row,
            )
            for shards in destinations
        )
        before = plan.rows_before(rows)
        source, window = self.mixture.sources[needed.source], needed.window
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

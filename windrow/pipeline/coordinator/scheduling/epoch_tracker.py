"""Tracks what is known of each epoch: its row counts, and how it is assigned to shards."""

from __future__ import annotations

from collections.abc import Collection

from windrow.pipeline.coordinator.scheduling.events import Opened, ShapeOf
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.epoch_shape import EpochCounts
from windrow.pipeline.tasks.task import Work
from windrow.shuffle.order.shard_assignment import ShardAssignment


class EpochTracker:
    """The epochs that are read or prepared; ``shape_of`` is as in `Scheduler`.

    An epoch that no shard has opened yet is expected to be assigned as the latest opened one.
    """

    def __init__(self, shape_of: ShapeOf) -> None:
        self._shape_of = shape_of
        self._counts: dict[int, EpochCounts] = {}
        self._assignments: dict[int, ShardAssignment] = {}
        self._latest_assignment: ShardAssignment | None = None
        self._latest_epoch = -1

    @property
    def is_any_opened(self) -> bool:
        """Whether a shard has opened an epoch, so that others can be expected."""
        return self._latest_assignment is not None

    def counts(self, epoch: int) -> EpochCounts:
        """The known row counts of an epoch."""
        if epoch not in self._counts:
            self._counts[epoch] = EpochCounts(self._shape_of(epoch))
        return self._counts[epoch]

    def is_being_counted(self, epoch: int) -> bool:
        """Whether an earlier epoch is about to provide the counts that this one lacks."""
        if self.counts(epoch).complete:
            return False
        return any(not counts.complete for other, counts in self._counts.items() if other < epoch)

    def assignment(self, epoch: int) -> ShardAssignment | None:
        """The shard assignment an epoch was opened with, or the one expected if it is not open yet."""
        if epoch in self._assignments or self._latest_assignment is None:
            return self._assignments.get(epoch)
        return self._latest_assignment.from_row(0, None)

    def opened_assignment(self, epoch: int) -> ShardAssignment | None:
        """The shard assignment an epoch was opened with, or None."""
        return self._assignments.get(epoch)

    def first_slice(self, key: Key, place: Place) -> int | None:
        """The first slice of a window that is needed at a place of its epoch; None: the window is not needed."""
        counts = self._counts.get(key[0])
        # an epoch that nobody has opened yet is needed from its first window on
        return 0 if counts is None else counts.shape.first_kept(key[1], place)

    def open(self, event: Opened) -> None:
        epoch, counts = event.place.epoch, self.counts(event.place.epoch)
        if epoch not in self._assignments or event.place.window < counts.first_window:
            counts.start_at(event.place.window, event.first_row)
        self._assignments[epoch] = event.assignment
        if epoch >= self._latest_epoch:
            # a shard that opens an earlier epoch late does not predict the next one's assignment
            self._latest_epoch, self._latest_assignment = epoch, event.assignment

    def record_rows(self, work: Work, rows: int, started: Collection[int]) -> None:
        """Record the rows of a part; ``started`` are the epochs of which windows are held or being prepared."""
        counts = self._counts.get(work.epoch)
        # rows of a mixture are known, and a late task can be one of an earlier plan
        if counts is None or counts.shape.rounds is not None:
            return
        was_complete = counts.complete
        counts.record(work.window, work.part, rows)
        if counts.complete and not was_complete:
            # with counts complete, epochs not started yet can skip the counting stage
            for epoch in [e for e, other in self._counts.items() if not other.complete and e not in started]:
                del self._counts[epoch]

    def replan(self, epoch: int) -> None:
        """The shape of an epoch has changed."""
        self._counts.pop(epoch, None)

    def forget_before(self, oldest: int | None) -> None:
        """Forget the epochs before the oldest one that a shard needs; None: no shard needs any."""
        for epoch in [epoch for epoch in self._counts if oldest is None or epoch < oldest]:
            del self._counts[epoch]
            self._assignments.pop(epoch, None)

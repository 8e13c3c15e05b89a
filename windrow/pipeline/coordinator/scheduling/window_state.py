"""The scheduler's state of one window: parts that wait, run, and are finished, and their bytes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from windrow.pipeline.coordinator.scheduling.events import Finished, Overflowed
from windrow.pipeline.coordinator.scheduling.memory_limit import MemoryLimit
from windrow.pipeline.plan.epoch_shape import Part, Stage
from windrow.pipeline.tasks.task import Work
from windrow.shuffle.order.shard_assignment import ShardAssignment

logger = logging.getLogger(__name__)


@dataclass
class WindowTotals:
    """Sums over the windows of a scheduler, updated with each change: it needs them at every event."""

    held_bytes: int = 0
    started_bytes: int = 0
    # the sum of the output limits of running tasks
    allowed_bytes: int = 0
    running: int = 0


class WindowState:
    """The parts of one window: which wait, run, and are held.

    ``assignment`` is the shard assignment that it is prepared for. ``running`` holds the expected
    output of each task. Its changes go into ``totals``, of which ``started_bytes`` are the estimates of all parts
    that have been started.
    """

    def __init__(
        self,
        epoch: int,
        window: int,
        attempt: int,
        *,
        parts: Sequence[Part],
        stages: Sequence[Stage],
        slices: int,
        assignment: ShardAssignment,
        totals: WindowTotals,
    ) -> None:
        self.assignment = assignment
        self._totals = totals
        self.epoch, self.window, self.attempt = epoch, window, attempt
        self.parts = parts
        self.stages = stages
        self.running: dict[Work, int] = {}
        # output limits of running tasks that have one
        self._max_bytes: dict[Work, int] = {}
        self.finished_parts = 0  # that have passed their last stage
        # whether every part has passed its last stage; kept up to date, since it is asked for at every event
        self.complete = not parts
        self._started_bytes = 0
        # lower bounds of parts whose output exceeded its limit
        self._min_bytes: dict[int, int] = {}
        self._waiting = [deque(range(len(parts))), *(deque[int]() for _ in stages[1:])]
        self._unordered: dict[int, int] = {}
        self._slice_bytes = [0] * slices
        self.first_kept = 0  # the first slice that is not released
        # updated incrementally: a window can have thousands of tasks
        self._unplaced_bytes = self._placed_bytes = 0

    @property
    def key(self) -> tuple[int, int]:
        return self.epoch, self.window

    @property
    def held_bytes(self) -> int:
        """Bytes of held outputs, and expected bytes of running tasks."""
        return self._placed_bytes + self._unplaced_bytes

    @property
    def measured_bytes(self) -> int:
        """Bytes of held outputs."""
        return self._placed_bytes + sum(self._unordered.values())

    def total_bytes(self, memory: MemoryLimit) -> int:
        """Bytes of the whole window: measured, and expected for parts not read yet."""
        measured = sum(self._slice_bytes) + sum(self._unordered.values())
        left = {*self._waiting[0], *(work.part for work in self.running if work.stage == 0)}
        return measured + sum(self.estimate_bytes(part, memory) for part in left)

    def estimate_bytes(self, part: int, memory: MemoryLimit) -> int:
        """Expected output of a part."""
        return max(memory.estimate_bytes(self.parts[part]), self.min_bytes(part))

    def min_bytes(self, part: int) -> int:
        """Lower bound of a part's output, as measured so far."""
        return self._min_bytes.get(part, 0)

    @property
    def ready(self) -> float:
        """The share of its work that is done."""
        done = self.finished_parts * len(self.stages) + len(self._unordered)
        return done / (len(self.parts) * len(self.stages)) if self.parts else 1.0

    @property
    def fully_read(self) -> bool:
        """Whether every part has passed its first stage."""
        return not self._waiting[0] and all(work.stage > 0 for work in self.running)

    def is_waiting(self, work: Work) -> bool:
        """Whether a task has not started."""
        return work.part in self._waiting[work.stage]

    def waiting(self, *, ordered: bool, limit: int) -> Iterator[tuple[Work, int]]:
        """Up to ``limit`` tasks per stage that can start now, with the bytes that each adds.

        Later stages come first: they turn held data into consumable data. A later stage's output
        replaces its input, so it adds nothing.
        """
        for stage in reversed(range(len(self.stages))):
            if self.stages[stage].needs_order and not ordered:
                continue
            if self.stages[stage].needs_window and not self.fully_read:
                continue
            for part in list(islice(self._waiting[stage], limit)):
                work = Work(self.epoch, self.window, part, stage, self.attempt)
                yield work, (self.parts[part].size_bytes if stage == 0 else 0)

    def start(self, work: Work, size_bytes: int, max_bytes: int | None = None) -> None:
        """Record that a task was started, with an output limit of ``max_bytes`` if given."""
        self._waiting[work.stage].remove(work.part)
        if work.stage == 0:
            self._add_started(self.parts[work.part].size_bytes)
        self.running[work] = size_bytes
        self._totals.running += 1
        if max_bytes is not None:
            self._max_bytes[work] = max_bytes
            self._totals.allowed_bytes += max_bytes
        self._add_unplaced(size_bytes)

    def update_estimates(self, memory: MemoryLimit) -> None:
        """Raise the expected output of running tasks to what is expected now."""
        for work, size_bytes in self.running.items():
            if work.stage == 0:
                max_bytes = self._max_bytes.get(work)
                expected = self.estimate_bytes(work.part, memory)
                now_bytes = max(size_bytes, expected if max_bytes is None else min(expected, max_bytes))
                self.running[work] = now_bytes
                self._add_unplaced(now_bytes - size_bytes)

    def finish(self, event: Finished) -> None:
        """Record a task's output."""
        work = event.work
        self._add_unplaced(-self._end(work) - self._unordered.pop(work.part, 0))
        if work.stage + 1 < len(self.stages):
            self._unordered[work.part] = sum(event.slice_bytes)
            self._add_unplaced(self._unordered[work.part])
            self._waiting[work.stage + 1].append(work.part)
            return
        self.finished_parts += 1
        self.complete = self.finished_parts == len(self.parts)
        for i, size in enumerate(event.slice_bytes):
            self._slice_bytes[i] += size
        self._add_placed(sum(event.slice_bytes[self.first_kept :]))

    def overflow(self, event: Overflowed) -> None:
        """A task stopped at its output limit: its part waits again."""
        work = event.work
        self._add_unplaced(-self._end(work))
        self._add_started(-self.parts[work.part].size_bytes)
        self._min_bytes[work.part] = max(self.min_bytes(work.part), event.shortfall.min_bytes)
        self._waiting[work.stage].appendleft(work.part)
        text = "epoch %d, window %d, part %d: its task stopped at its output limit and is repeated, with %d bytes"
        logger.debug(text, work.epoch, work.window, work.part, self.min_bytes(work.part))

    def _end(self, work: Work) -> int:
        self._totals.allowed_bytes -= self._max_bytes.pop(work, 0)
        self._totals.running -= 1
        return self.running.pop(work)

    def leave(self) -> dict[Work, int]:
        """Take the window out of the totals; returns the tasks that run on, with their expected output."""
        self._add_started(-self._started_bytes)
        self._add_unplaced(-self._unplaced_bytes)
        self._add_placed(-self._placed_bytes)
        left = dict(self.running)
        for work in left:
            self._end(work)
        return left

    def release(self, first_kept: int) -> tuple[int, ...]:
        """Release the slices before ``first_kept``; returns those that were still held."""
        released = tuple(range(self.first_kept, first_kept))
        self._add_placed(-sum(self._slice_bytes[self.first_kept : first_kept]))
        self.first_kept = max(self.first_kept, first_kept)
        return released

    def _add_started(self, size_bytes: int) -> None:
        self._started_bytes += size_bytes
        self._totals.started_bytes += size_bytes

    def _add_unplaced(self, size_bytes: int) -> None:
        self._unplaced_bytes += size_bytes
        self._totals.held_bytes += size_bytes

    def _add_placed(self, size_bytes: int) -> None:
        self._placed_bytes += size_bytes
        self._totals.held_bytes += size_bytes

"""What the scheduler remembers of one window that is being prepared or held."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from windrow.pipeline.coordinator.scheduling.events import Finished, Overflowed, Part, Stage, Work
from windrow.pipeline.coordinator.scheduling.memory_limit import MemoryBudget
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["WindowState"]


class WindowState:
    """The parts of one window: what waits, runs, and is held.

    Parameters
    ----------
    epoch, window, attempt
        Which window, and which try at it.
    parts, stages
        What has to be done.
    slices
        Into how many slices the finished outputs are cut.
    deal
        The deal for which it is prepared.

    Attributes
    ----------
    begun_bytes
        What was expected of the parts that have been begun.
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
    ) -> None:
        self.assignment = assignment
        self.epoch, self.window, self.attempt = epoch, window, attempt
        self.parts = parts
        self.stages = stages
        self.running: dict[Work, int] = {}
        # what those of them may put out that are bounded
        self._max_bytes: dict[Work, int] = {}
        self.finished_parts = 0
        self.started_bytes = 0
        # of parts that have outgrown what they might take: what they take at least
        self._min_bytes: dict[int, int] = {}
        self._waiting = [deque(range(len(parts))), *(deque[int]() for _ in stages[1:])]
        self._unordered: dict[int, int] = {}
        self._slice_bytes = [0] * slices
        self._first_kept = 0
        # kept up, since the scheduler asks at every event, and thousands of tasks may run
        self._unplaced_bytes = 0

    @property
    def key(self) -> tuple[int, int]:
        """(epoch, window)."""
        return self.epoch, self.window

    @property
    def complete(self) -> bool:
        """Every part has passed its last stage."""
        return self.finished_parts == len(self.parts)

    @property
    def first_kept(self) -> int:
        """The first slice that is not let go."""
        return self._first_kept

    @property
    def held_bytes(self) -> int:
        """Bytes of outputs held, and expected of the tasks that run."""
        return sum(self._slice_bytes[self._first_kept :]) + self._unplaced_bytes

    @property
    def measured_bytes(self) -> int:
        """Bytes of outputs held."""
        return sum(self._slice_bytes[self._first_kept :]) + sum(self._unordered.values())

    @property
    def allowed_bytes(self) -> int:
        """What the tasks that run may put out, as far as they are bounded."""
        return sum(self._max_bytes.values())

    def total_bytes(self, memory_budget: MemoryBudget) -> int:
        """What the whole window will hold: as measured, and for other parts as expected."""
        measured = sum(self._slice_bytes) + sum(self._unordered.values())
        left = {*self._waiting[0], *(work.part for work in self.running if work.stage == 0)}
        return measured + sum(self.estimate_bytes(part, memory_budget) for part in left)

    def estimate_bytes(self, part: int, memory_budget: MemoryBudget) -> int:
        """What a part will put out."""
        return max(memory_budget.estimate_bytes(self.parts[part]), self.min_bytes(part))

    def min_bytes(self, part: int) -> int:
        """What a part puts out at least, as far as that has been measured."""
        return self._min_bytes.get(part, 0)

    @property
    def ready(self) -> float:
        """The share of its work that is done."""
        done = self.finished_parts * len(self.stages) + len(self._unordered)
        return done / (len(self.parts) * len(self.stages)) if self.parts else 1.0

    @property
    def fully_read(self) -> bool:
        """Every part has passed its first stage."""
        return not self._waiting[0] and all(work.stage > 0 for work in self.running)

    def is_waiting(self, work: Work) -> bool:
        """Whether a task has yet to start."""
        return work.part in self._waiting[work.stage]

    def waiting(self, *, ordered: bool, limit: int) -> Iterator[tuple[Work, int]]:
        """At most ``limit`` tasks a stage that could start now, with the bytes that each would add.

        Later stages come first: they turn what is held into what can be consumed. What
        a later stage puts out takes the room of its input, so it adds nothing.
        """
        for stage in reversed(range(len(self.stages))):
            if self.stages[stage].needs_order and not ordered:
                continue
            for part in list(islice(self._waiting[stage], limit)):
                work = Work(self.epoch, self.window, part, stage, self.attempt)
                yield work, (self.parts[part].size_bytes if stage == 0 else 0)

    def start(self, work: Work, size_bytes: int, max_bytes: int | None = None) -> None:
        """Note that a task runs, which may put out at most ``max_bytes``."""
        self._waiting[work.stage].remove(work.part)
        if work.stage == 0:
            self.started_bytes += self.parts[work.part].size_bytes
        self.running[work] = size_bytes
        if max_bytes is not None:
            self._max_bytes[work] = max_bytes
        self._unplaced_bytes += size_bytes

    def update_estimates(self, memory_budget: MemoryBudget) -> None:
        """Expect of tasks that run what is expected now, where that is more than when they were started."""
        for work, size_bytes in self.running.items():
            if work.stage == 0:
                max_bytes = self._max_bytes.get(work)
                expected = self.estimate_bytes(work.part, memory_budget)
                now_bytes = max(size_bytes, expected if max_bytes is None else min(expected, max_bytes))
                self.running[work] = now_bytes
                self._unplaced_bytes += now_bytes - size_bytes

    def finish(self, event: Finished) -> None:
        """Note what a task put out."""
        work = event.work
        self._unplaced_bytes -= self._end(work) + self._unordered.pop(work.part, 0)
        if work.stage + 1 < len(self.stages):
            self._unordered[work.part] = sum(event.slice_bytes)
            self._unplaced_bytes += self._unordered[work.part]
            self._waiting[work.stage + 1].append(work.part)
            return
        self.finished_parts += 1
        for i, size in enumerate(event.slice_bytes):
            self._slice_bytes[i] += size

    def overflow(self, event: Overflowed) -> None:
        """A task has ended with nothing: its part waits again."""
        work = event.work
        self._unplaced_bytes -= self._end(work)
        self.started_bytes -= self.parts[work.part].size_bytes
        self._min_bytes[work.part] = max(self.min_bytes(work.part), event.min_bytes)
        self._waiting[work.stage].appendleft(work.part)

    def _end(self, work: Work) -> int:
        self._max_bytes.pop(work, None)
        return self.running.pop(work)

    def release(self, first_kept: int) -> tuple[int, ...]:
        """Let go of the slices before ``first_kept``; returns those that were still held."""
        released = tuple(range(self._first_kept, first_kept))
        self._first_kept = max(self._first_kept, first_kept)
        return released

"""The scheduler: decides which tasks run and which windows are released, from events alone.

It does no I/O, holds no data, starts no threads and reads no clock. `Scheduler.handle` takes
one event and the time, and returns instructions, which a driver carries out on an executor.
No decision here affects the order of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

from windrow.pipeline.coordinator.scheduling.epoch_tracker import EpochTracker
from windrow.pipeline.coordinator.scheduling.events import (
    Abort,
    Acknowledged,
    AttemptLost,
    Closed,
    Drop,
    Event,
    Finished,
    Heartbeat,
    Instruction,
    Limits,
    Opened,
    Overflowed,
    Replanned,
    Run,
    ShapeOf,
)
from windrow.pipeline.coordinator.scheduling.memory_limit import MemoryLimit
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key, ShardTracker, WindowPriorities
from windrow.pipeline.coordinator.scheduling.window_state import WindowState, WindowTotals
from windrow.pipeline.tasks.task import Work
from windrow.shuffle.order.shard_assignment import ShardAssignment


@dataclass
class _Near:
    """The windows that shards wait for, and these with those that are prefetched, in order.

    They follow from the ``basis`` until an epoch's shape changes. ``unfinished`` are those that were not complete when
    they were last looked at: a mixture has hundreds of windows here, and a task that ends is no reason to look at all.
    """

    basis: tuple[Any, ...]
    urgent: dict[Key, None]
    all: dict[Key, None]
    unfinished: dict[Key, None]


class Scheduler:
    """Prepares the windows that shards need within a memory limit, and releases the rest.

    ``shape_of`` is a pure function from an epoch's number to its shape, with the row counts known by then.
    """

    def __init__(self, limits: Limits, shape_of: ShapeOf) -> None:
        self._limits = limits
        self._windows: dict[Key, WindowState] = {}
        self._totals = WindowTotals()
        self._attempts = count()
        self._stale: dict[Work, int] = {}
        self.epochs = EpochTracker(shape_of)
        self.shards = ShardTracker(limits, self.epochs.first_slice)
        self.memory = MemoryLimit(limits)
        self._priorities = WindowPriorities(limits, self.shards, self.epochs.counts)
        self._near: _Near | None = None
        self._instructions: list[Instruction] = []
        self.dropped_windows = 0
        # the first window that could start a task now if there were more memory
        self.short_of_memory: Key | None = None
        self.last_progress = 0.0

    # --- queries of the driver

    @property
    def held_bytes(self) -> int:
        """Bytes of held outputs, and expected bytes of running tasks."""
        return self._totals.held_bytes + sum(self._stale.values())

    @property
    def running(self) -> int:
        return self._totals.running + len(self._stale)

    @property
    def done(self) -> bool:
        """Whether all shards are closed."""
        return not self.shards.progress

    def window(self, epoch: int, window: int) -> WindowState | None:
        """The state of a window that is held or being prepared, or None."""
        return self._windows.get((epoch, window))

    def are_complete(self, epoch: int, windows: Sequence[int]) -> bool:
        """Whether every part of these windows is ready; shards ask again and again, and a round has hundreds."""
        for window in windows:
            state = self._windows.get((epoch, window))
            if state is None or not state.complete:
                return False
        return True

    @property
    def memory_bytes(self) -> int:
        """The limit for outputs."""
        return self.memory.limit_bytes(0)

    @property
    def blocks_bytes(self) -> int:
        """Bytes of the blocks in running tasks if they count against the limit, else 0."""
        return self.memory.blocks_bytes(self.running)

    @property
    def windows_ready(self) -> dict[Key, float]:
        """The ready share of each window that is held or being prepared, in order."""
        return {key: self._windows[key].ready for key in sorted(self._windows)}

    # --- events

    def handle(self, event: Event, now: float) -> list[Instruction]:
        """Handle one event; return the instructions, in order."""
        if self.shards.start(now):
            self.last_progress = now
        if isinstance(event, Finished):
            self._finish(event, now)
        elif isinstance(event, Overflowed):
            self._overflow(event, now)
        elif isinstance(event, Opened):
            self._open(event, now)
        elif isinstance(event, Acknowledged):
            if self.shards.acknowledge(event.shard, event.place, now):
                self.last_progress = now
                self._release()
        elif isinstance(event, Heartbeat):
            self.shards.heartbeat(event.shard, now)
        elif isinstance(event, Closed):
            self.shards.close(event.shard)
            self._release()
        elif isinstance(event, AttemptLost):
            window = self._windows.get((event.epoch, event.window))
            if window is not None and window.attempt == event.attempt:
                self._drop(window.key, rebuild=True)
        elif isinstance(event, Replanned):
            self._near = None
            for key in [key for key in self._windows if key[0] == event.epoch]:
                self._drop(key, rebuild=True)
            self.epochs.replan(event.epoch)
        self._start_work(now)
        instructions, self._instructions = self._instructions, []
        return instructions

    def _open(self, event: Opened, now: float) -> None:
        self._near = None
        self.epochs.open(event)
        for (epoch, window), state in list(self._windows.items()):
            if state.assignment != self.epochs.assignment(epoch):
                self._drop((epoch, window))
        self.shards.open(event.shard, event.place, now)
        self._drop_incomplete()
        self.last_progress = now
        self._release()

    def _drop_incomplete(self) -> None:
        """Drop windows that lack slices for a shard that has returned to them."""
        for key, window in list(self._windows.items()):
            first_kept = self.shards.first_kept(key)
            if first_kept is not None and first_kept < window.first_kept:
                self._drop(key, rebuild=True)

    def _finish(self, event: Finished, now: float) -> None:
        work = event.work
        if event.is_counted:
            self.epochs.record_rows(work, event.rows, {epoch for epoch, _ in self._windows})
        window = self._take_result(work, now)
        if window is None:
            return
        if work.stage == 0:
            self.memory.measure(window.parts[work.part], event)
        window.finish(event)
        self._update_estimates()
        # running tasks can turn out smaller than expected, but the last task of a window needs memory too
        if window.measured_bytes > self.memory.limit_bytes(0 if window.complete else 1):
            self._abort(window)

    def _overflow(self, event: Overflowed, now: float) -> None:
        window = self._take_result(event.work, now)
        if window is not None:
            self.memory.measure_share(window.parts[event.work.part], event.shortfall)
            window.overflow(event)
            self._update_estimates()

    def _take_result(self, work: Work, now: float) -> WindowState | None:
        """The window of a task that has ended; None if the window was dropped meanwhile."""
        self.last_progress = now
        is_stale = self._stale.pop(work, None) is not None
        return None if is_stale else self._windows[work.epoch, work.window]

    def _update_estimates(self) -> None:
        """Raise the expected output of tasks that started before anything was measured."""
        if self.memory.sizes.excess_bytes > 0:
            for window in self._windows.values():
                window.update_estimates(self.memory)

    # --- releasing

    def _release(self) -> None:
        """Release what every shard has acknowledged."""
        for key, window in list(self._windows.items()):
            first_kept = self.shards.first_kept(key)
            if first_kept is None:
                self._drop(key)
            else:
                released = window.release(first_kept)
                if released:
                    self._instructions.append(Drop(*key, slices=released))
        self.epochs.forget_before(self.shards.oldest_epoch())
        self._priorities.forget_passed()

    def _drop(self, key: Key, *, rebuild: bool = False, evicts: bool = False) -> None:
        window = self._windows.pop(key)
        self._stale.update(window.leave())
        if rebuild:
            self._near = None
        self._instructions.append(Drop(*key, rebuild=rebuild, evicts=evicts))
        self.dropped_windows += rebuild

    def _evict_windows(self, key: Key, size_bytes: int, urgent: Mapping[Key, None], now: float) -> None:
        """Evict windows to free memory for one that a shard waits for.

        First windows that no shard waits for, farthest first; then windows held only for shards
        that have been silent for a while, oldest first. The oldest urgent window can also evict
        later urgent ones: its readers then advance, so every shard makes progress in the end.
        """
        ahead = [other for other in self._windows if other not in urgent and other > key]
        lagging = [other for other in self._windows if other != key and self.shards.is_lagging(other, now)]
        first = self._priorities.needed_together(next(iter(urgent)))
        later = [other for other in urgent if other not in first] if key in first else []
        for other in (*sorted(ahead, reverse=True), *sorted(lagging), *reversed(later)):
            if self._totals.held_bytes + size_bytes <= self.memory.limit_bytes():
                return
            if other in self._windows and self._windows[other].held_bytes:
                if self.shards.is_lagging(other, now):
                    self._priorities.abandon(other)
                self._drop(other, rebuild=True, evicts=True)

    # --- starting tasks

    def _start_work(self, now: float) -> None:
        self.short_of_memory = None
        free = self._limits.slots - self.running
        if free <= 0 or not self.epochs.is_any_opened:
            return
        nearest = self._find_near(now)
        urgent, near = nearest.urgent, nearest.all
        blocked = False
        for key in chain(list(nearest.unfinished), self._read_ahead(near, now)):
            if free <= 0:
                return
            started = self._windows.get(key)
            if started is not None and started.complete:
                nearest.unfinished.pop(key, None)
                continue
            if key not in urgent and self.epochs.is_being_counted(key[0]):
                break
            assignment = self.epochs.assignment(key[0])
            assert assignment is not None, "the epoch of a window to prepare has a shard assignment"
            window = self._window(key, assignment)
            ordered = self.epochs.counts(key[0]).is_ordered(key[1], assignment)
            for work, expected_bytes in window.waiting(ordered=ordered, limit=free):
                if free <= 0:
                    return
                size_bytes = window.estimate_bytes(work.part, self.memory) if expected_bytes else 0
                if self.running and not self.memory.can_grow(self.held_bytes + size_bytes, self.running + 1):
                    return
                if key not in near and not self._can_read_ahead(expected_bytes):
                    return
                # a task that does not fit blocks all later ones, except those that need no memory
                granted = None if blocked else self._find_memory(window, work, size_bytes, urgent, now)
                blocked = granted is None
                if blocked and size_bytes:
                    if key in near:
                        self.short_of_memory = self.short_of_memory or key
                    break
                self._start(window, work, granted or 0, is_short=(granted or 0) < size_bytes)
                free -= 1
            if free > 0 and not ordered and window.fully_read and key in urgent:
                free -= self._count_next_part(key, assignment)

    def _find_near(self, now: float) -> _Near:
        basis = self._priorities.basis(now)
        if self._near is None or self._near.basis != basis:
            urgent = self._priorities.urgent(now)
            near = urgent | dict.fromkeys(self._priorities.ahead(urgent, now))
            self._near = _Near(basis, urgent, near, dict(near))
        return self._near

    def _read_ahead(self, near: Mapping[Key, None], now: float) -> Iterator[Key]:
        """Windows beyond the prefetched ones, where windows are smaller than the largest and workers idle.

        Windows of one or two tasks would otherwise leave workers idle until shards advance.
        """
        if self.running < self._limits.slots and self._can_read_ahead(1):
            for key in self._priorities.read_ahead(near, now):
                if not self.epochs.counts(key[0]).complete:
                    return
                yield key

    def _can_read_ahead(self, expected_bytes: int) -> bool:
        """Whether the windows started so far leave this many expected bytes for read-ahead."""
        return self._totals.started_bytes + expected_bytes <= self._limits.read_ahead_bytes

    def _find_memory(
        self, window: WindowState, work: Work, size_bytes: int, urgent: Mapping[Key, None], now: float
    ) -> int | None:
        """The bytes that a task may be expected to output, after eviction if needed; None: not enough memory now."""
        if not self._fits(size_bytes) and window.key in urgent:
            self._evict_windows(window.key, size_bytes, urgent, now)
        if self._fits(size_bytes):
            return size_bytes
        together = [
            self._windows[key] for key in self._priorities.needed_together(window.key) if key in self._windows
        ]
        together_bytes = sum(each.held_bytes for each in together)
        left = self.memory.limit_bytes() - together_bytes
        if any(each.running for each in together) or size_bytes <= left:
            return None
        if left <= 0 or not self._limits.bounds_tasks or window.min_bytes(work.part) > left:
            self._abort(window)
            return None
        # the expected size is an estimate: a task that runs alone can have all that is left
        return left if not self.running and self.held_bytes == together_bytes else None

    def _count_next_part(self, key: Key, assignment: ShardAssignment) -> int:
        """Read on, one part at a time, to count rows that a window's last step depends on.

        A run that starts in the middle of an epoch counts what lies before it, too. These reads
        must not wait for memory: the window that holds the memory waits for them.
        """
        unknown = self.epochs.counts(key[0]).first_unknown()
        if unknown is None:
            return 0
        window = self._window((key[0], unknown[0]), assignment)
        work = Work(key[0], unknown[0], unknown[1], 0, window.attempt)
        if work in window.running or not window.is_waiting(work):
            return 0
        self._start(window, work, window.estimate_bytes(work.part, self.memory), is_bounded=False)
        return 1

    def _start(
        self,
        window: WindowState,
        work: Work,
        size_bytes: int,
        *,
        is_short: bool = False,
        is_bounded: bool = True,
    ) -> None:
        max_bytes = None
        if self._limits.bounds_tasks and work.stage == 0 and is_bounded:
            max_bytes = self.memory.max_output_bytes(
                size_bytes,
                held_bytes=self.held_bytes,
                allowed_bytes=self._totals.allowed_bytes,
                running=self.running,
            )
        window.start(work, size_bytes, max_bytes)
        self._priorities.resume(window.key)
        samples = max_bytes is not None and (is_short or not self.memory.is_measured)
        self._instructions.append(Run(work, max_bytes, samples=samples))

    def _fits(self, size_bytes: int) -> bool:
        return not size_bytes or self.held_bytes + size_bytes <= self.memory.limit_bytes(self.running + 1)

    def _abort(self, window: WindowState) -> None:
        window_bytes = max(window.held_bytes, window.total_bytes(self.memory))
        self._instructions.append(
            Abort(*window.key, window_bytes, self.memory.limit_bytes(), self.memory.sizes)
        )

    def _window(self, key: Key, assignment: ShardAssignment) -> WindowState:
        if key not in self._windows:
            shape = self.epochs.counts(key[0]).shape
            self._windows[key] = WindowState(
                *key,
                next(self._attempts),
                parts=shape.windows[key[1]],
                stages=shape.stages,
                slices=shape.slices_of(key[1], self._limits.slices),
                assignment=assignment,
                totals=self._totals,
            )
            first_kept = self.shards.first_kept(key)
            if first_kept:
                self._windows[key].release(first_kept)
        return self._windows[key]

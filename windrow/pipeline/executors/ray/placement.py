"""Decides where tasks run, and which ones to place again because they send no heartbeats.

Ray cannot always run the tasks that it has accepted. Consumers can hold every CPU for the whole job. A
worker that dies before it has registered blocks its start slot, and the lease that waits for it, for
``worker_register_timeout_seconds`` (60). Ray detects a dead node only after about 15 s. A silent task is
therefore submitted again, elsewhere, and with ``num_cpus=0`` if no CPU is free. Tasks are idempotent; the
copy that ends first counts.

This is a pure state machine: it does not wait, submit, or read a clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median

# Shortest silence after which a task is placed again; a worker starts faster than that.
MIN_SILENCE_SECONDS = 5.0
# A task that has not started may be queued behind others: its timeout is this multiple of the usual duration.
_TIMEOUT_FACTOR = 4
_MAX_DURATIONS = 32
_MAX_COPIES = 3


@dataclass(frozen=True)
class Placement:
    """The resources that a task requests; ``node`` is a node id, or None to let Ray choose."""

    cpus: float
    node: str | None = None


@dataclass
class Node:
    """A node of the cluster: its id, its CPUs, and its free CPUs."""

    id: str
    cores: int
    free_cpus: float


@dataclass
class _Copy:
    placement: Placement
    since: float
    heartbeat_at: float | None = None
    ended: bool = False

    def last_seen(self) -> float:
        return self.since if self.heartbeat_at is None else self.heartbeat_at


@dataclass
class _Task:
    since: float
    copies: list[_Copy] = field(default_factory=list)


class Planner:
    """Places tasks, each of which requests ``cpus``, and places silent ones again."""

    def __init__(self, cpus: float) -> None:
        self._cpus = cpus
        self._tasks: dict[int, _Task] = {}
        # copies without a CPU that still run after their task has ended, by (task, copy)
        self._leftovers: dict[tuple[int, int], _Copy] = {}
        self._nodes: Sequence[Node] = ()
        self._durations: deque[float] = deque(maxlen=_MAX_DURATIONS)
        self._cpu_granted_at = self._timeouts_reset_at = float("-inf")
        # whether new tasks request no CPU, since none has been free for a while
        self.starved = False
        # Whether others are known to hold all CPUs: a copy without a CPU ran while another copy of the same
        # task still waited for one. Silence alone proves nothing: on a slow machine workers start late.
        self.lacks_cpus = False

    def begin(self, key: int, now: float) -> Placement | None:
        """Place a new task; None if `review` will place it, once a core runs no other task without a CPU."""
        self._tasks[key] = task = _Task(now)
        placement = self._find_core(task) if self.starved else Placement(self._cpus)
        return placement and self._add(task, placement, now)

    def note_heartbeat(self, key: int, copy: int, now: float) -> None:
        """Record that a copy of a task runs."""
        task = self._tasks.get(key)
        if task is not None and copy < len(task.copies):
            task.copies[copy].heartbeat_at = now
            self._note_ran(task, task.copies[copy], now)

    def end(self, key: int, copy: int, now: float) -> list[int]:
        """Record that a copy of a task has ended, and the task with it.

        Returns the other copies that cannot have started, since they wait for a CPU and none is free; these
        are safe to cancel. Others must run on: Ray cancels with an interrupt, which breaks a running import.
        """
        task = self._tasks.pop(key)
        task.copies[copy].ended = True
        self._note_ran(task, task.copies[copy], now)
        self._leftovers.update(
            ((key, at), other)
            for at, other in enumerate(task.copies)
            if not (other.placement.cpus or other.ended)
        )
        if len(task.copies) == 1:
            self._durations.append(now - task.since)
        waiting = (
            at for at, other in enumerate(task.copies) if other.placement.cpus and other.heartbeat_at is None
        )
        return [at for at in waiting if at != copy] if self.starved else []

    def remove(self, key: int) -> None:
        """Remove a task that could not be submitted."""
        self._tasks.pop(key, None)

    def end_copy(self, key: int, copy: int) -> None:
        """Record that a copy has ended, of a task that ended before or still runs."""
        self._leftovers.pop((key, copy), None)
        if key in self._tasks:
            self._tasks[key].copies[copy].ended = True

    def reset_timeouts(self, now: float) -> None:
        """Restart all timeouts: workers were starting, or this process got no CPU time to receive heartbeats."""
        self._timeouts_reset_at = now

    def is_due(self, now: float) -> bool:
        """Whether `review` can have something to place."""
        timeout = self._cpu_timeout(now)
        return self.starved or any(self._is_overdue(task, now, timeout) for task in self._tasks.values())

    def review(self, now: float, nodes: Sequence[Node] | None = None) -> list[tuple[int, int, Placement]]:
        """Place overdue tasks again, on the given nodes or, by default, on those of the last review.

        Returns for each placed task its key, the number of the new copy, and the placement.
        """
        self._nodes = self._nodes if nodes is None else nodes
        if any(node.free_cpus >= self._cpus for node in self._nodes):
            self.starved = False
        timeout = self._cpu_timeout(now)
        due = [key for key, task in self._tasks.items() if self._is_overdue(task, now, timeout)]
        placed = []
        for key in sorted(due, key=lambda key: self._tasks[key].since):
            task = self._tasks[key]
            placement = self._find_free_cpu(task) or self._find_core(task)
            if placement is None:
                continue
            if task.copies and placement.cpus == 0:
                self.starved = self.starved or self._lacks_cpus(task, now, timeout)
            placed.append((key, len(task.copies), self._add(task, placement, now)))
        return placed

    # --- inside

    def _add(self, task: _Task, placement: Placement, now: float) -> Placement:
        task.copies.append(_Copy(placement, now))
        return placement

    def _note_ran(self, task: _Task, copy: _Copy, now: float) -> None:
        with_cpus = [other for other in task.copies if other.placement.cpus]
        if copy.placement.cpus:
            self._cpu_granted_at = now
        elif with_cpus and all(other.heartbeat_at is None and not other.ended for other in with_cpus):
            self.lacks_cpus = True

    def _is_overdue(self, task: _Task, now: float, timeout: float) -> bool:
        if not 0 < len(task.copies) < _MAX_COPIES:
            return not task.copies
        silent = now - max(self._timeouts_reset_at, *(copy.last_seen() for copy in task.copies))
        if any(copy.heartbeat_at is not None for copy in task.copies) or not task.copies[-1].placement.cpus:
            # it has run, or waits only for a worker
            return silent >= max(MIN_SILENCE_SECONDS, self._usual_seconds())
        return silent >= timeout

    def _lacks_cpus(self, task: _Task, now: float, timeout: float) -> bool:
        """Whether a task waits for a CPU, and no task has been granted one for a while."""
        started = any(copy.heartbeat_at is not None for copy in task.copies)
        return not started and now - max(self._cpu_granted_at, self._timeouts_reset_at) >= timeout

    def _usual_seconds(self) -> float:
        """Median duration of tasks, including their wait for a CPU."""
        return median(self._durations) if self._durations else 0.0

    def _cpu_timeout(self, now: float) -> float:
        """Seconds that a task can wait for a CPU; longer if running tasks take long."""
        running = (
            now - copy.since
            for task in self._tasks.values()
            for copy in task.copies
            if copy.heartbeat_at is not None
            and now - copy.heartbeat_at < MIN_SILENCE_SECONDS
            and copy.placement.cpus
        )
        return max(
            MIN_SILENCE_SECONDS, _TIMEOUT_FACTOR * max(self._usual_seconds(), max(running, default=0.0))
        )

    def _find_free_cpu(self, task: _Task) -> Placement | None:
        tried = {copy.placement.node for copy in task.copies}
        free = [node for node in self._nodes if node.free_cpus >= self._cpus and node.id not in tried]
        if not free:
            return None
        node = max(free, key=lambda node: node.free_cpus)
        node.free_cpus -= self._cpus
        return Placement(self._cpus, node.id)

    def _find_core(self, task: _Task) -> Placement | None:
        """Find a core on which no other task runs without a CPU."""
        copies = chain(self._leftovers.values(), *(other.copies for other in self._tasks.values()))
        used = Counter(copy.placement.node for copy in copies if not (copy.placement.cpus or copy.ended))
        tried = {copy.placement.node for copy in task.copies}
        cores = [(node.cores - used[node.id], node.id) for node in self._nodes if node.id not in tried]
        free_cores, node = max(cores, default=(0, ""))
        return Placement(0.0, node) if free_cores > 0 else None

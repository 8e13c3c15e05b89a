"""Decides where tasks run, and which are to be placed again because nothing is heard of them.

Ray is not always able to run what it has accepted. Consumers may hold every CPU for the whole job. A
worker that dies before it has registered keeps its start slot, and the lease that waits for it, for
``worker_register_timeout_seconds`` (60). A node that dies is noticed after a quarter of a minute. So a
task from which nothing is heard is submitted a second time, elsewhere, and without a CPU where none is
free. Tasks are idempotent; whichever copy ends first counts.

Nothing here waits, submits or reads a clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import median

__all__ = ["MIN_SILENCE_SECONDS", "Node", "Placement", "Planner"]

# How long a task may be silent at least before it is placed again: a worker starts in less.
MIN_SILENCE_SECONDS = 5.0
# A task that has not begun may be queued behind others: so many times as long as tasks take as a rule.
_TIMEOUT_FACTOR = 4
_MAX_DURATIONS = 32
_MAX_COPIES = 3


@dataclass(frozen=True)
class Placement:
    """What a task asks for; ``node`` is an id, or None where Ray chooses."""

    cpus: float
    node: str | None = None


@dataclass
class Node:
    """A node of the cluster: its id, its CPUs, and how many of them are free."""

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
    """Places tasks, and places those again that stay silent.

    Parameters
    ----------
    cpus
        What a task asks for.

    Attributes
    ----------
    starved
        Whether tasks are given no CPU, since none has been free for a while.
    lacks_cpus
        Whether that is known to be because others hold all of them: a task without a CPU ran while the
        same task still waited for one. On a slow machine workers of our own may take as long to start.
    """

    def __init__(self, cpus: float) -> None:
        self._cpus = cpus
        self._tasks: dict[int, _Task] = {}
        # copies without a CPU that run although their task has ended, by (task, copy)
        self._leftovers: dict[tuple[int, int], _Copy] = {}
        self._nodes: Sequence[Node] = ()
        self._durations: deque[float] = deque(maxlen=_MAX_DURATIONS)
        self._cpu_granted_at = self._timeouts_reset_at = float("-inf")
        self.starved = self.lacks_cpus = False

    def begin(self, key: int, now: float) -> Placement | None:
        """Place a new task; None: `review` will, once a core has no other task of ours."""
        self._tasks[key] = task = _Task(now)
        placement = self._find_core(task) if self.starved else Placement(self._cpus)
        return placement and self._add(task, placement, now)

    def note_heartbeat(self, key: int, copy: int, now: float) -> None:
        """A copy of a task runs."""
        task = self._tasks.get(key)
        if task is not None and copy < len(task.copies):
            task.copies[copy].heartbeat_at = now
            self._note_ran(task, task.copies[copy], now)

    def end(self, key: int, copy: int, now: float) -> list[int]:
        """A copy of a task has ended, and the task with it.

        Returns the other copies that cannot have begun: they wait for a CPU while there is none. Others
        are better left to themselves: Ray interrupts what runs, which breaks what it is importing.
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
        """A task could not be submitted at all."""
        self._tasks.pop(key, None)

    def end_copy(self, key: int, copy: int) -> None:
        """A copy of a task has ended, which the task did before or does not yet."""
        self._leftovers.pop((key, copy), None)
        if key in self._tasks:
            self._tasks[key].copies[copy].ended = True

    def reset_timeouts(self, now: float) -> None:
        """What was not heard until now says nothing: workers were being started, or nobody listened."""
        self._timeouts_reset_at = now

    def is_due(self, now: float) -> bool:
        """Whether `review` may have something to decide."""
        timeout = self._cpu_timeout(now)
        return self.starved or any(self._is_overdue(task, now, timeout) for task in self._tasks.values())

    def review(self, now: float, nodes: Sequence[Node] | None = None) -> list[tuple[int, int, Placement]]:
        """Place again what is overdue, on the cluster as it is now or, by default, as it was at the last look.

        Returns
        -------
        list
            The key of each task, the number of its copy, and where that is to run.
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
            # it ran, or waits for nothing but a worker
            return silent >= max(MIN_SILENCE_SECONDS, self._usual_seconds())
        return silent >= timeout

    def _lacks_cpus(self, task: _Task, now: float, timeout: float) -> bool:
        """Whether a task waits for a CPU, and none of ours has had one for a while."""
        begun = any(copy.heartbeat_at is not None for copy in task.copies)
        return not begun and now - max(self._cpu_granted_at, self._timeouts_reset_at) >= timeout

    def _usual_seconds(self) -> float:
        """How long tasks take as a rule, their wait for a CPU included."""
        return median(self._durations) if self._durations else 0.0

    def _cpu_timeout(self, now: float) -> float:
        """How long a task may wait for a CPU: longer where tasks that run take long."""
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
        """A core of a node on which none of our tasks runs without a CPU."""
        copies = chain(self._leftovers.values(), *(other.copies for other in self._tasks.values()))
        used = Counter(copy.placement.node for copy in copies if not (copy.placement.cpus or copy.ended))
        tried = {copy.placement.node for copy in task.copies}
        cores = [(node.cores - used[node.id], node.id) for node in self._nodes if node.id not in tried]
        most, node = max(cores, default=(0, ""))
        return Placement(0.0, node) if most > 0 else None

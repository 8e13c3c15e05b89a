"""Submits tasks, some of them more than once, and takes the first answer to each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from windrow.pipeline.executors.ray.placement import Node, Placement, Planner

__all__ = ["Cluster", "Dispatcher", "Submitted"]

# A tick so late means that this process had no core, and heard no heartbeats either.
_LATE_SECONDS = 3.0
_WARN_SECONDS = 1.0


@dataclass(frozen=True)
class Submitted:
    """The references of one copy of a task: its report, the handles of its output, and of what it keeps."""

    first: Any
    output: Any
    kept: Sequence[Any]


@dataclass(frozen=True)
class Cluster:
    """What a dispatcher needs of Ray.

    Attributes
    ----------
    now
        Seconds, from any beginning.
    nodes
        The nodes that are alive, as they are now.
    is_starting
        Whether workers are being started, so that no task can be expected to run.
    cancel
        Withdraws a task by the reference of its report, if it has not begun.
    is_conclusive
        Whether an error that ended a copy would end any other as well.
    spawn
        Runs a coroutine.
    """

    now: Callable[[], float]
    nodes: Callable[[], Sequence[Node]]
    is_starting: Callable[[], bool]
    cancel: Callable[[Any], None]
    is_conclusive: Callable[[Exception], bool]
    spawn: Callable[[Coroutine[Any, Any, None]], None]


@dataclass
class _Task:
    submit: Callable[[int, int, Placement], Submitted]
    take: Callable[[Submitted], Coroutine[Any, Any, None]]
    copies: dict[int, Any] = field(default_factory=dict)


class Dispatcher:
    """Has every task run to its end, wherever the cluster can.

    Parameters
    ----------
    planner
        Decides where each copy of a task runs.
    warn
        Is called while data tasks seem to run without CPUs because others hold all of them, once a
        second at most, until it returns that it has found this so and has warned.
    """

    def __init__(self, planner: Planner, cluster: Cluster, warn: Callable[[], bool]) -> None:
        self._planner = planner
        self._cluster = cluster
        self._warn = warn
        self._warned = False
        self._warn_at = float("-inf")
        self._tasks: dict[int, _Task] = {}
        self._next_key = 0
        self._ticked_at = cluster.now()

    def run(
        self,
        submit: Callable[[int, int, Placement], Submitted],
        take: Callable[[Submitted], Coroutine[Any, Any, None]],
    ) -> None:
        """Run a task.

        Parameters
        ----------
        submit
            Submits one copy, given the task's number, the copy's, and where it is to run.
        take
            Is called with the copy that has ended first, once; what the others give is dropped.
        """
        key, self._next_key = self._next_key, self._next_key + 1
        self._tasks[key] = _Task(submit, take)
        placement = self._planner.begin(key, self._cluster.now())
        if placement is None:
            return
        try:
            self._submit(key, 0, placement)
        except BaseException:
            del self._tasks[key]
            self._planner.remove(key)
            raise

    def note_heartbeat(self, key: int, copy: int) -> None:
        """A copy of a task runs."""
        self._planner.note_heartbeat(key, copy, self._cluster.now())
        self._warn_once()

    def tick(self) -> None:
        """Place again what nothing is heard of; to be called about once a second."""
        now = self._cluster.now()
        late, self._ticked_at = now - self._ticked_at > _LATE_SECONDS, now
        if late or self._cluster.is_starting():
            self._planner.reset_timeouts(now)
        elif self._planner.is_due(now):
            try:
                nodes = self._cluster.nodes()
            except Exception:
                # Ray's control plane is being restarted: the next tick asks again
                return
            self._place(self._planner.review(now, nodes))
        self._warn_once()

    def _place(self, placed: Sequence[tuple[int, int, Placement]]) -> None:
        for key, copy, placement in placed:
            try:
                self._submit(key, copy, placement)
            except Exception as error:
                # nobody who could be told called this: the copy fails as if it had run
                self._watch(key, copy, Submitted(_raise(error), None, ()))

    def _submit(self, key: int, copy: int, placement: Placement) -> None:
        self._watch(key, copy, self._tasks[key].submit(key, copy, placement))

    def _watch(self, key: int, copy: int, submitted: Submitted) -> None:
        self._tasks[key].copies[copy] = submitted.first
        self._cluster.spawn(self._await(key, copy, submitted))

    async def _await(self, key: int, copy: int, submitted: Submitted) -> None:
        failure, answer = None, asyncio.get_running_loop().create_future()
        try:
            answer.set_result(await submitted.first)
        except Exception as error:
            failure = error
        task = self._tasks.get(key)
        if task is not None:
            del task.copies[copy]
        left = task is not None and task.copies
        if task is None or (failure is not None and left and not self._cluster.is_conclusive(failure)):
            # another copy was first or may yet answer: the references go, and with them what they hold
            self._planner.end_copy(key, copy)
            self._refill()
            return
        del self._tasks[key]
        if failure is not None:
            answer.set_exception(failure)
        try:
            for other in self._planner.end(key, copy, self._cluster.now()):
                if other in task.copies:
                    self._cluster.cancel(task.copies[other])
            self._warn_once()
            self._refill()
        finally:
            # whatever goes wrong above, no answer is lost; Ray is not asked for it a second time
            await task.take(replace(submitted, first=answer))

    def _warn_once(self) -> None:
        now = self._cluster.now()
        if self._warned or not self._planner.lacks_cpus or now < self._warn_at:
            return
        self._warn_at = now + _WARN_SECONDS
        # Ray's control plane may be restarting: the next tick asks again
        with suppress(Exception):
            self._warned = self._warn()

    def _refill(self) -> None:
        """Where tasks share cores, one that has ended makes way for the next."""
        if self._planner.starved:
            self._place(self._planner.review(self._cluster.now()))


async def _raise(error: Exception) -> Any:
    raise error

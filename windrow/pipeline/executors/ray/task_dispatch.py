"""Submits map tasks to Ray, silent ones a second time (speculative execution), and uses the first answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from windrow.pipeline.executors.ray.placement import Node, Placement, Planner

logger = logging.getLogger(__name__)

# A tick this late means that this process got no CPU time, so heartbeats were delayed too.
_LATE_SECONDS = 3.0
_WARN_SECONDS = 1.0


@dataclass(frozen=True)
class Submitted:
    """References of one copy of a task: its report, the handles of its output and of the blocks to cache."""

    report: Any
    output: Any
    cached: Sequence[Any]


@dataclass(frozen=True)
class Cluster:
    """The dispatcher's interface to Ray."""

    # monotonic clock, in seconds
    now: Callable[[], float]
    # the nodes that are alive now
    nodes: Callable[[], Sequence[Node]]
    # whether workers are still starting, so that tasks cannot be expected to run yet
    is_starting: Callable[[], bool]
    # cancels a copy by the reference of its report, unless it has started
    cancel: Callable[[Any], None]
    # whether an error that ended a copy would end any other copy too
    is_conclusive: Callable[[Exception], bool]
    # runs a coroutine in the background
    spawn: Callable[[Coroutine[Any, Any, None]], None]


@dataclass
class _Task:
    submit: Callable[[int, int, Placement], Submitted]
    on_done: Callable[[Submitted], Coroutine[Any, Any, None]]
    copies: dict[int, Any] = field(default_factory=dict)


class Dispatcher:
    """Runs every task to completion, wherever the cluster can.

    ``warn`` is called at most once a second while data tasks seem to run without CPUs because others hold all
    of them, until it returns True: it has confirmed this and warned.
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
        on_done: Callable[[Submitted], Coroutine[Any, Any, None]],
    ) -> None:
        """Run a task.

        ``submit`` submits one copy, given the task's number, the copy's number and its placement. ``on_done``
        is called once, with the copy that ended first; results of the others are dropped.
        """
        key, self._next_key = self._next_key, self._next_key + 1
        self._tasks[key] = _Task(submit, on_done)
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
        self._planner.note_heartbeat(key, copy, self._cluster.now())
        self._warn_once()

    def tick(self) -> None:
        """Place silent tasks again; call it about once a second."""
        now = self._cluster.now()
        late, self._ticked_at = now - self._ticked_at > _LATE_SECONDS, now
        if late or self._cluster.is_starting():
            self._planner.reset_timeouts(now)
        elif self._planner.is_due(now):
            try:
                nodes = self._cluster.nodes()
            except Exception:
                # Ray's control plane is restarting: the next tick retries
                return
            self._place(self._planner.review(now, nodes))
        self._warn_once()

    def _place(self, placed: Sequence[tuple[int, int, Placement]]) -> None:
        for key, copy, placement in placed:
            if copy:
                logger.info("task %d sends no heartbeat: copy %d is started", key, copy)
            try:
                self._submit(key, copy, placement)
            except Exception as error:
                # no caller could handle this error: the copy fails as if it had run
                self._watch(key, copy, Submitted(_raise(error), None, ()))

    def _submit(self, key: int, copy: int, placement: Placement) -> None:
        self._watch(key, copy, self._tasks[key].submit(key, copy, placement))

    def _watch(self, key: int, copy: int, submitted: Submitted) -> None:
        self._tasks[key].copies[copy] = submitted.report
        self._cluster.spawn(self._await(key, copy, submitted))

    async def _await(self, key: int, copy: int, submitted: Submitted) -> None:
        failure, answer = None, asyncio.get_running_loop().create_future()
        try:
            answer.set_result(await submitted.report)
        except Exception as error:
            failure = error
        task = self._tasks.get(key)
        if task is not None:
            del task.copies[copy]
        left = task is not None and task.copies
        if task is None or (failure is not None and left and not self._cluster.is_conclusive(failure)):
            # another copy was first, or can still answer: drop this copy's references and their objects
            if left:
                logger.info(
                    "task %d: copy %d failed (%s), another one runs", key, copy, type(failure).__name__
                )
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
            # an error above must not lose the answer; passing it as a future avoids getting it from Ray twice
            await task.on_done(replace(submitted, report=answer))

    def _warn_once(self) -> None:
        now = self._cluster.now()
        if self._warned or not self._planner.lacks_cpus or now < self._warn_at:
            return
        self._warn_at = now + _WARN_SECONDS
        # Ray's control plane may be restarting: the next tick retries
        with suppress(Exception):
            self._warned = self._warn()

    def _refill(self) -> None:
        """Where tasks run without CPUs, place the next one on the core that has become free."""
        if self._planner.starved:
            self._place(self._planner.review(self._cluster.now()))


async def _raise(error: Exception) -> Any:
    raise error

"""The real driver behind a simulated actor, which serves one call at a time for as long as it really takes."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from bench.scale.clock import Clock
from bench.scale.cluster import Cluster, Costs
from bench.scale.node import Nodes
from bench.scale.tasks import MapTasks
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.requests import EpochFacts, WindowReply
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget
from windrow.pipeline.tasks.task import Task, TaskReport

__all__ = ["Coordinator"]

# as in windrow.pipeline.executors.ray: queued tasks per CPU, and how long map outputs are batched into one answer
_TASKS_PER_CPU = 2
_GATHER_SECONDS = 0.25
_POLL_SECONDS = 10.0
_MIN_PAUSE_SECONDS = 0.1
_TICK_SECONDS = 1.0


class _Poll:
    """A request for a window that waits for its answer."""

    def __init__(self, shard: int, place: Place, key: tuple[int, int], have: set[int], began: float) -> None:
        self.shard, self.place, self.key, self.have, self.began = shard, place, key, have, began
        self.round = 0


class Coordinator:
    """Serves calls one after another on the cores of the first node.

    Parameters
    ----------
    driver_seconds
        Duration of the driver's code per call; None: its measured duration.

    Attributes
    ----------
    measured_seconds
        Measured duration of all driver code on this machine.
    busy_seconds
        Simulated seconds in which the coordinator was busy.
    """

    def __init__(
        self,
        clock: Clock,
        program: Program,
        budget: Budget,
        cluster: Cluster,
        costs: Costs,
        nodes: Nodes,
        tasks: MapTasks,
        driver_seconds: float | None = None,
    ) -> None:
        self._clock, self._cluster, self._costs, self._nodes, self._map = clock, cluster, costs, nodes, tasks
        self._driver_seconds = driver_seconds
        # shard t is read on node t mod nodes: trainers are spread round-robin
        self.destinations = tuple(
            tuple(range(node, program.shards, cluster.nodes))
            for node in range(min(cluster.nodes, program.shards))
        )
        self._calls: deque[tuple[Callable[[], Any], Callable[[Any], None], float, bool]] = deque()
        self._serving = False
        self._submitted: list[Task] = []
        self._polls: list[tuple[_Poll, Callable[[WindowReply], None]]] = []
        self.calls = self.handles = self.state_changes = self.finished = 0
        self.measured_seconds = self.busy_seconds = 0.0
        workers = cluster.nodes * cluster.cpus
        self.driver = Driver(
            program,
            budget,
            self,
            workers=workers if cluster.threads else workers * _TASKS_PER_CPU,
            clock=lambda: clock.now,
        )
        clock.after(_TICK_SECONDS, self._tick)

    # --- calls by shards

    def open_epoch(
        self, shard: int, cursor: Any, batch_rows: int, done: Callable[[EpochFacts], None]
    ) -> None:
        """Open an epoch for a shard."""
        work = partial(self.driver.open_epoch, shard, cursor, batch_rows, drop_last=False)
        self._call(work, done, shard=shard, wakes=True)

    def acknowledge(self, shard: int, place: Place) -> None:
        """Acknowledge that a shard needs nothing before a place."""
        self._call(lambda: self.driver.acknowledge(shard, place), lambda _: None, shard=shard, wakes=True)

    def heartbeat(self, shard: int) -> None:
        """Report that a shard's consumer is alive."""
        self._call(lambda: self.driver.heartbeat(shard), lambda _: None, shard=shard)

    def poll(
        self,
        shard: int,
        place: Place,
        key: tuple[int, int],
        have: set[int],
        done: Callable[[WindowReply], None],
    ) -> None:
        """Answer a shard with map outputs of a window: all of them, or those available after a while."""
        self._answer_poll(_Poll(shard, place, key, have, self._clock.now), done)

    # --- calls by the driver

    def run(self, task: Task, tables: Any) -> None:
        """Queue a task for submission; pickling it is part of the call that is being measured."""
        if not self._cluster.threads:
            pickle.dumps(task)
        self._submitted.append(task)

    # --- internals

    def _answer_poll(self, poll: _Poll, done: Callable[[WindowReply], None]) -> None:
        def read_window() -> WindowReply:
            if not poll.round:
                self.driver.acknowledge(poll.shard, poll.place)
            reply = self.driver.poll(poll.shard, *poll.key, ())
            outputs = {part: refs for part, refs in reply.outputs.items() if part not in poll.have}
            return WindowReply(reply.attempt, reply.parts, reply.layout, outputs)

        def answer(reply: WindowReply) -> None:
            waited = self._clock.now - poll.began
            whole = len(poll.have) + len(reply.outputs) >= reply.parts
            if whole or (reply.outputs and waited >= _GATHER_SECONDS) or waited >= _POLL_SECONDS:
                done(reply)
            else:
                self._defer(poll, done, waited)

        # polling again after a wake-up is not another call
        self._call(read_window, answer, shard=None if poll.round else poll.shard, answers=True)

    def _defer(self, poll: _Poll, done: Callable[[WindowReply], None], waited: float) -> None:
        poll.round += 1
        self._polls.append((poll, done))
        this_round = poll.round
        pause = max(_GATHER_SECONDS - waited, _MIN_PAUSE_SECONDS)
        if self._cluster.threads:
            pause = _TICK_SECONDS  # on threads a shard learns of each map output at negligible cost

        def again() -> None:
            if poll.round == this_round and (poll, done) in self._polls:
                self._polls.remove((poll, done))
                self._answer_poll(poll, done)

        self._clock.after(pause, again)

    def _finish(self, task: Task, report: TaskReport, output: Any) -> None:
        self.finished += 1

        def take() -> bool:
            self.driver.task_done(task, report, output, "")
            if self.driver.failure is not None:
                self.driver.failure.rethrow()
            return self.driver.is_complete(task.work.epoch, task.work.window)

        def wake_waiting(complete: bool) -> None:
            if complete:
                key = (task.work.epoch, task.work.window)
                ready = [entry for entry in self._polls if entry[0].key == key]
                self._polls = [entry for entry in self._polls if entry[0].key != key]
                for poll, done in ready:
                    self._answer_poll(poll, done)

        self._call(take, wake_waiting, wakes=True)

    def _tick(self) -> None:
        self._call(self.driver.tick, lambda _: None, wakes=True)
        self._clock.after(_TICK_SECONDS, self._tick)

    def _call(
        self,
        work: Callable[[], Any],
        then: Callable[[Any], None],
        *,
        shard: int | None = None,
        wakes: bool = False,
        answers: bool = False,
    ) -> None:
        seconds = 0.0
        if shard is not None:
            self.calls += 1
            seconds = self._costs.owner_call
            if not self._cluster.threads:
                self._nodes.work(shard % self._cluster.nodes, self._costs.call, lambda: None)
        if wakes:
            self.state_changes += 1
        self._calls.append((work, then, seconds + wakes * self._wakes(), answers))
        if not self._serving:
            self._serve()

    def _wakes(self) -> float:
        return len(self._polls) * self._costs.wake

    def _serve(self) -> None:
        if not self._calls:
            self._serving = False
            return
        self._serving = True
        work, then, overhead, answers = self._calls.popleft()
        # CPU time of this thread, because other processes may use this machine
        began = time.thread_time()
        result = work()
        spent = time.thread_time() - began
        self.measured_seconds += spent
        seconds = spent if self._driver_seconds is None else self._driver_seconds
        if answers:
            handles = sum(len(slices) for slices in result.outputs.values())
            self.handles += handles
            overhead += handles * self._costs.owner_handle
        submitted, self._submitted = self._submitted, []
        for task in submitted:
            layouts = task.ordering.layouts if task.ordering else ()
            overhead += self._costs.owner_task + self._costs.owner_object * sum(
                each.slices for each in layouts
            )
        seconds = 0.0 if self._cluster.threads else seconds + overhead
        began_at = self._clock.now

        def end() -> None:
            self.busy_seconds += self._clock.now - began_at
            for task in submitted:
                self._map.start(task, self._finish)
            then(result)
            self._serve()

        self._nodes.work(0, seconds, end)

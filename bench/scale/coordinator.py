"""The real driver behind a simulated actor: one call at a time, each as long as it really takes."""

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
from windrow.pipeline.coordinator.buffered_window import WindowReply
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.executors.base import EpochFacts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget
from windrow.pipeline.tasks.map_task import Task, TaskReport

__all__ = ["Coordinator"]

# As in windrow.pipeline.executors.ray: tasks queued a CPU, and how long answers are gathered.
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
    """Serves calls in turn on the first node's cores.

    Parameters
    ----------
    driver_seconds
        What the driver's own code takes for a call; None: what it is measured to take.

    Attributes
    ----------
    measured_seconds
        What the driver's code took on the machine that simulates.
    busy_seconds
        Simulated seconds in which the coordinator had something to do.
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
        # shard t is read on node t mod nodes, as trainers of a rank a node are
        self.destinations = tuple(
            tuple(range(node, program.shards, cluster.nodes))
            for node in range(min(cluster.nodes, program.shards))
        )
        self._calls: deque[tuple[Callable[[], Any], Callable[[Any], None], float, bool]] = deque()
        self._serving = False
        self._submitted: list[Task] = []
        self._polls: list[tuple[_Poll, Callable[[WindowReply], None]]] = []
        self.calls = self.handles = self.news = self.finished = 0
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

    # --- what shards call

    def open_epoch(
        self, shard: int, cursor: Any, batch_rows: int, done: Callable[[EpochFacts], None]
    ) -> None:
        """Begin an epoch for a shard."""
        work = partial(self.driver.open_epoch, shard, cursor, batch_rows, drop_last=False)
        self._call(work, done, shard=shard, wakes=True)

    def acknowledge(self, shard: int, place: Place) -> None:
        """A shard needs nothing before a place."""
        self._call(lambda: self.driver.acknowledge(shard, place), lambda _: None, shard=shard, wakes=True)

    def heartbeat(self, shard: int) -> None:
        """A shard's consumer is alive."""
        self._call(lambda: self.driver.heartbeat(shard), lambda _: None, shard=shard)

    def poll(
        self,
        shard: int,
        place: Place,
        key: tuple[int, int],
        have: set[int],
        done: Callable[[WindowReply], None],
    ) -> None:
        """Answer a shard at a place with parts of a window: all of it, or what there is after a while."""
        self._look(_Poll(shard, place, key, have, self._clock.now), done)

    # --- what the driver calls

    def run(self, task: Task, tables: Any) -> None:
        """Note a task to submit; its pickling is part of the call that is being measured."""
        if not self._cluster.threads:
            pickle.dumps(task)
        self._submitted.append(task)

    # --- inside

    def _look(self, poll: _Poll, done: Callable[[WindowReply], None]) -> None:
        def look() -> WindowReply:
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
                self._park(poll, done, waited)

        # that it looks again when it is woken is no call
        self._call(look, answer, shard=None if poll.round else poll.shard, answers=True)

    def _park(self, poll: _Poll, done: Callable[[WindowReply], None], waited: float) -> None:
        poll.round += 1
        self._polls.append((poll, done))
        this_round = poll.round
        pause = max(_GATHER_SECONDS - waited, _MIN_PAUSE_SECONDS)
        if self._cluster.threads:
            pause = _TICK_SECONDS  # a shard is told of every part, which costs nothing that shows

        def again() -> None:
            if poll.round == this_round and (poll, done) in self._polls:
                self._polls.remove((poll, done))
                self._look(poll, done)

        self._clock.after(pause, again)

    def _finish(self, task: Task, report: TaskReport, output: Any) -> None:
        self.finished += 1

        def take() -> bool:
            self.driver.task_done(task, report, output, "")
            if self.driver.failure is not None:
                self.driver.failure.rethrow()
            return self.driver.is_complete(task.work.epoch, task.work.window)

        def tell(complete: bool) -> None:
            if complete:
                key = (task.work.epoch, task.work.window)
                ready = [entry for entry in self._polls if entry[0].key == key]
                self._polls = [entry for entry in self._polls if entry[0].key != key]
                for poll, done in ready:
                    self._look(poll, done)

        self._call(take, tell, wakes=True)

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
            self.news += 1
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
        # of this thread, since others may work on the machine that simulates
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

"""The coordinator of ``scale``: it serves one call at a time, for as long as its code really takes."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from bench.scale.cluster import Cluster, Costs
from bench.scale.machines import CostlyMachines, name_node
from bench.simulation.actor import Actor, Caller, Polled
from bench.simulation.world import World
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Task

T = TypeVar("T")


class TimedActor(Actor):
    """Serves calls one after another on the cores of the first node, each for as long as its code takes here."""

    def __init__(
        self,
        world: World,
        program: Program,
        resources: Resources,
        machines: CostlyMachines,
        cluster: Cluster,
        costs: Costs,
        code_seconds: float | None = None,
    ) -> None:
        self._cluster, self._costs, self._code_seconds, self._costly = cluster, costs, code_seconds, machines
        self._waiting: deque[tuple[Callable[[], Any], Callable[[Any], None], float]] = deque()
        self._is_serving = False
        self._submitted: list[tuple[Task, Callable[[], None]]] = []
        self.measured_seconds = self.busy_seconds = 0.0
        self.finished = 0
        nodes = {shard: name_node(shard, cluster) for shard in program.members}
        super().__init__(world, program, resources, machines, nodes)

    def serve(self, work: Callable[[], T], then: Callable[[T], None], caller: Caller | None = None) -> None:
        """Queue work; a poll that wakes up, a result and a tick have no caller."""
        overhead = self._costs.wake
        if caller is not None:
            overhead = self._costs.owner_call
            self._costly.work(caller.shard % self._cluster.nodes, self._costs.call, lambda: None)
        self._waiting.append((work, then, overhead))
        if not self._is_serving:
            self._serve_next()

    def _serve_next(self) -> None:
        self._is_serving = bool(self._waiting)
        if not self._waiting:
            return
        work, then, overhead = self._waiting.popleft()
        # CPU time of this thread, because other processes may use this machine
        began = time.thread_time()
        result = work()
        spent = time.thread_time() - began
        self.measured_seconds += spent
        submitted, self._submitted = self._submitted, []
        overhead += _count_handles(result) * self._costs.owner_handle
        overhead += len(submitted) * self._costs.owner_task
        overhead += sum(map(_count_objects, submitted)) * self._costs.owner_object
        seconds = overhead + (spent if self._code_seconds is None else self._code_seconds)
        began_at = self._world.now

        def end() -> None:
            self.busy_seconds += self._world.now - began_at
            for _, start in submitted:
                start()
            then(result)
            self._serve_next()

        self._costly.work(0, seconds, end)

    def submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        """Submit a task when this call ends; pickling it is part of what is measured."""
        pickle.dumps(task)
        self._submitted.append((task, partial(super().submit, driver, task, tables, cached)))

    def _task_done(self) -> None:
        self.finished += 1
        super()._task_done()


def _count_handles(result: Any) -> int:
    if not isinstance(result, Polled) or not isinstance(result.answer, tuple):
        return 0
    return sum(len(slices) for slices in result.answer[1].outputs.values())


def _count_objects(submitted: tuple[Task, Callable[[], None]]) -> int:
    ordering = submitted[0].ordering
    return sum(layout.slices for layout in ordering.layouts) if ordering else 0

"""Cost of planning an epoch: from the manifest to the first submitted task."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.scale.cluster import Cluster, make_source
from bench.scale.run import find_resources, make_program
from bench.system.processes import run_alone
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.explain import explain_program
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.memory_budget import budget_program
from windrow.pipeline.tasks.task import Task
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import WindowCut

_BATCH_ROWS = 65_536


@dataclass(frozen=True)
class PlanningCost:
    row_groups: int
    seconds: float
    memory_bytes: int
    tasks: int


def measure_planning(row_groups: int, group_bytes: int, windows: int, nodes: int, cpus: int) -> PlanningCost:
    return PlanningCost(**run_alone("bench.scale.planning", (row_groups, group_bytes, windows, nodes, cpus)))


class _Runner:
    def __init__(self, nodes: int) -> None:
        self.destinations = tuple((shard,) for shard in range(nodes))
        self.tasks, self.first = 0, 0.0

    def run(self, task: Task, tables: Any) -> None:
        self.first = self.first or time.perf_counter()
        self.tasks += 1


def _plan(row_groups: int, group_bytes: int, windows: int, nodes: int, cpus: int) -> PlanningCost:
    source = make_source(row_groups, group_bytes)
    cluster = Cluster(nodes=nodes, cpus=cpus, memory_bytes=1e15)
    runner, before = _Runner(nodes), _forget_peak()
    began = time.perf_counter()
    total = int(source.blocks.decoded_bytes.sum())
    program = make_program(Job(source, WindowCut(None, -(-total // windows)), 10, 7), cluster)
    resources = find_resources(cluster)
    str(explain_program(program, resources, _BATCH_ROWS))
    budget = budget_program(program, resources, _BATCH_ROWS)
    driver = Driver(program, budget, runner, workers=2 * nodes * cpus, clock=time.monotonic)
    driver.open_epoch(0, Cursor(), Batching(_BATCH_ROWS))
    return PlanningCost(row_groups, runner.first - began, _read_status("VmHWM") - before, runner.tasks)


def _forget_peak() -> int:
    """Reset the kernel's record of this process's peak; returns the current size."""
    Path("/proc/self/clear_refs").write_text("5")
    return _read_status("VmRSS")


def _read_status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}:")]
    return int(line.split()[1]) * 1024


def start() -> Callable[[tuple[int, ...]], dict[str, Any]]:
    return lambda sizes: asdict(_plan(*sizes))

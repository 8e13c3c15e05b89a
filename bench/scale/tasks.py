"""Simulated map tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench.scale.cluster import Cluster, Costs
from bench.scale.memory import Output
from bench.scale.node import Nodes
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Task, TaskReport

__all__ = ["MapTasks"]

Done = Callable[[Task, TaskReport, Any], None]
# lower priority than placing a run, for which a trainer may wait
_URGENCY = 1


class MapTasks:
    """Read, compute and put, like `windrow.pipeline.tasks.map_task.run_task` does with real rows."""

    def __init__(self, program: Program, cluster: Cluster, costs: Costs, nodes: Nodes) -> None:
        self._cluster = cluster
        self._costs = costs
        self._nodes = nodes
        self._held_bytes = program.held_bytes
        self._output_bytes = program.output_bytes
        self._decoded_bytes = program.job.source.blocks.memory_bytes
        self._parts = program.parts
        self._shards = program.shards
        self.finished = 0

    def start(self, task: Task, done: Done) -> None:
        """Queue a task on a node."""
        node = self._nodes.least_loaded()
        self._nodes.slots[node].submit(lambda free: self._run(task, node, free, done), _URGENCY)

    def _run(self, task: Task, node: int, free: Callable[[], None], done: Done) -> None:
        blocks = self._parts(task.work.epoch, task.work.window)[task.work.part]
        decoded, held = float(self._decoded_bytes[blocks].sum()), float(self._held_bytes[blocks].sum())
        # one block is decoded at a time, and the complete output exists before it is put into the object store
        heap = decoded / len(blocks) + (0.0 if self._cluster.threads else held)
        self._nodes.ledger.take(node, heap)

        def compute() -> None:
            seconds = decoded * self._costs.map + self._costs.task
            self._nodes.work(node, seconds, finish)

        def finish() -> None:
            self._nodes.ledger.take(node, -heap)
            put = float(self._output_bytes[blocks].sum())
            output, slices = self._put(task, node, put)
            sizes = tuple(int(put / slices) for _ in range(slices))
            report = TaskReport(
                rows=tuple(rows or 0 for rows in task.rows),
                slice_bytes=sizes,
                schema=None,
                start_time=0.0,
                stop_time=0.0,
            )
            self.finished += 1
            free()
            done(task, report, output)

        self._nodes.read(node, decoded * self._cluster.stored_share, compute)

    def _put(self, task: Task, node: int, size_bytes: float) -> tuple[list[list[Output]], int]:
        assert task.ordering is not None, "row counts of the simulated data are known"
        layouts = task.ordering.layouts
        slices = layouts[0].slices
        output = [
            [Output(self._nodes.ledger, node, size) for _ in range(slices)]
            for size in (size_bytes * len(layout.shards) / self._shards / slices for layout in layouts)
        ]
        self._nodes.ledger.count(len(layouts) * slices)
        return output, slices

"""The simulated machines of ``scale``: nodes with cores, task slots and network cards, whose work has costs."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench.scale.cluster import Cluster, Costs
from bench.scale.resources import Ledger, Output, SharedResource, Slots
from bench.simulation.machines import Job, Machines
from bench.simulation.world import World
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Task, TaskReport
from windrow.shuffle.order.runs import Run

Floats = NDArray[np.float64]


def name_node(shard: int, cluster: Cluster) -> str:
    """The node that a shard is read on: trainers are spread round-robin."""
    return f"node {shard % cluster.nodes}"


@dataclass(frozen=True)
class JoinedRuns(Run):
    """Successive runs of one slice that are simulated as one."""

    joined: int = 1


class CostlyMachines(Machines):
    """All nodes of a cluster; ``grain`` limits the groups in which a slice's runs are simulated."""

    def __init__(
        self, world: World, program: Program, cluster: Cluster, costs: Costs, grain: int | None
    ) -> None:
        self._world, self._program, self._cluster = world, program, cluster
        self._costs, self._grain = costs, grain
        self._decoded_bytes = program.job.source.blocks.memory_bytes
        self.ledger = Ledger(cluster.nodes)
        self.cpus = [SharedResource(world, cluster.cpus, 1.0) for _ in range(cluster.nodes)]
        self.slots = [Slots(cluster.cpus) for _ in range(cluster.nodes)]
        placers = cluster.placers if grain is None else 1
        self._pools = [Slots(placers) for _ in range(cluster.shards)]
        self.ingress = [
            SharedResource(world, cluster.nic_bytes, cluster.connection_bytes) for _ in range(cluster.nodes)
        ]
        # by shard: the bytes of each run that is placed and not consumed, in order
        self._placed = [deque[float]() for _ in range(cluster.shards)]
        self._sent_until = np.zeros(cluster.nodes)
        self.sent_bytes = np.zeros(cluster.nodes)
        self.crossed_bytes = 0.0

    def work(self, node: int, core_seconds: float, done: Callable[[], None], threads: int = 1) -> None:
        self.cpus[node].use(core_seconds / self._cluster.cpu_speed, done, float(threads))

    # --- objects

    def transfer(self, node: str, handles: Sequence[Output], done: Callable[[], None]) -> None:
        """Copy missing objects to a node, and map all of them, when senders, receiver and their cores are done."""
        to = int(node.split()[1])
        mapped = partial(self.work, to, len(handles) * self._costs.get, done)
        lacking = [output for output in handles if output.lacks(to)]
        if not lacking:
            self._world.after(0.0, mapped)
            return
        sizes = np.bincount(
            [output.node for output in lacking],
            [output.size_bytes for output in lacking],
            minlength=len(self.cpus),
        ).astype(np.float64)
        self._move(to, sizes, mapped)

    def _move(self, node: int, sizes: Floats, done: Callable[[], None]) -> None:
        total, transfer = float(sizes.sum()), self._costs.transfer
        self.crossed_bytes += total
        self.sent_bytes += sizes
        senders = np.flatnonzero(sizes)
        sent = (
            np.maximum(self._sent_until[senders], self._world.now) + sizes[senders] / self._cluster.nic_bytes
        )
        self._sent_until[senders] = sent
        left = [3 + len(senders)]

        def arrive() -> None:
            left[0] -= 1
            if left[0] == 0:
                done()

        self._world.after(float(sent.max()) - self._world.now, arrive)
        # each sender uses several connections, so that the interface is the bottleneck
        self.ingress[node].use(total, arrive, weight=float(max(4 * len(senders), 16)))
        self.work(node, total * transfer, arrive)
        for sender in senders.tolist():
            self.work(sender, float(sizes[sender]) * transfer, arrive)

    # --- map tasks: read, compute and put, like `windrow.pipeline.tasks.map_task.run_task` does with real rows

    def submit(self, job: Job) -> None:
        """Queue a task on the node to which Ray's SPREAD strategy would send it."""
        node = min(range(len(self.slots)), key=lambda node: self.slots[node].load)
        self.slots[node].submit(lambda free: self._run(job, node, free))

    def _run(self, job: Job, node: int, free: Callable[[], None]) -> None:
        task, program = job.task, self._program
        blocks = program.parts(task.work.epoch, task.work.window)[task.work.part]
        decoded = float(self._decoded_bytes[blocks].sum())
        held = float(program.estimate.held_bytes[blocks].sum())
        # one block is decoded at a time, and the complete output exists before it is put into the object store
        heap = decoded / len(blocks) + held
        self.ledger.take(node, heap)

        def compute() -> None:
            self.work(node, decoded * self._costs.map + self._costs.task, finish)

        def finish() -> None:
            self.ledger.take(node, -heap)
            put = float(program.estimate.output_bytes[blocks].sum())
            output, slices = self._put(task, node, put)
            rows, sizes = tuple(rows or 0 for rows in task.rows), (int(put / slices),) * slices
            free()
            job.done(task, TaskReport(rows, sizes, None, 0.0, 0.0), output, ())

        self._read(node, decoded * self._cluster.stored_share, compute)

    def _read(self, node: int, size_bytes: float, done: Callable[[], None]) -> None:
        if not self._cluster.connections:
            self._world.after(0.0, done)
            return
        weight = float(self._cluster.connections)
        self._world.after(self._cluster.first_byte_seconds, self.ingress[node].use, size_bytes, done, weight)

    def _put(self, task: Task, node: int, size_bytes: float) -> tuple[list[list[Output]], int]:
        assert task.ordering is not None, "row counts of the simulated data are known"
        layouts = task.ordering.layouts
        slices = layouts[0].slices
        output = [
            [Output(self.ledger, node, size) for _ in range(slices)]
            for size in (
                size_bytes * len(layout.shards) / self._program.shards / slices for layout in layouts
            )
        ]
        return output, slices

    # --- runs

    def join_runs(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Join successive runs of a slice to as many groups as the grain allows."""
        if self._grain is None:
            return runs
        groups: list[Run] = []
        for number, some in groupby(runs, lambda run: run.slice):
            of_slice = list(some)
            step = max(1, len(of_slice) // self._grain)
            for first in range(0, len(of_slice), step):
                joined = of_slice[first : first + step]
                rows = sum(run.rows for run in joined)
                groups.append(JoinedRuns(number, joined[0].index, joined[0].place, rows, joined=len(joined)))
        return groups

    def spend_placing(self, shard: int, run: Run, then: Callable[[], None]) -> None:
        node, joined = shard % self._cluster.nodes, run.joined if isinstance(run, JoinedRuns) else 1
        size = run.rows * self._program.estimate.row_bytes

        self._placed[shard].append(size / joined)

        def start(free: Callable[[], None]) -> None:
            self.ledger.take(node, size / joined)
            seconds = size * self._costs.place + joined * self._costs.run
            # all placers work on joined runs, because they place several runs at the same time
            threads = 1 if self._grain is None else self._cluster.placers
            self.work(node, seconds, partial(placed, free), threads)

        def placed(free: Callable[[], None]) -> None:
            free()
            then()

        self._pools[shard].submit(start)

    def place_rows(self, map_outputs: Sequence[Any], run: Run) -> Sequence[int]:
        return range(run.place, run.place + run.rows)

    def consume(self, shard: int, rows: Sequence[int], done: Callable[[], None]) -> None:
        """Let a trainer take rows, as fast as it can or as its limit says."""
        node, size = shard % self._cluster.nodes, len(rows) * self._program.estimate.row_bytes
        least = size / self._cluster.trainer_bytes if self._cluster.trainer_bytes else 0.0

        def taken() -> None:
            self.ledger.take(node, -self._placed[shard].popleft())
            done()

        self.work(
            node, size * self._costs.consume * self._cluster.replicas, lambda: self._world.after(least, taken)
        )

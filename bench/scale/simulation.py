"""One simulated run, from opening the first epoch to the last row, and what was seen of it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from bench.scale.clock import Clock
from bench.scale.cluster import Cluster, Costs
from bench.scale.coordinator import Coordinator
from bench.scale.node import Nodes
from bench.scale.shard import Shard
from bench.scale.slots import Slots
from bench.scale.tasks import MapTasks
from windrow.pipeline.executors.base import Resources
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.memory_budget import budget_program, size_parts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget

__all__ = ["Outcome", "make_program", "simulate"]

# What Ray's object store may hold before it begins to spill.
_STORE_FILL = 0.8
# as in windrow.pipeline.executors.ray
_SMALL_WINDOWS_BYTES = 192 * 2**20
_MEMORY = "memory"
# A resource that is busy for more than this is what a run waits for.
_ALWAYS = 0.9


@dataclass(frozen=True)
class Outcome:
    """What a run did; rates and shares are of the steady time, after the
    first epoch (where only one is run: after the first window).

    Attributes
    ----------
    seconds, first_rows_seconds
        Simulated time in all, and until the first rows came.
    bytes_per_second, first_epoch_seconds, epoch_seconds
        Decoded bytes delivered a second; the first epoch, and each later one (mean), if
        they were run to their end.
    idle_share
        The share of time that trainers wait, in the steady time; and over all.
    busy
        How busy each resource was, by name: the largest one binds.
    node_peak_bytes, store_peak_bytes, store_bytes
        The most that a node held, that its object store held, and what that has.
    objects_per_window, tasks_per_window, peak_objects
        Objects and tasks of a window, and the most objects at once.
    object_bytes
        The mean size of an object.
    driver_seconds, driver_share
        What the driver's code took on this machine, and how busy the coordinator was.
    crossed_share, least_crossed_share
        Bytes that crossed nodes over those delivered in the steady time, and what must.
    """

    seconds: float
    first_rows_seconds: float
    bytes_per_second: float
    first_epoch_seconds: float | None
    epoch_seconds: float | None
    idle_share: float
    idle_share_all: float
    busy: dict[str, float]
    node_peak_bytes: float
    store_peak_bytes: float
    store_bytes: float
    estimated_bytes: float
    windows: int
    slices: int
    tasks_per_window: float
    objects_per_window: float
    object_bytes: float
    peak_objects: int
    tasks: int
    driver_seconds: float
    driver_share: float
    driver_calls: int
    crossed_share: float
    min_crossed_share: float
    delivered_rows: int

    @property
    def binds(self) -> str:
        """The busiest resource; memory only where nothing else is busy all the time."""
        rates = {name: share for name, share in self.busy.items() if name != _MEMORY}
        busiest = max(rates, key=lambda name: rates[name])
        short = rates[busiest] < _ALWAYS and self.busy.get(_MEMORY, 0.0) > _ALWAYS
        return _MEMORY if short else busiest

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "binds": self.binds}


def find_resources(cluster: Cluster) -> Resources:
    """What the executor would say of such a cluster."""
    workers = cluster.nodes * cluster.cpus
    if cluster.threads:
        return Resources("simulated threads", workers, int(cluster.memory_bytes / 2), limit_covers_all=True)
    return Resources(
        executor="simulated Ray",
        workers=workers,
        memory_bytes=int(cluster.nodes * cluster.store_bytes * _STORE_FILL),
        limit_covers_all=False,
        copies=2 - 1 / cluster.nodes,
        nodes=cluster.nodes,
        small_windows_bytes=_SMALL_WINDOWS_BYTES,
    )


def make_program(job: Job, cluster: Cluster) -> Program:
    """The program as an executor would plan it."""
    shards = cluster.shards
    return size_parts(Program(job, shards, True, tuple(range(shards))), find_resources(cluster))


def simulate(
    job: Job,
    cluster: Cluster,
    costs: Costs,
    *,
    batch_rows: int,
    epochs: int,
    stop_windows: int | None = None,
    grain: int | None = 64,
    driver_seconds: float | None = None,
) -> Outcome:
    """Run a job on a cluster until every shard has had so many epochs, or windows.

    Raises
    ------
    PlanError
        When not even one window fits into the cluster's object stores.
    """
    program = make_program(job, cluster)
    budget = budget_program(program, find_resources(cluster), batch_rows)
    clock = Clock()
    nodes = Nodes(clock, cluster)
    tasks = MapTasks(program, cluster, costs, nodes)
    coordinator = Coordinator(clock, program, budget, cluster, costs, nodes, tasks, driver_seconds)
    shards = [
        Shard(
            clock,
            cluster,
            costs,
            nodes,
            coordinator,
            shard=shard,
            batch_rows=batch_rows,
            row_bytes=program.row_bytes,
            epochs=epochs,
            grain=grain,
            pool=nodes.slots[0] if cluster.threads else Slots(cluster.placers if grain is None else 1),
        )
        for shard in range(cluster.shards)
    ]
    # an epoch is like the next one; where it is not run to its end, windows after the first are
    warm = program.plan(0).windows if epochs > 1 else 1
    watch = _Watch(clock, cluster, nodes, coordinator, shards, warm)

    def done() -> bool:
        watch.look()
        if stop_windows is not None:
            return all(shard.done or len(shard.windows) > stop_windows for shard in shards)
        return all(shard.done for shard in shards)

    clock.run(done)
    return _sum_up(program, budget, watch, epochs)


@dataclass
class _Mark:
    """Where everything stood at some time."""

    now: float
    cpu: float
    received: float
    sent: float
    crossed: float
    coordinator: float
    rows: int
    waited: float


class _Watch:
    """Notes where everything stands once the first windows, or the first epoch, are consumed."""

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        nodes: Nodes,
        coordinator: Coordinator,
        shards: list[Shard],
        warm: int,
    ) -> None:
        self._warm = warm
        self.clock, self.cluster, self.nodes = clock, cluster, nodes
        self.coordinator, self.shards = coordinator, shards
        self.steady: _Mark | None = None

    def look(self) -> None:
        """Look whether the steady time begins."""
        if self.steady is None and self.shards[0].passed >= self._warm:
            self.steady = self.mark()

    def mark(self) -> _Mark:
        """Where everything stands now."""
        nodes, cluster = self.nodes, self.cluster
        for shared in (*nodes.cpus, *nodes.ingress):
            shared.settle()
        return _Mark(
            now=self.clock.now,
            cpu=sum(cpu.used for cpu in nodes.cpus) / (cluster.nodes * cluster.cpus),
            received=sum(card.used for card in nodes.ingress) / (cluster.nodes * cluster.nic_bytes),
            sent=float(nodes.sent_bytes.sum()) / (cluster.nodes * cluster.nic_bytes),
            crossed=self.nodes.crossed_bytes,
            coordinator=self.coordinator.busy_seconds,
            rows=sum(sum(shard.delivered) for shard in self.shards),
            waited=sum(shard.waiting for shard in self.shards),
        )


def _sum_up(program: Program, budget: Budget, watch: _Watch, epochs: int) -> Outcome:
    cluster, nodes, shards, coordinator = watch.cluster, watch.nodes, watch.shards, watch.coordinator
    end, begin = watch.mark(), watch.steady or _Mark(0, 0, 0, 0, 0, 0, 0, 0)
    lasted = end.now - begin.now
    windows = program.plan(0).windows
    tasks = [len(program.parts(0, window)) for window in range(windows)]
    slices = budget.slices
    destinations = len(coordinator.destinations)
    ends = [
        max(times.ended for shard in shards for times in shard.windows if times.epoch == epoch)
        for epoch in range(epochs)
        if all(shard.done or shard.windows[-1].epoch > epoch for shard in shards)
    ]
    busy = {
        "CPUs": (end.cpu - begin.cpu) / lasted,
        "network in": (end.received - begin.received) / lasted,
        "network out": (end.sent - begin.sent) / lasted,
        "coordinator": (end.coordinator - begin.coordinator) / lasted,
        "trainers": 1 - (end.waited - begin.waited) / lasted / len(shards),
        _MEMORY: max(nodes.ledger.peak_store) / (cluster.store_bytes * _STORE_FILL),
    }
    if cluster.threads:
        busy = {name: busy[name] for name in ("CPUs", "trainers")}
    # since the steady time began: a window that is being fetched ahead at the end was so at its begin
    delivered = (end.rows - begin.rows) * program.row_bytes
    return Outcome(
        seconds=end.now,
        first_rows_seconds=min(shard.first_rows for shard in shards),
        bytes_per_second=delivered / lasted,
        first_epoch_seconds=ends[0] if ends else None,
        epoch_seconds=float(np.diff(ends).mean()) if len(ends) > 1 else None,
        idle_share=(end.waited - begin.waited) / lasted / len(shards),
        idle_share_all=end.waited / end.now / len(shards),
        busy=busy,
        node_peak_bytes=max(nodes.ledger.peak),
        store_peak_bytes=max(nodes.ledger.peak_store),
        store_bytes=cluster.store_bytes,
        estimated_bytes=budget.total_bytes / cluster.nodes,
        windows=windows,
        slices=slices,
        tasks_per_window=float(np.mean(tasks)),
        objects_per_window=float(np.mean(tasks)) * destinations * slices,
        object_bytes=float(program.output_bytes.sum()) / (sum(tasks) * destinations * slices),
        peak_objects=nodes.ledger.peak_objects,
        tasks=coordinator.finished,
        driver_seconds=coordinator.measured_seconds,
        driver_share=(end.coordinator - begin.coordinator) / lasted,
        driver_calls=coordinator.calls,
        crossed_share=(end.crossed - begin.crossed) / max(1.0, delivered),
        min_crossed_share=(1 - 1 / cluster.nodes) * _travelling_share(program),
        delivered_rows=end.rows,
    )


def _travelling_share(program: Program) -> float:
    """What travels of a decoded byte: less where words are packed."""
    blocks = program.job.source.blocks
    if not program.packs or blocks.packed_bytes is None:
        return 1.0
    return float(blocks.packed_bytes.sum() / blocks.memory_bytes.sum())

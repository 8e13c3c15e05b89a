"""One simulated run, from opening the first epoch to the last row, and its results."""

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
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.memory_budget import budget_program, size_parts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.resources import Resources
from windrow.pipeline.plan.window_budget import Budget

__all__ = ["Outcome", "make_program", "simulate"]

# share of the object store that Ray fills before it spills
_STORE_FILL = 0.8
# as in windrow.pipeline.executors.ray
_SMALL_WINDOWS_BYTES = 192 * 2**20
_MEMORY = "memory"
# a resource with a higher utilisation than this is the bottleneck
_ALWAYS = 0.9


@dataclass(frozen=True)
class Outcome:
    """Results of a run. Rates and shares are of the steady state: after the
    first epoch or, if there is only one, after the first window.

    Attributes
    ----------
    seconds, first_rows_seconds
        Total simulated time, and time until the first rows.
    bytes_per_second, first_epoch_seconds, epoch_seconds
        Decoded bytes delivered per second; duration of the first epoch, and mean of the later ones,
        if they were simulated completely.
    idle_share
        Share of time that trainers wait, in the steady state.
    busy
        Utilisation of each resource by name; the largest is the bottleneck.
    node_peak_bytes, store_peak_bytes, store_bytes
        Peak of a node's memory and of its object store, and the size of that.
    objects_per_window, tasks_per_window, peak_objects
        Objects and tasks per window, and peak number of objects.
    object_bytes
        Mean size of an object.
    driver_seconds, driver_share
        Measured duration of the driver's code on this machine, and utilisation of the coordinator.
    crossed_share, min_crossed_share
        Bytes sent between nodes over bytes delivered in the steady state, and its minimum.
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
    def bottleneck(self) -> str:
        """The bottleneck: the busiest resource, or memory if nothing else is saturated."""
        rates = {name: share for name, share in self.busy.items() if name != _MEMORY}
        busiest = max(rates, key=lambda name: rates[name])
        short = rates[busiest] < _ALWAYS and self.busy.get(_MEMORY, 0.0) > _ALWAYS
        return _MEMORY if short else busiest

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {**asdict(self), "bottleneck": self.bottleneck}


def find_resources(cluster: Cluster) -> Resources:
    """The resources that an executor would report for such a cluster."""
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
    """Simulate a job until every shard has consumed a number of epochs, or of windows.

    Raises
    ------
    PlanError
        If not even one window fits into the cluster's object stores.
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
    # steady state: after the first epoch or, if only one is simulated, after its first window
    warm = program.plan(0).windows if epochs > 1 else 1
    watch = _SteadyState(clock, cluster, nodes, coordinator, shards, warm)

    def done() -> bool:
        watch.update()
        if stop_windows is not None:
            return all(shard.done or len(shard.windows) > stop_windows for shard in shards)
        return all(shard.done for shard in shards)

    clock.run(done)
    return _summarize(program, budget, watch, epochs)


@dataclass
class _Snapshot:
    """All counters at one time."""

    now: float
    cpu: float
    received: float
    sent: float
    crossed: float
    coordinator: float
    rows: int
    waited: float


class _SteadyState:
    """Takes a snapshot of all counters when the steady state begins."""

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
        self.steady: _Snapshot | None = None

    def update(self) -> None:
        """Take the snapshot if the steady state has begun."""
        if self.steady is None and self.shards[0].consumed_windows >= self._warm:
            self.steady = self.snapshot()

    def snapshot(self) -> _Snapshot:
        """Take a snapshot of all counters."""
        nodes, cluster = self.nodes, self.cluster
        for shared in (*nodes.cpus, *nodes.ingress):
            shared.settle()
        return _Snapshot(
            now=self.clock.now,
            cpu=sum(cpu.used for cpu in nodes.cpus) / (cluster.nodes * cluster.cpus),
            received=sum(card.used for card in nodes.ingress) / (cluster.nodes * cluster.nic_bytes),
            sent=float(nodes.sent_bytes.sum()) / (cluster.nodes * cluster.nic_bytes),
            crossed=self.nodes.crossed_bytes,
            coordinator=self.coordinator.busy_seconds,
            rows=sum(sum(shard.delivered) for shard in self.shards),
            waited=sum(shard.waiting for shard in self.shards),
        )


def _summarize(program: Program, budget: Budget, watch: _SteadyState, epochs: int) -> Outcome:
    cluster, nodes, shards, coordinator = watch.cluster, watch.nodes, watch.shards, watch.coordinator
    end, begin = watch.snapshot(), watch.steady or _Snapshot(0, 0, 0, 0, 0, 0, 0, 0)
    steady_seconds = end.now - begin.now
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
        "CPUs": (end.cpu - begin.cpu) / steady_seconds,
        "network in": (end.received - begin.received) / steady_seconds,
        "network out": (end.sent - begin.sent) / steady_seconds,
        "coordinator": (end.coordinator - begin.coordinator) / steady_seconds,
        "trainers": 1 - (end.waited - begin.waited) / steady_seconds / len(shards),
        _MEMORY: max(nodes.ledger.peak_store) / (cluster.store_bytes * _STORE_FILL),
    }
    if cluster.threads:
        busy = {name: busy[name] for name in ("CPUs", "trainers")}
    # no correction for prefetched windows: there are as many at the end of the steady state as at its start
    delivered = (end.rows - begin.rows) * program.row_bytes
    return Outcome(
        seconds=end.now,
        first_rows_seconds=min(shard.first_rows for shard in shards),
        bytes_per_second=delivered / steady_seconds,
        first_epoch_seconds=ends[0] if ends else None,
        epoch_seconds=float(np.diff(ends).mean()) if len(ends) > 1 else None,
        idle_share=(end.waited - begin.waited) / steady_seconds / len(shards),
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
        driver_share=(end.coordinator - begin.coordinator) / steady_seconds,
        driver_calls=coordinator.calls,
        crossed_share=(end.crossed - begin.crossed) / max(1.0, delivered),
        min_crossed_share=(1 - 1 / cluster.nodes) * _travelling_share(program),
        delivered_rows=end.rows,
    )


def _travelling_share(program: Program) -> float:
    """Bytes sent per decoded byte: below 1 if values are packed."""
    blocks = program.job.source.blocks
    if not program.packs or blocks.packed_bytes is None:
        return 1.0
    return float(blocks.packed_bytes.sum() / blocks.memory_bytes.sum())

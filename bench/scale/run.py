"""One simulated run, from opening the first epoch to the last row, and its results."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from bench.scale.cluster import Cluster, Costs
from bench.scale.coordinator import TimedActor
from bench.scale.machines import CostlyMachines
from bench.scale.resources import Ledger
from bench.scale.trainer import Trainer
from bench.simulation.world import World
from windrow.pipeline.plan.job import Job, Resources
from windrow.pipeline.plan.memory_budget import budget_program, size_parts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget

# share of the object store that Ray fills before it spills
_STORE_FILL = 0.8
# as in windrow.pipeline.executors.ray
_SMALL_WINDOWS_BYTES = 192 * 2**20
_MEMORY = "memory"
# a resource with a higher utilisation than this is the bottleneck
_ALWAYS = 0.9


@dataclass(frozen=True)
class Outcome:
    """Results of a run. Rates and shares are after the first epoch or, if there is only one, after the first window."""

    bytes_per_second: float
    epoch_seconds: float | None
    idle_share: float
    busy: dict[str, float]
    node_peak_bytes: float
    store_peak_bytes: float
    slices: int
    objects_per_window: float
    object_bytes: float
    tasks: int
    driver_seconds: float
    driver_share: float
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


def find_resources(cluster: Cluster) -> Resources:
    return Resources(
        executor="simulated Ray",
        workers=cluster.nodes * cluster.cpus,
        memory_bytes=int(cluster.nodes * cluster.store_bytes * _STORE_FILL),
        limit_covers_all=False,
        copies=2 - 1 / cluster.nodes,
        nodes=cluster.nodes,
        small_windows_bytes=_SMALL_WINDOWS_BYTES,
    )


def make_program(job: Job, cluster: Cluster) -> Program:
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
    """Simulate a job until every shard has consumed a number of epochs, or of windows."""
    program, resources = make_program(job, cluster), find_resources(cluster)
    budget = budget_program(program, resources, batch_rows)
    world = World(random.Random(0), is_recorded=False, delay_seconds=0.0)
    machines = CostlyMachines(world, program, cluster, costs, grain)
    coordinator = TimedActor(world, program, resources, machines, cluster, costs, driver_seconds)
    trainers = [
        Trainer(world, program, machines, coordinator, cluster, shard, batch_rows=batch_rows, epochs=epochs)
        for shard in range(cluster.shards)
    ]
    # steady state: after the first epoch or, if only one is simulated, after its first window
    warm = program.plan(0).windows if epochs > 1 else 1
    steady: list[dict[str, float]] = []

    def count() -> dict[str, float]:
        """What was spent so far, of resources in seconds of full use."""
        for shared in (*machines.cpus, *machines.ingress):
            shared.advance()
        nic_bytes = cluster.nodes * cluster.nic_bytes
        return {
            "now": world.now,
            "CPUs": sum(cpu.used for cpu in machines.cpus) / (cluster.nodes * cluster.cpus),
            "network in": sum(card.used for card in machines.ingress) / nic_bytes,
            "network out": float(machines.sent_bytes.sum()) / nic_bytes,
            "coordinator": coordinator.busy_seconds,
            "crossed": machines.crossed_bytes,
            "rows": sum(sum(each.delivered) for each in trainers),
            "waited": sum(each.waiting for each in trainers),
        }

    def done() -> bool:
        if not steady and trainers[0].consumed_windows >= warm:
            steady.append(count())
        if stop_windows is not None:
            return all(each.done or each.consumed_windows >= stop_windows for each in trainers)
        return all(each.done for each in trainers)

    world.run(done)
    before = steady[0] if steady else {}
    spent = {name: value - before.get(name, 0.0) for name, value in count().items()}
    return _summarize(program, budget, cluster, machines.ledger, coordinator, trainers, spent)


def _summarize(
    program: Program,
    budget: Budget,
    cluster: Cluster,
    ledger: Ledger,
    coordinator: TimedActor,
    trainers: Sequence[Trainer],
    spent: Mapping[str, float],
) -> Outcome:
    seconds = spent["now"]
    idle_share = spent["waited"] / seconds / len(trainers)
    tasks = [len(program.parts(0, window)) for window in range(program.plan(0).windows)]
    slices, destinations = budget.slices, len(coordinator.core.destinations)
    ends = [max(of_epoch) for of_epoch in zip(*(each.ended for each in trainers), strict=False)]
    resources = ("CPUs", "network in", "network out", "coordinator")
    busy = {
        **{name: spent[name] / seconds for name in resources},
        "trainers": 1 - idle_share,
        _MEMORY: max(ledger.peak_store) / (cluster.store_bytes * _STORE_FILL),
    }
    # no correction for prefetched windows: there are as many at the end of the steady state as at its start
    delivered = spent["rows"] * program.estimate.row_bytes
    return Outcome(
        bytes_per_second=delivered / seconds,
        epoch_seconds=float(np.diff(ends).mean()) if len(ends) > 1 else None,
        idle_share=idle_share,
        busy=busy,
        node_peak_bytes=max(ledger.peak),
        store_peak_bytes=max(ledger.peak_store),
        slices=slices,
        objects_per_window=float(np.mean(tasks)) * destinations * slices,
        object_bytes=float(program.estimate.output_bytes.sum()) / (sum(tasks) * destinations * slices),
        tasks=coordinator.finished,
        driver_seconds=coordinator.measured_seconds,
        driver_share=spent["coordinator"] / seconds,
        crossed_share=spent["crossed"] / max(1.0, delivered),
        min_crossed_share=(1 - 1 / cluster.nodes) * _travelling_share(program),
        delivered_rows=sum(sum(each.delivered) for each in trainers),
    )


def _travelling_share(program: Program) -> float:
    """Bytes sent per decoded byte: below 1 if values are packed."""
    blocks = program.job.source.blocks
    if not program.estimate.packs or blocks.packed_bytes is None:
        return 1.0
    return float(blocks.packed_bytes.sum() / blocks.memory_bytes.sum())

"""Small simulated clusters: delivered rows, memory and utilisation, with a driver of fixed speed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from bench.scale.cluster import COLUMNS, Cluster, Costs, make_source
from bench.scale.resources import SharedResource, Slots
from bench.scale.run import Outcome, make_program, simulate
from bench.simulation.world import World
from windrow.core.errors import PlanError
from windrow.pipeline.plan.job import Job
from windrow.shuffle.order.epoch_plan import WindowCut

COSTS = Costs()
CALL_SECONDS = 1e-4
SMALL = Cluster(nodes=4, cpus=4, memory_bytes=4e9, store_share=0.5)
GROUPS, GROUP_BYTES = 96, 20_000_000


def make_job(windows: int, epochs: int = 2, groups: int = GROUPS, *, packs: bool = False) -> Job:
    source = make_source(groups, GROUP_BYTES, block_bytes=16 * 2**20, packs=packs)
    total = int(source.blocks.decoded_bytes.sum())
    return Job(source, WindowCut(None, -(-total // windows)), epochs + 1, 7)


def run(
    cluster: Cluster, windows: int = 4, costs: Costs = COSTS, epochs: int = 2, *, packs: bool = False
) -> Outcome:
    job = make_job(windows, epochs, packs=packs)
    return simulate(
        job, cluster, costs, batch_rows=4096, epochs=epochs, grain=None, driver_seconds=CALL_SECONDS
    )


# --- resources


def make_world() -> World:
    return World(random.Random(0), is_recorded=False, delay_seconds=0.0)


def _note(ends: dict[str, float], name: str, world: World) -> None:
    ends[name] = world.now


def test_users_share_a_resource_within_their_limits() -> None:
    world, ends = make_world(), dict[str, float]()
    shared = SharedResource(world, capacity=2.0, limit=1.0)
    for name, amount in (("a", 1.0), ("b", 1.0), ("c", 4.0)):
        shared.use(amount, partial(_note, ends, name, world))
    world.run(lambda: len(ends) == 3)
    # three users share a capacity of two until a and b are done; then c is limited to one
    assert ends == pytest.approx({"a": 1.5, "b": 1.5, "c": 4.5})
    assert shared.used == pytest.approx(6.0)


def test_shares_are_proportional_to_weights() -> None:
    world, ends = make_world(), list[float]()
    shared = SharedResource(world, capacity=4.0, limit=1.0)
    shared.use(6.0, lambda: ends.append(world.now), weight=3.0)
    shared.use(6.0, lambda: ends.append(world.now), weight=1.0)
    world.run(lambda: len(ends) == 2)
    assert ends == pytest.approx([2.0, 6.0])


def test_work_starts_in_the_order_of_submission() -> None:
    slots, started, frees = Slots(1), list[str](), list[Callable[[], None]]()
    for name in ("first", "task", "run"):

        def start(free: Callable[[], None], name: str = name) -> None:
            started.append(name)
            frees.append(free)

        slots.submit(start)
    while frees:
        frees.pop()()
    assert started == ["first", "task", "run"]
    assert slots.load == 0


def test_deadlock_is_reported() -> None:
    with pytest.raises(RuntimeError, match="deadlocked"):
        make_world().run(lambda: False)


# --- complete runs


@pytest.mark.parametrize(
    "cluster",
    [
        Cluster(trainers=2, placers=1, connections=0),
        SMALL,
        replace(SMALL, trainers=2),
        replace(SMALL, store_share=0.13),
        replace(SMALL, trainer_bytes=5e7),
    ],
    ids=["one node", "four nodes", "eight trainers", "little memory", "slow trainers"],
)
def test_every_row_is_delivered_in_order_once(cluster: Cluster) -> None:
    """Each shard asserts that its places are consecutive; together they get all rows except a remainder."""
    outcome = run(cluster)
    rows = int(make_job(4).source.blocks.rows.sum())
    assert 0 <= 2 * rows - outcome.delivered_rows < 2 * cluster.shards
    assert outcome.bytes_per_second > 0
    assert 0 <= outcome.idle_share <= 1
    assert all(0 <= share <= 1.001 for name, share in outcome.busy.items() if name != "memory")


def test_simulation_is_deterministic() -> None:
    once, again = (replace(run(SMALL), driver_seconds=0.0) for _ in range(2))
    assert once == again


@pytest.mark.parametrize("store_share", [0.5, 0.13])
def test_object_stores_stay_within_their_size(store_share: float) -> None:
    """Windows are sliced if memory is scarce; copies on two nodes count twice."""
    cluster = replace(SMALL, store_share=store_share)
    outcome = run(cluster)
    assert (outcome.slices > 1) == (store_share < 0.2)
    assert outcome.store_peak_bytes <= cluster.store_bytes


def test_too_small_memory_is_rejected() -> None:
    with pytest.raises(PlanError, match="the largest window takes"):
        run(replace(SMALL, store_share=0.01))


def test_rows_cross_nodes_at_most_once() -> None:
    outcome = run(SMALL)
    assert outcome.min_crossed_share == 0.75
    # places are sent too, and buffers are rounded up; the next epoch's first window may be in transit
    extra = (8 * COLUMNS + 4) / (8 * COLUMNS) * 1.07
    assert outcome.crossed_share == pytest.approx(0.75 * extra, rel=0.15)
    assert run(replace(SMALL, nodes=1, memory_bytes=16e9)).crossed_share == 0


def test_packed_values_take_less_network_and_object_store() -> None:
    # with few windows, those pulled before the steady state would distort the share
    plain, packed = run(SMALL), run(SMALL, epochs=8, packs=True)
    # 55 of 168 bytes per row, and 4 bytes of its place
    assert packed.min_crossed_share == pytest.approx(0.75 * 55 / 168)
    assert packed.crossed_share == pytest.approx(0.75 * 59 / 168 * 1.07, rel=0.15)
    assert packed.store_peak_bytes < 0.5 * plain.store_peak_bytes


def test_objects_grow_with_nodes_and_not_with_their_trainers() -> None:
    outcome = run(SMALL)
    assert run(replace(SMALL, trainers=2)).objects_per_window == outcome.objects_per_window
    assert run(replace(SMALL, nodes=8)).objects_per_window > outcome.objects_per_window


def test_coordinator_utilisation_grows_with_call_costs() -> None:
    cheap = run(SMALL)
    dear = run(SMALL, costs=replace(COSTS, owner_task=COSTS.owner_task + 5e-3))
    assert cheap.driver_share < 0.2
    assert dear.driver_share > cheap.driver_share + 0.05


def test_slowest_resource_is_the_bottleneck() -> None:
    assert run(SMALL, costs=replace(COSTS, decode=40e-9)).bottleneck == "CPUs"
    assert run(replace(SMALL, nic_bytes=5e7)).bottleneck == "network in"
    assert run(replace(SMALL, trainer_bytes=2e7)).bottleneck == "trainers"
    assert run(SMALL, costs=replace(COSTS, owner_task=0.2)).bottleneck == "coordinator"


def test_faster_network_increases_throughput() -> None:
    slow, fast = (run(replace(SMALL, nic_bytes=rate)).bytes_per_second for rate in (1e8, 2e8))
    assert 1.5 < fast / slow < 2.1


def test_slow_trainers_never_wait() -> None:
    outcome = run(replace(SMALL, trainer_bytes=2e7))
    assert outcome.idle_share < 0.05
    assert outcome.bytes_per_second == pytest.approx(4 * 2e7, rel=0.05)


# --- tasks


def test_task_output_is_large_enough_for_each_node() -> None:
    """Tasks merge row groups until each of many nodes gets 4 MB, and no task reads a complete window."""
    job = make_job(1, groups=400)
    few = make_program(job, replace(SMALL, nodes=2, memory_bytes=1e12))
    many = make_program(job, replace(SMALL, nodes=32, cpus=1, memory_bytes=1e11))
    sizes = job.source.blocks.memory_bytes
    parts = [int(sizes[part].sum()) for part in many.parts(0, 0)]
    assert min(parts[:-1]) >= 32 * 4_000_000
    assert len(parts) >= 32
    assert few.part_bytes is None

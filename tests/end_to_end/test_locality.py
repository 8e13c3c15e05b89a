"""Cost of a window on a cluster: objects, bytes sent between nodes, tasks, and where they run.

The numbers come from Ray: its object stores, its timeline, and the locations of its objects.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest
import ray

import windrow
from tests.conftest import STORE_BYTES
from tests.end_to_end.data import write_wide
from tests.end_to_end.observation import (
    TASK_DIGITS,
    RanTask,
    Reading,
    RecordingCoordinator,
    RecordingTrainer,
    StoreCounters,
    Stores,
    find_nodes,
    find_tasks,
    on_nodes,
)
from tests.end_to_end.reading import eventually, read_pass
from windrow.pipeline.executors.ray import coordinator

pytestmark = pytest.mark.timeout(150)

COLUMNS = 20
ROW_BYTES = 8 * COLUMNS
# the keys of a row group are frame-of-reference encoded in 2 of 8 bytes; the other columns are floats
TRAVELS = (ROW_BYTES - 6) / ROW_BYTES
GROUP_ROWS = 25_000
GROUPS = 60
# the node that reads each shard: two shards on each of three nodes
PLACED = (0, 0, 1, 1, 2, 2)
NODES = 3
MUST_CROSS = (NODES - 1) / NODES
MAX_CROSSED = 1.05
MIN_LOCAL = 0.99
# upper bound of a task's arguments by value: its blocks, their addresses, and the parameters that place rows
MAX_GIVEN_BYTES = 4 * 2**10


@dataclass(frozen=True)
class LogicalPlan:
    """A pipeline, and the slices and stages of its windows."""

    pipe: windrow.DatasetPipeline
    slices: int
    stages: tuple[str, ...]


@dataclass(frozen=True)
class ObservedEpoch:
    """Observations of one epoch.

    Attributes
    ----------
    first_node_use, all_nodes_use
        Use of each node's object store when only node 1 had its first window, and when all nodes had it.
    readings
        Rows that each shard delivered, and objects that it fetched.
    tasks
        All tasks that the cluster ran for the epoch.
    arguments
        For each submitted task, the number of its references and the bytes of its other arguments.
    """

    plan: LogicalPlan
    nodes: list[str]
    first_node_use: list[StoreCounters]
    all_nodes_use: list[StoreCounters]
    readings: list[Reading]
    tasks: list[RanTask]
    arguments: list[tuple[int, int]]

    def node_of(self, task: RanTask) -> str:
        """The first digits of the id of the node that a task ran on."""
        return self.readings[0].nodes_of_workers[task.worker[:6]]

    def of_stage(self, stage: str) -> list[RanTask]:
        """The tasks of a stage."""
        return [task for task in self.tasks if task.name.startswith(f"windrow:{stage} ")]

    @property
    def producers(self) -> list[RanTask]:
        """The tasks whose outputs the shards fetch."""
        return self.of_stage(self.plan.stages[-1])

    @property
    def is_single_window(self) -> bool:
        """Whether the object stores contained the objects of one window only."""
        return self.plan.slices == len(self.plan.stages) == 1

    @property
    def delivered_bytes(self) -> int:
        """Decoded bytes of all rows."""
        return sum(reading.delivered_bytes for reading in self.readings)

    def fetched_on(self, node: int) -> dict[str, int]:
        """The objects that shards on a node fetched, and their bytes."""
        return {
            name: got.size_bytes
            for at, reading in zip(PLACED, self.readings, strict=True)
            for name, got in reading.got.items()
            if at == node and self.nodes[node] in got.holders
        }

    def crossed_bytes(self) -> int:
        """Bytes of the objects that were sent from another node."""
        crossed = {
            name: got.size_bytes
            for at, reading in zip(PLACED, self.readings, strict=True)
            for name, got in reading.got.items()
            if got.holders != {self.nodes[at]}
        }
        return sum(crossed.values())


@pytest.fixture(scope="module")
def wide_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 MB of decoded data, in row groups of 4 MB."""
    path = tmp_path_factory.mktemp("wide") / "x.parquet"
    return write_wide(path, GROUPS * GROUP_ROWS, columns=COLUMNS, row_group_size=GROUP_ROWS)


def _make_pipeline(kind: str, path: Path) -> LogicalPlan:
    counted = kind == "counted first"
    given = pc.field("key") != 5 if counted else None
    ds = windrow.read_parquet(str(path), target_block_bytes=1, filter=given)
    windows = 2 if kind == "sliced" else 1
    pipe = ds.window(blocks_per_window=GROUPS // windows).repeat(1).random_shuffle_each_window(seed=3)
    if kind == "sliced":
        # two windows of 120 MB, each on the nodes that produce it and that read it, would take 430 MB
        return LogicalPlan(pipe.options(memory_limit="300MB"), 2, ("map",))
    return LogicalPlan(pipe, 1, ("read", "place") if counted else ("map",))


@pytest.fixture(
    scope="module",
    params=[
        "plain",
        *(pytest.param(kind, marks=pytest.mark.nightly) for kind in ("counted first", "sliced")),
    ],
)
def observed(request: pytest.FixtureRequest, ray_cluster: Any, wide_path: Path) -> Iterator[ObservedEpoch]:
    """One epoch of a pipeline, read by six trainers."""
    plan = _make_pipeline(request.param, wide_path)
    nodes = find_nodes()
    assert len(nodes) == NODES
    trainers = on_nodes(RecordingTrainer, [nodes[at] for at in PLACED])
    stores = Stores(nodes)
    earlier = {task.id for task in find_tasks()}

    def since() -> list[RanTask]:
        return [task for task in find_tasks() if task.id not in earlier]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "Coordinator", RecordingCoordinator)
        shards = plan.pipe.split(len(PLACED), equal=True, locality_hints=trainers)
    actor = shards[0]._session._coordinator  # type: ignore[attr-defined]
    pairs = list(zip(trainers, shards, strict=True))
    # first only the shards of node 1, then all shards
    ray.get([trainer.begin.remote(shard) for trainer, shard in pairs[2:4]])
    first_node_use = stores.use()
    ray.get([trainer.begin.remote(shard) for trainer, shard in pairs[:2] + pairs[4:]])
    all_nodes_use = stores.use()
    readings = ray.get([trainer.finish.remote() for trainer in trainers])
    arguments = ray.get(actor.arguments.remote())
    # workers report finished tasks to Ray once a second
    assert eventually(lambda: len(since()) >= len(arguments))
    yield ObservedEpoch(plan, nodes, first_node_use, all_nodes_use, readings, since(), arguments)
    for trainer in trainers:
        ray.kill(trainer)


def test_every_row_is_delivered_once(observed: ObservedEpoch) -> None:
    rows = sum(reading.rows for reading in observed.readings)
    assert GROUPS * GROUP_ROWS - len(PLACED) <= rows <= GROUPS * GROUP_ROWS
    assert observed.delivered_bytes == rows * ROW_BYTES
    assert not any(reading.dropped_windows for reading in observed.readings)


def test_task_creates_one_object_per_node_and_slice(observed: ObservedEpoch) -> None:
    objects = {name for reading in observed.readings for name in reading.got}
    made = Counter(name[:TASK_DIGITS] for name in objects)
    assert made == dict.fromkeys((task.id for task in observed.producers), NODES * observed.plan.slices)
    if observed.is_single_window:
        # plus the context that all tasks share
        assert sum(store.made for store in observed.all_nodes_use) == len(objects) + 1


def test_minimum_of_bytes_crosses_nodes(observed: ObservedEpoch) -> None:
    must_bytes = observed.delivered_bytes * TRAVELS * MUST_CROSS
    assert 0.95 * must_bytes < observed.crossed_bytes() <= MAX_CROSSED * must_bytes
    if observed.is_single_window:
        received = sum(store.received_bytes for store in observed.all_nodes_use)
        assert received == pytest.approx(observed.crossed_bytes(), rel=0.001)


def test_shards_read_from_their_nodes_object_store(observed: ObservedEpoch) -> None:
    for node in range(NODES):
        readings = [r for at, r in zip(PLACED, observed.readings, strict=True) if at == node]
        delivered = sum(reading.delivered_bytes for reading in readings) * TRAVELS
        got = {name for reading in readings for name in reading.got}
        here = observed.fetched_on(node)
        assert sum(here.values()) >= MIN_LOCAL * delivered
        assert sum(here.values()) <= MAX_CROSSED * delivered
        # one copy serves all shards of a node
        assert [set(reading.got) for reading in readings] == [got, got]


def test_objects_of_one_node_are_not_sent_to_others(observed: ObservedEpoch) -> None:
    objects = [set(observed.fetched_on(node)) for node in range(NODES)]
    assert sum(map(len, objects)) == len(set.union(*objects))
    # while only node 1 reads, the other nodes receive nothing but the shared context
    if observed.plan.stages == ("map",):
        assert observed.first_node_use[0].received_bytes + observed.first_node_use[2].received_bytes < 2**20
    assert observed.first_node_use[1].received_bytes > 2**20


def test_every_node_runs_map_tasks(observed: ObservedEpoch) -> None:
    for stage in observed.plan.stages:
        assert len({observed.node_of(task) for task in observed.of_stage(stage)}) == NODES


@pytest.mark.nightly  # Ray moves a task if its node is busy, for example because of other load
def test_rows_are_placed_on_the_node_that_read_them(observed: ObservedEpoch) -> None:
    read, place = (
        {task.part: observed.node_of(task) for task in observed.of_stage(stage)}
        for stage in (observed.plan.stages[0], observed.plan.stages[-1])
    )
    assert read.keys() == place.keys()
    moved = sum(read[part] != place[part] for part in read)
    # except if its node is busy for longer than moving the rows takes
    assert moved <= len(read) // 4


def test_only_map_tasks_run_with_arguments_of_constant_size(observed: ObservedEpoch) -> None:
    stages = observed.plan.stages
    # idle workers are started in advance, one per CPU
    started = observed.of_stage("start")
    assert len(started) <= NODES * 2
    assert (
        len(observed.tasks) - len(started) == len(observed.arguments) == len(observed.producers) * len(stages)
    )
    # the shared context and, for a task that only places rows, the rows that were read
    assert sorted({references for references, _ in observed.arguments}) == list(range(1, len(stages) + 1))
    assert max(given_bytes for _, given_bytes in observed.arguments) < MAX_GIVEN_BYTES


class SoleTrainer:
    """Reads a complete pipeline on its own node."""

    def read(self, pipe: windrow.DatasetPipeline) -> list[tuple[int, str]]:
        with pipe.iterator() as shard:
            read_pass(shard, 100_000)
            return [(span.window, span.lane.split(" on ")[1]) for span in shard.stats().run.spans]


def _slow(batch: Any) -> Any:
    import time

    time.sleep(0.4)
    return batch


@pytest.mark.nightly
def test_window_of_few_tasks_uses_every_node(ray_cluster: Any, wide_path: Path) -> None:
    """Even if one node could run all of them and runs the coordinator."""
    ds = windrow.read_parquet(str(wide_path), target_block_bytes=1).map_batches(_slow, batch_format="pyarrow")
    # one task per block, because the output of a transform may be large
    pipe = ds.window(blocks_per_window=NODES + 1).random_shuffle_each_window(seed=4)
    large = ray_cluster.add_node(num_cpus=8, object_store_memory=STORE_BYTES)
    try:
        ray_cluster.wait_for_nodes()
        (reader,) = on_nodes(SoleTrainer, [large.node_id])
        ran = ray.get(reader.read.remote(pipe.options(prefetch_windows=0, executor="ray")))
    finally:
        ray_cluster.remove_node(large)
    # after the first window every node has workers; before that, nodes with workers run tasks of the others
    for window in range(5, GROUPS // (NODES + 1)):
        nodes = [node for of_window, node in ran if of_window == window]
        assert len(nodes) == len(set(nodes)) == NODES + 1

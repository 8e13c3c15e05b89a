"""What a window costs a cluster: objects, bytes that cross nodes, tasks, and where they run.

Counted by Ray itself: by its object stores, its timeline, and the places of its objects.
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
from tests.end_to_end.reading import eventually, read_pass
from tests.end_to_end.watching import (
    TASK_DIGITS,
    RanTask,
    Reading,
    Stores,
    StoreUse,
    WatchedCoordinator,
    WatchedTrainer,
    find_nodes,
    find_tasks,
    on_nodes,
)
from windrow.pipeline.executors.ray import coordinator

pytestmark = pytest.mark.timeout(150)

COLUMNS = 20
ROW_BYTES = 8 * COLUMNS
# the keys of a row group travel as what each is more than the first, in 2 of 8 bytes; the others are no whole numbers
TRAVELS = (ROW_BYTES - 6) / ROW_BYTES
GROUP_ROWS = 25_000
GROUPS = 60
# where each shard is read: two on each of three nodes
PLACED = (0, 0, 1, 1, 2, 2)
NODES = 3
MUST_CROSS = (NODES - 1) / NODES
MAX_CROSSED = 1.05
MIN_LOCAL = 0.99
# of what a task is given by value: its blocks, their places, and where rows go, by arithmetic
MAX_GIVEN_BYTES = 4 * 2**10


@dataclass(frozen=True)
class LogicalPlan:
    """A chain, and the slices and stages of its windows."""

    pipe: windrow.DatasetPipeline
    slices: int
    stages: tuple[str, ...]


@dataclass(frozen=True)
class Watched:
    """What was seen of one epoch.

    Attributes
    ----------
    lone, whole
        What each node's store had when the first shard had its first window, and when all had.
    readings
        What each shard delivered and got.
    tasks
        Every task that the cluster ran for it.
    arguments
        For each task that was submitted, its references and the bytes of the rest.
    """

    chain: LogicalPlan
    nodes: list[str]
    lone: list[StoreUse]
    whole: list[StoreUse]
    readings: list[Reading]
    tasks: list[RanTask]
    arguments: list[tuple[int, int]]

    def node_of(self, task: RanTask) -> str:
        """The first digits of the node that a task ran on."""
        return self.readings[0].nodes_of_workers[task.worker[:6]]

    def of_stage(self, stage: str) -> list[RanTask]:
        """The tasks of a stage."""
        return [task for task in self.tasks if task.name.startswith(f"windrow:{stage} ")]

    @property
    def makers(self) -> list[RanTask]:
        """The tasks that put out what shards get."""
        return self.of_stage(self.chain.stages[-1])

    @property
    def alone(self) -> bool:
        """Whether nothing but the objects of one window stood in the stores."""
        return self.chain.slices == len(self.chain.stages) == 1

    @property
    def delivered_bytes(self) -> int:
        """Decoded bytes of all rows."""
        return sum(reading.delivered_bytes for reading in self.readings)

    def got_on(self, node: int) -> dict[str, int]:
        """The objects that were got out of a node's own store, and their bytes."""
        return {
            name: got.size_bytes
            for at, reading in zip(PLACED, self.readings, strict=True)
            for name, got in reading.got.items()
            if at == node and self.nodes[node] in got.holders
        }

    def crossed_bytes(self) -> int:
        """Bytes of the objects that came to their readers from another node."""
        crossed = {
            name: got.size_bytes
            for at, reading in zip(PLACED, self.readings, strict=True)
            for name, got in reading.got.items()
            if got.holders != {self.nodes[at]}
        }
        return sum(crossed.values())


@pytest.fixture(scope="module")
def wide_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """240 MB decoded, in row groups of 4 MB."""
    path = tmp_path_factory.mktemp("wide") / "x.parquet"
    return write_wide(path, GROUPS * GROUP_ROWS, columns=COLUMNS, row_group_size=GROUP_ROWS)


def _chain(kind: str, path: Path) -> LogicalPlan:
    counted = kind == "counted first"
    given = pc.field("key") != 5 if counted else None
    ds = windrow.read_parquet(str(path), target_block_bytes=1, filter=given)
    windows = 2 if kind == "sliced" else 1
    pipe = ds.window(blocks_per_window=GROUPS // windows).repeat(1).random_shuffle_each_window(seed=3)
    if kind == "sliced":
        # two windows of 120 MB, on the nodes that make and that read them, would take 430 MB
        return LogicalPlan(pipe.options(memory_limit="300MB"), 2, ("map",))
    return LogicalPlan(pipe, 1, ("read", "place") if counted else ("map",))


@pytest.fixture(scope="module", params=["plain", "counted first", "sliced"])
def watched(request: pytest.FixtureRequest, ray_cluster: Any, wide_path: Path) -> Iterator[Watched]:
    """One epoch of a chain, read by six trainers."""
    chain = _chain(request.param, wide_path)
    nodes = find_nodes()
    assert len(nodes) == NODES
    trainers = on_nodes(WatchedTrainer, [nodes[at] for at in PLACED])
    stores = Stores(nodes)
    earlier = {task.id for task in find_tasks()}

    def since() -> list[RanTask]:
        return [task for task in find_tasks() if task.id not in earlier]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coordinator, "Coordinator", WatchedCoordinator)
        shards = chain.pipe.split(len(PLACED), equal=True, locality_hints=trainers)
    actor = shards[0]._session._coordinator  # type: ignore[attr-defined]
    pairs = list(zip(trainers, shards, strict=True))
    # the shards of node 1 alone, then all of them
    ray.get([trainer.begin.remote(shard) for trainer, shard in pairs[2:4]])
    lone = stores.use()
    ray.get([trainer.begin.remote(shard) for trainer, shard in pairs[:2] + pairs[4:]])
    whole = stores.use()
    readings = ray.get([trainer.finish.remote() for trainer in trainers])
    arguments = ray.get(actor.arguments.remote())
    # tasks tell Ray of their end once a second
    assert eventually(lambda: len(since()) >= len(arguments))
    yield Watched(chain, nodes, lone, whole, readings, since(), arguments)
    for trainer in trainers:
        ray.kill(trainer)


def test_everything_is_delivered_once(watched: Watched) -> None:
    rows = sum(reading.rows for reading in watched.readings)
    assert GROUPS * GROUP_ROWS - len(PLACED) <= rows <= GROUPS * GROUP_ROWS
    assert watched.delivered_bytes == rows * ROW_BYTES
    assert not any(reading.dropped_windows for reading in watched.readings)


def test_a_task_makes_one_object_for_each_node_and_slice(watched: Watched) -> None:
    objects = {name for reading in watched.readings for name in reading.got}
    made = Counter(name[:TASK_DIGITS] for name in objects)
    assert made == dict.fromkeys((task.id for task in watched.makers), NODES * watched.chain.slices)
    if watched.alone:
        # one more is what all tasks share
        assert sum(store.made for store in watched.whole) == len(objects) + 1


def test_no_more_crosses_nodes_than_must(watched: Watched) -> None:
    must_bytes = watched.delivered_bytes * TRAVELS * MUST_CROSS
    assert 0.95 * must_bytes < watched.crossed_bytes() <= MAX_CROSSED * must_bytes
    if watched.alone:
        received = sum(store.received_bytes for store in watched.whole)
        assert received == pytest.approx(watched.crossed_bytes(), rel=0.001)


def test_shards_read_out_of_their_own_nodes_store(watched: Watched) -> None:
    for node in range(NODES):
        readings = [r for at, r in zip(PLACED, watched.readings, strict=True) if at == node]
        delivered = sum(reading.delivered_bytes for reading in readings) * TRAVELS
        got = {name for reading in readings for name in reading.got}
        here = watched.got_on(node)
        assert sum(here.values()) >= MIN_LOCAL * delivered
        assert sum(here.values()) <= MAX_CROSSED * delivered
        # one copy serves all shards of a node
        assert [set(reading.got) for reading in readings] == [got, got]


def test_what_is_for_one_node_comes_to_no_other(watched: Watched) -> None:
    objects = [set(watched.got_on(node)) for node in range(NODES)]
    assert sum(map(len, objects)) == len(set.union(*objects))
    # while only node 1 read, the others received nothing but what all tasks share
    if watched.chain.stages == ("map",):
        assert watched.lone[0].received_bytes + watched.lone[2].received_bytes < 2**20
    assert watched.lone[1].received_bytes > 2**20


def test_every_node_maps(watched: Watched) -> None:
    for stage in watched.chain.stages:
        assert len({watched.node_of(task) for task in watched.of_stage(stage)}) == NODES


@pytest.mark.nightly  # Ray moves a task where its node is busy, which other load brings about
def test_rows_are_placed_where_they_were_read(watched: Watched) -> None:
    read, place = (
        {task.part: watched.node_of(task) for task in watched.of_stage(stage)}
        for stage in (watched.chain.stages[0], watched.chain.stages[-1])
    )
    assert read.keys() == place.keys()
    moved = sum(read[part] != place[part] for part in read)
    # but where its node is busy for longer than the rows take to move
    assert moved <= len(read) // 4


def test_only_map_tasks_run_and_none_has_an_argument_for_each_map_and_run(watched: Watched) -> None:
    stages = watched.chain.stages
    # before there is work, workers are started, each for one CPU
    started = watched.of_stage("start")
    assert len(started) <= NODES * 2
    assert len(watched.tasks) - len(started) == len(watched.arguments) == len(watched.makers) * len(stages)
    # the context that all tasks share, and the rows that were read, where a task only places
    assert sorted({references for references, _ in watched.arguments}) == list(range(1, len(stages) + 1))
    assert max(given_bytes for _, given_bytes in watched.arguments) < MAX_GIVEN_BYTES


class Lone:
    """Reads a whole chain where it lives."""

    def read(self, pipe: windrow.DatasetPipeline) -> list[tuple[int, str]]:
        with pipe.iterator() as shard:
            read_pass(shard, 100_000)
            return [(span.window, span.lane.split(" on ")[1]) for span in shard.stats().run.spans]


def _slow(batch: Any) -> Any:
    import time

    time.sleep(0.4)
    return batch


def test_a_window_of_few_tasks_uses_every_node(ray_cluster: Any, wide_path: Path) -> None:
    """Even where one node has room for all of them, and runs the coordinator."""
    ds = windrow.read_parquet(str(wide_path), target_block_bytes=1).map_batches(_slow, batch_format="pyarrow")
    # a task for each block, since what a transform returns may be large
    pipe = ds.window(blocks_per_window=NODES + 1).random_shuffle_each_window(seed=4)
    large = ray_cluster.add_node(num_cpus=8, object_store_memory=STORE_BYTES)
    try:
        ray_cluster.wait_for_nodes()
        (reader,) = on_nodes(Lone, [large.node_id])
        ran = ray.get(reader.read.remote(pipe.options(prefetch_windows=0, executor="ray")))
    finally:
        ray_cluster.remove_node(large)
    # by then every node has workers; before, a node that has some runs the tasks of one that is late
    for window in range(5, GROUPS // (NODES + 1)):
        nodes = [node for of_window, node in ran if of_window == window]
        assert len(nodes) == len(set(nodes)) == NODES + 1

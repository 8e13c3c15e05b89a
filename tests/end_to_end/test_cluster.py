"""Shards consumed on several nodes: same rows in the same order, map outputs grouped by node."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.data import write_numbers
from tests.end_to_end.reading import at_once, column, eventually, read_pass
from windrow import SequenceSlice, Shard

pytestmark = pytest.mark.timeout(150)

ROWS = 12_000
EPOCHS = 2


def read_selected(shard: Shard, columns: list[str], sequence: Any) -> list[dict[str, Any]]:
    """The batches of a reader, in hashes of each column."""
    found = [
        {name: zlib.crc32(np.ascontiguousarray(values).tobytes()) for name, values in batch.items()}
        for epoch in shard.iter_epochs()
        for batch in epoch.iter_batches(100, columns=columns, sequence=sequence)
    ]
    shard.close()
    return found


class Trainer:
    """Reads a shard on its own node."""

    def node(self) -> str:
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def read(self, shard: Shard) -> list[list[int]]:
        return [column(read_pass(shard, 100)) for _ in range(EPOCHS)]

    def close(self, shard: Shard) -> None:
        shard.close()

    def read_selected(self, shard: Shard, columns: list[str], sequence: Any) -> list[dict[str, Any]]:
        return read_selected(shard, columns, sequence)

    def read_torch(self, shard: Shard) -> int:
        return sum(int(batch["x"].sum()) for batch in shard.iter_torch_batches(100))


@pytest.fixture(scope="module")
def nodes(ray_cluster: Any) -> list[str]:
    """The ids of the three nodes, starting with that of the driver."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    others = sorted(node["NodeID"] for node in ray.nodes() if node["NodeID"] != own)
    assert len(others) == 2
    return [own, *others]


@pytest.fixture(scope="module")
def pipe(ray_cluster: Any, tmp_path_factory: pytest.TempPathFactory) -> windrow.DatasetPipeline:
    """A pipeline with six windows per epoch."""
    path = write_numbers(tmp_path_factory.mktemp("numbers") / "x.parquet", ROWS, row_group_size=500)
    ds = windrow.read_parquet(str(path), target_block_bytes=1)
    return ds.window(blocks_per_window=4).repeat(EPOCHS).random_shuffle_each_window(seed=21)


@pytest.fixture(scope="module")
def expected(pipe: windrow.DatasetPipeline) -> list[list[list[int]]]:
    """The rows that the threads executor delivers to four shards."""
    shards = pipe.options(executor="threads").split(4)
    return at_once(shards, lambda shard: [column(read_pass(shard, 100)) for _ in range(EPOCHS)])


def _trainers(nodes: list[str], placed: tuple[int, ...]) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    actor = ray.remote(Trainer)
    trainers = [
        actor.options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[at], soft=False)
        ).remote()
        for at in placed
    ]
    assert ray.get([trainer.node.remote() for trainer in trainers]) == [nodes[at] for at in placed]
    return trainers


HINTS: dict[str, Callable[[list[Any], list[str]], list[Any] | None]] = {
    "none": lambda trainers, nodes: None,
    "actors": lambda trainers, nodes: list(trainers),
    "nodes": lambda trainers, nodes: [nodes[0], nodes[0], nodes[1], nodes[2]],
    "mixed": lambda trainers, nodes: [None, trainers[1], nodes[1], None],
    "wrong": lambda trainers, nodes: [nodes[2], nodes[1], nodes[0], nodes[0]],
}


# the others differ in where objects are, which `test_locality` watches
@pytest.mark.parametrize(
    "hint",
    [hint if hint == "mixed" else pytest.param(hint, marks=pytest.mark.nightly) for hint in HINTS],
)
def test_order_matches_threads(
    pipe: windrow.DatasetPipeline, nodes: list[str], expected: list[list[list[int]]], hint: str
) -> None:
    import ray

    trainers = _trainers(nodes, (0, 0, 1, 2))
    shards = pipe.split(4, locality_hints=HINTS[hint](trainers, nodes))
    coordinator = shards[0]._session._coordinator  # type: ignore[attr-defined]
    if hint in ("actors", "nodes"):
        assert ray.get(coordinator.destinations.remote()) == ((0, 1), (2,), (3,))
    found = ray.get([t.read.remote(shard) for t, shard in zip(trainers, shards, strict=True)])
    assert found == expected
    assert sorted(value for shard in found for value in shard[0]) == list(range(ROWS))
    # the node on which a shard is read overrides the locality hints
    assert ray.get(coordinator.destinations.remote()) == ((0, 1), (2,), (3,))


def test_invalid_hints(pipe: windrow.DatasetPipeline, nodes: list[str]) -> None:
    with pytest.raises(windrow.PlanError, match="live node"):
        pipe.split(2, locality_hints=[nodes[0], "node-17"])
    with pytest.raises(windrow.PlanError, match="actor handle"):
        pipe.split(2, locality_hints=[3, None])


def test_map_tasks_run_on_every_node(pipe: windrow.DatasetPipeline, nodes: list[str]) -> None:
    with pipe.iterator() as shard:
        assert len(column(read_pass(shard))) == ROWS
        spans = shard.stats().run.spans
    places = {span.lane.split(" on ")[1] for span in spans if span.kind == "map"}
    assert len(places) > 1
    assert places <= {node[:6] for node in nodes}


@pytest.mark.nightly
def test_torch_batches_on_other_nodes(pipe: windrow.DatasetPipeline, nodes: list[str]) -> None:
    import ray

    trainers = _trainers(nodes, (1, 2))
    shards = pipe.split(2, equal=True, locality_hints=trainers)
    sums = ray.get([t.read_torch.remote(shard) for t, shard in zip(trainers, shards, strict=True)])
    assert sum(sums) == ROWS * (ROWS - 1) // 2


def test_objects_are_released_on_every_node(pipe: windrow.DatasetPipeline, nodes: list[str]) -> None:
    import ray

    trainers = _trainers(nodes, (1, 2))
    shards = pipe.split(2, locality_hints=trainers)
    first = [t.read.remote(shard) for t, shard in zip(trainers, shards, strict=True)]
    ray.get(first)
    for trainer in trainers:
        ray.kill(trainer)
    del first, shards, trainers

    def used() -> float:
        name = "object_store_memory"
        return float(ray.cluster_resources()[name] - ray.available_resources().get(name, 0))

    assert eventually(lambda: used() == 0, 30), f"{used():,.0f} bytes are still stored"


def test_replicas_on_several_nodes(pipe: windrow.DatasetPipeline, nodes: list[str]) -> None:
    import ray

    threads = pipe.options(executor="threads").split(2)
    expected = at_once(threads, lambda shard: [column(read_pass(shard, 100)) for _ in range(EPOCHS)])
    # one shard on two nodes, the other on two of which it shares one, and its third replica beside the first
    placed = [_trainers(nodes, (0, 1, 0)), _trainers(nodes, (1, 2, 1))]
    shards = pipe.options(executor="ray").split(2, replicas=3, locality_hints=placed)
    reading = [
        [trainer.read.remote(shard) for trainer, shard in zip(trainers, of_shard, strict=True)]
        for trainers, of_shard in zip(placed, shards, strict=True)
    ]
    assert [ray.get(of_shard) for of_shard in reading] == [[rows] * 3 for rows in expected]


def test_a_node_whose_replicas_close_unread_is_not_waited_for(
    pipe: windrow.DatasetPipeline, nodes: list[str]
) -> None:
    import ray

    [expected] = at_once(
        pipe.options(executor="threads").split(1),
        lambda shard: [column(read_pass(shard, 100)) for _ in range(EPOCHS)],
    )
    placed = _trainers(nodes, (1, 2, 2))
    [shards] = pipe.options(executor="ray").split(1, replicas=3, locality_hints=[placed])
    reading = placed[0].read.remote(shards[0])
    ray.get([trainer.close.remote(shard) for trainer, shard in zip(placed[1:], shards[1:], strict=True)])
    session: Any = shards[0]._session

    def doing() -> str:
        return str(ray.get(session.session._coordinator.diagnose.remote(1))[0])

    # what a node would hold back is not held for it
    assert eventually(lambda: doing() == "shard 1 has been closed", 30)
    assert ray.get(reading) == expected


def test_only_what_replicas_select_crosses_to_their_node(nodes: list[str], tmp_path: Path) -> None:
    import ray
    from ray._private.state import actors

    rng, rows, length = np.random.default_rng(3), 8_000, 64
    lists = [
        pa.FixedSizeListArray.from_arrays(pa.array(rng.integers(0, 2**30, rows * length)), length)
        for _ in range(2)
    ]
    table = pa.table({"x": np.arange(rows), "tokens": lists[0], "labels": lists[1]})
    # objects of some hundred kilobytes: Ray sends small ones with its answers
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=500)
    pipe = windrow.read_parquet(str(tmp_path), target_block_bytes=1).window(blocks_per_window=4)
    pipe = pipe.repeat(EPOCHS).random_shuffle_each_window(seed=4)
    selected: list[tuple[list[str], Any]] = [
        (["tokens"], SequenceSlice(1, 0, 2, "head_tail")),
        (["tokens", "x"], SequenceSlice(1, 1, 2, "head_tail")),
        (["labels"], None),
    ]
    expected = [
        read_selected(pipe.options(executor="threads").split(1)[0], *selection) for selection in selected
    ]
    placed = _trainers(nodes, (0, 1, 2))
    [shards] = pipe.options(executor="ray").split(1, replicas=3, locality_hints=[placed])
    reading = [
        trainer.read_selected.remote(shard, *selection)
        for trainer, shard, selection in zip(placed, shards, selected, strict=True)
    ]
    assert ray.get(reading) == expected

    def narrowing() -> list[str]:
        return [one["State"] for one in actors().values() if one["ActorClassName"] == "_NarrowActor"]

    assert narrowing()
    assert eventually(lambda: set(narrowing()) == {"DEAD"}, 60)


@pytest.mark.nightly
def test_packed_slices_on_several_nodes(nodes: list[str]) -> None:
    import ray

    rng, documents = np.random.default_rng(3), 3_000
    lengths = rng.integers(100, 400, documents)
    tokens = pa.ListArray.from_arrays(
        np.append(0, np.cumsum(lengths)), pa.array(rng.integers(0, 2**30, lengths.sum()))
    )
    rows = pa.table({"tokens": tokens, "document": np.arange(documents)})
    ds = windrow.from_arrow([rows.slice(at, 250) for at in range(0, documents, 250)])
    pipe = ds.window(blocks_per_window=3).repeat(EPOCHS).random_shuffle_each_window(seed=4)
    pipe = pipe.pack(64, columns=["tokens", "document"])
    selected: list[tuple[Any, Any]] = [
        (["tokens"], SequenceSlice(1, 0, 2, "head_tail")),
        (["tokens", "document"], SequenceSlice(1, 1, 2, "head_tail")),
    ]
    expected = [
        [read_selected(shard, *selection) for shard in pipe.options(executor="threads").split(2, equal=True)]
        for selection in selected
    ]
    # both shards on the same nodes, so that map outputs hold the rows of both
    placed = [_trainers(nodes, (1, 2)) for _ in range(2)]
    shards = pipe.options(executor="ray").split(2, equal=True, replicas=2, locality_hints=placed)
    reading = [
        [placed[at][replica].read_selected.remote(shards[at][replica], *selection) for at in range(2)]
        for replica, selection in enumerate(selected)
    ]
    assert [ray.get(of_replica) for of_replica in reading] == expected


def add_node(batch: dict[str, Any]) -> dict[str, Any]:
    import ray

    node = ray.get_runtime_context().get_node_id()
    return {"x": batch["x"], "node": np.full(len(batch["x"]), zlib.crc32(node.encode()))}


class Holder:
    """Keeps the CPUs of a node from others."""

    def hold(self) -> None:
        """Return once it has them."""


def test_preparation_moves_away_from_a_busy_node(
    pipe: windrow.DatasetPipeline, nodes: list[str], expected: list[list[list[int]]]
) -> None:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(nodes[0], soft=False)
    holder = ray.remote(Holder).options(num_cpus=2, scheduling_strategy=here).remote()
    ray.get(holder.hold.remote())
    prepared = pipe.options(executor="ray").map_batches(add_node, compute=windrow.ActorPool(2), num_cpus=1)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(_read_nodes, prepared.split(4)))
    assert [rows for rows, _ in found] == expected
    used = set().union(*(used for _, used in found))
    assert used <= {zlib.crc32(node.encode()) for node in nodes[1:]}
    ray.kill(holder)


def _read_nodes(shard: Shard) -> tuple[list[list[int]], set[int]]:
    epochs, used = [], set[int]()
    for epoch in shard.iter_epochs():
        rows: list[int] = []
        for batch in epoch.iter_batches(100):
            rows += batch["x"].tolist()
            used |= set(batch["node"].tolist())
        epochs.append(rows)
    shard.close()
    return epochs, used

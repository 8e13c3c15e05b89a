"""Data from memory on Ray: put into the object store once, and Ray's own datasets, in and out."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.io.adapters.in_memory_tables import InMemoryBlocks

ROWS = 200_000

# Ray Data warns of its own settings when it is first used
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray")


def _pipe(dataset: windrow.Dataset) -> windrow.DatasetPipeline:
    return dataset.window(blocks_per_window=3).repeat(1).random_shuffle_each_window(seed=9)


def _read(pipe: windrow.DatasetPipeline, executor: str) -> list[int]:
    with pipe.options(executor=executor, progress=False).iterator() as shard:
        return [x for batch in shard.iter_batches(batch_size=5_000) for x in batch["x"].tolist()]


@pytest.fixture
def held() -> windrow.Dataset:
    return windrow.from_numpy({"x": np.arange(ROWS)}, target_block_bytes="128KiB")


def test_blocks_are_put_once_and_shards_carry_none(
    ray_local: Any, held: windrow.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = []
    pack = InMemoryBlocks.pack

    def count(held: InMemoryBlocks) -> Any:
        packed.append(held)
        return pack(held)

    monkeypatch.setattr(InMemoryBlocks, "pack", count)
    serialization = ray_local._private.worker.global_worker.get_serialization_context()

    class Trainer:
        def train(self, shard: windrow.Shard) -> list[int]:
            return [x for batch in shard.iter_batches(batch_size=5_000) for x in batch["x"].tolist()]

    trainers = [ray_local.remote(num_cpus=0)(Trainer).remote() for _ in range(2)]
    shards = _pipe(held).options(executor="ray", progress=False).split(2)
    assert serialization.serialize(shards[0]).total_bytes < 100_000  # of 1.6 MB
    found = ray_local.get(
        [trainer.train.remote(shard) for trainer, shard in zip(trainers, shards, strict=True)]
    )
    assert sorted(found[0] + found[1]) == list(range(ROWS))
    assert len(packed) == 1
    assert _read(_pipe(held), "ray") == _read(_pipe(held), "threads")
    assert len(packed) == 1


def test_a_dataset_read_by_a_task_reads_the_store(ray_local: Any, held: windrow.Dataset) -> None:
    def work(dataset: windrow.Dataset) -> tuple[list[int], bytes]:
        return _read(_pipe(dataset), "threads"), pickle.dumps(dataset)

    order, pickled = ray_local.get(ray_local.remote(num_cpus=0)(work).remote(held))
    assert order == _read(_pipe(held), "threads")
    # what leaves Ray brings its rows along
    assert len(pickled) > ROWS * 8
    assert _read(_pipe(pickle.loads(pickled)), "threads") == order


def test_a_plain_pickle_holds_the_rows(ray_local: Any, held: windrow.Dataset) -> None:
    assert len(pickle.dumps(held)) > ROWS * 8


@pytest.mark.parametrize("executor", ["threads", "ray"])
def test_from_ray_has_the_order_of_parquet(ray_local: Any, tmp_path: Path, executor: str) -> None:
    import ray.data

    vectors = np.arange(600, dtype=np.float32).reshape(300, 2)
    blocks = [pa.table({"x": range(start, start + 100)}) for start in (0, 100, 200)]
    dataset = windrow.from_ray(ray.data.from_arrow(blocks), target_block_bytes=320)
    assert dataset.num_blocks() == 9
    with pq.ParquetWriter(tmp_path / "rows.parquet", blocks[0].schema) as writer:
        for start, count in zip(*_starts(dataset), strict=True):
            writer.write_table(pa.table({"x": range(start, start + count)}))
    same = windrow.read_parquet(tmp_path / "rows.parquet", target_block_bytes=1)
    assert _read(_pipe(dataset), executor) == _read(_pipe(same), executor)
    tensors = windrow.from_ray(ray.data.from_numpy(vectors))
    assert (tensors.to_numpy()["data"] == vectors).all()


def _starts(dataset: windrow.Dataset) -> tuple[list[int], list[int]]:
    rows = dataset._plan.source.blocks.rows
    return (np.cumsum(rows) - rows).tolist(), rows.tolist()


def test_to_ray_reads_lazily_and_shuffled(ray_local: Any) -> None:
    numbers = windrow.range(1000, block_rows=300)
    doubled = numbers.map_batches(lambda batch: {"id": batch["id"] * 2}).to_ray()
    assert sorted(row["id"] for row in doubled.iter_rows()) == list(range(0, 2000, 2))
    assert numbers.to_ray().count() == 1000
    pipe = numbers.window(blocks_per_window=2).random_shuffle_each_window(seed=4)
    shuffled = pipe.options(executor="threads", progress=False)
    expected = [row["id"] for row in shuffled.iter_rows()]
    assert [row["id"] for row in shuffled.to_ray().iter_rows()] == expected != list(range(1000))


def test_dataset_that_would_spill_raises(ray_local: Any) -> None:
    large = windrow.range(2**40, block_rows=2**34).repeat(1).random_shuffle_each_window(seed=1)
    with pytest.raises(windrow.PlanError, match=r"8\.00 TiB in memory"):
        large.to_ray()


def test_another_dataset_raises(ray_local: Any) -> None:
    with pytest.raises(windrow.PlanError, match=r"not a ray\.data\.Dataset"):
        windrow.from_ray([1, 2])

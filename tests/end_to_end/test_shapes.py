"""Unusual shapes: empty datasets, more shards than rows, shards read at different times or in other processes."""

from __future__ import annotations

import multiprocessing
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.data import write_numbers
from tests.end_to_end.reading import at_once, column, read_pass, windrow_threads
from windrow import Shard

pytestmark = pytest.mark.timeout(120)

Readable = Any


def _files_without_rows(directory: Path) -> Path:
    empty = pa.table({"x": pa.array([], pa.int64()), "y": pa.array([], pa.float64())})
    pq.write_table(empty, directory / "0.parquet")
    with pq.ParquetWriter(directory / "1.parquet", empty.schema):
        pass  # not even a row group
    return directory


def _rows_filtered_out(directory: Path) -> Path:
    return write_numbers(directory / "x.parquet", 1_000)


@pytest.fixture(params=["no rows", "filtered", "dropped"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> windrow.Dataset:
    """A dataset without rows: in its files, or because of its filter or transform."""
    if request.param == "no rows":
        return windrow.read_parquet(str(_files_without_rows(tmp_path)))
    path = str(_rows_filtered_out(tmp_path))
    if request.param == "filtered":
        return windrow.read_parquet(path, filter=pc.field("x") + pc.field("y") < 0, target_block_bytes=1)
    return windrow.read_parquet(path).map_batches(lambda batch: {"x": batch["x"][:0]}, preserves_rows=False)


PIPELINES: dict[str, Callable[[windrow.Dataset], windrow.DatasetPipeline]] = {
    "window": lambda ds: ds.window(),
    "shuffle": lambda ds: ds.window().random_shuffle_each_window(seed=1).repeat(2),
    "small windows": lambda ds: ds.window(blocks_per_window=2).random_shuffle_each_window(seed=1),
    "whole": lambda ds: ds.repeat(2).random_shuffle_each_window(seed=1),
    "after": lambda ds: ds.repeat(2).random_shuffle_each_window(seed=1).map_batches(lambda batch: batch),
}


@pytest.mark.parametrize(
    ("executor", "pipeline"),
    [
        *(("threads", pipeline) for pipeline in PIPELINES),
        pytest.param("ray", "small windows", marks=pytest.mark.ray),
        pytest.param("ray", "after", marks=[pytest.mark.ray, pytest.mark.nightly]),
    ],
    indirect=["executor"],
)
@pytest.mark.ray_at_night
def test_no_rows_give_no_batches(executor: str, empty: windrow.Dataset, pipeline: str) -> None:
    pipe = PIPELINES[pipeline](empty).options(executor=executor)
    for shard in pipe.split(3, equal="pad"):
        with shard:
            assert [list(epoch.iter_torch_batches(10)) for epoch in shard.iter_epochs()] in ([[]], [[], []])
    assert list(pipe.iter_rows()) == []
    assert not windrow_threads()


def test_empty_dataset_without_a_run(empty: windrow.Dataset) -> None:
    assert empty.count() == 0
    assert empty.take() == []
    assert list(empty.iter_batches()) == []
    assert [list(shard.iter_rows()) for shard in empty.split(2)] == [[], []]
    assert empty.columns()[0] == "x"


@pytest.mark.parametrize("equal", [False, True, "pad"])
@pytest.mark.ray_at_night
def test_more_shards_than_rows(executor: str, tmp_path: Path, equal: Any) -> None:
    path = write_numbers(tmp_path / "x.parquet", 3, row_group_size=1)
    pipe = windrow.read_parquet(str(path)).repeat(1).random_shuffle_each_window(seed=1)
    shards = pipe.options(executor=executor).split(5, equal=equal)
    found = at_once(shards, lambda shard: column(read_pass(shard, 2)))
    assert sorted(map(len, found)) == {False: [0, 0, 1, 1, 1], True: [0] * 5, "pad": [1] * 5}[equal]
    if equal is not True:
        assert {value for part in found for value in part} == {0, 1, 2}
    assert [shard.steps_per_epoch(2) for shard in shards] == [len(part) for part in found]


def test_shards_read_one_after_another(executor: str, tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 3_000)
    ds = windrow.read_parquet(str(path), target_block_bytes=1)
    pipe = ds.window(blocks_per_window=6).repeat(2).random_shuffle_each_window(seed=4)
    shards = pipe.options(executor=executor).split(3)
    for _ in range(2):
        assert sorted(value for shard in shards for value in column(read_pass(shard))) == list(range(3_000))


@pytest.mark.ray_at_night
def test_shards_read_alternately(executor: str, tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 3_000)
    pipe = windrow.read_parquet(str(path), target_block_bytes=1).window(blocks_per_window=6)
    shards = pipe.random_shuffle_each_window(seed=4).options(executor=executor).split(3)
    found: list[int] = []
    for batches in zip(*(shard.iter_batches(100) for shard in shards), strict=True):
        found += column(batches)
    assert sorted(found) == list(range(3_000))


def test_shard_is_split(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 2_345)
    ds = windrow.read_parquet(str(path), target_block_bytes=1)
    pipe = ds.window(blocks_per_window=7).repeat(2).random_shuffle_each_window(seed=9)
    threads = pipe.options(executor="threads")
    split = at_once(threads.split(3), lambda shard: [column(read_pass(shard)) for _ in range(2)])
    for rank in range(3):
        shard = threads.shard(rank=rank, world_size=3, equal=False)
        assert [column(read_pass(shard)) for _ in range(2)] == split[rank]


def _read_elsewhere(shard: Shard) -> list[int]:
    with shard:
        return column(read_pass(shard))


def test_shard_of_threads_sent_to_another_process(tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 2_000)
    pipe = windrow.read_parquet(str(path), target_block_bytes=1).window(blocks_per_window=7)
    shuffled = pipe.random_shuffle_each_window(seed=2).options(executor="threads")
    expected = at_once(shuffled.split(2), _read_elsewhere)
    spawned = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"))
    with spawned as processes, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = list(processes.map(_read_elsewhere, shuffled.split(2)))
    assert found == expected
    texts = [str(warning.message) for warning in caught]
    assert sum("runs its own engine in the process it is sent to" in text for text in texts) == 2


def test_shard_sent_to_an_actor(ray_local: Any, tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 2_000)
    pipe = windrow.read_parquet(str(path), target_block_bytes=1).window(blocks_per_window=7)
    shuffled = pipe.random_shuffle_each_window(seed=2)
    expected = at_once(shuffled.options(executor="threads").split(2), _read_elsewhere)
    task = ray_local.remote(num_cpus=0)(_read_elsewhere)
    shards = shuffled.options(executor="auto").split(2)
    assert ray_local.get([task.remote(shard) for shard in shards]) == expected


# --- lengths and statistics


@pytest.mark.ray_at_night
def test_lengths_starts_and_statistics(executor: str, tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 1_003)
    pipe = windrow.read_parquet(str(path), target_block_bytes=1).window(blocks_per_window=4).repeat(3)
    shard = pipe.random_shuffle_each_window(seed=2).options(executor=executor).iterator()
    assert shard.steps_per_epoch(50) == 21
    assert shard.steps_per_epoch(50, drop_last=True) == 20
    batches = shard.iter_batches(50)
    assert (len(batches), batches.start) == (21, 0)
    assert [len(batch["x"]) for batch in batches] == [50] * 20 + [3]
    stats = shard.stats()
    assert (stats.shard, stats.epochs, stats.batches, stats.rows) == (0, 1, 21, 1_003)
    assert stats.bytes == pytest.approx(1_003 * 16, rel=0.1)
    assert stats.run.left_out_rows == 0
    batches = shard.iter_batches(50, drop_last=True)
    assert len(batches) == 20
    for _ in range(5):
        next(batches)
    stats = shard.stats()
    assert (stats.epochs, stats.batches, stats.rows) == (1, 26, 1_253)
    batches.close()
    assert len(list(shard.iter_rows())) == 1_003
    shard.close()
    stats = shard.stats()
    assert (stats.epochs, stats.batches, stats.rows) == (2, 26 + 1_003, 1_253 + 1_003)


@pytest.mark.ray_at_night
def test_lengths_with_unknown_row_counts(executor: str, tmp_path: Path) -> None:
    path = write_numbers(tmp_path / "x.parquet", 1_000)
    ds = windrow.read_parquet(str(path), target_block_bytes=1, filter=pc.field("x") + pc.field("y") < 500)
    pipe = ds.window(blocks_per_window=3).repeat(2).random_shuffle_each_window(seed=2)
    with pipe.options(executor=executor).iterator() as shard:
        with pytest.raises(windrow.PlanError, match=r"count\(\)"):
            shard.steps_per_epoch(50)
        batches = shard.iter_batches(50)
        with pytest.raises(TypeError, match=r"count\(\)"):
            len(batches)
        assert sorted(column(list(batches))) == list(range(500))
        # row counts found in one epoch are used in later epochs
        assert shard.steps_per_epoch(30) == 17
        batches = shard.iter_batches(30)
        assert len(batches) == 17
        assert sorted(column(list(batches))) == list(range(500))


@pytest.mark.ray_at_night
@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize(("equal", "left_out", "padded"), [(True, 2, 0), ("pad", 0, 1), (False, 0, 0)])
def test_rows_that_equal_drops_and_repeats(
    executor: str, tmp_path: Path, equal: Any, left_out: int, padded: int, counted: bool
) -> None:
    path = write_numbers(tmp_path / "x.parquet", 1_001)
    # with a filter, row counts are known only after reading
    given = pc.field("x") + 1 > 0 if counted else None
    pipe = windrow.read_parquet(str(path), target_block_bytes=1, filter=given).window(blocks_per_window=4)
    shards = pipe.random_shuffle_each_window(seed=2).options(executor=executor).split(3, equal=equal)

    def read(shard: Shard) -> tuple[list[int], int]:
        epoch = next(shard.iter_epochs())
        with pytest.raises(windrow.PlanError, match="repeated rows of epoch 0"):
            _ = epoch.padded_rows
        found = column(list(epoch.iter_batches(50)))
        return found, epoch.padded_rows

    found = at_once(shards, read)
    assert {of_shard[1] for of_shard in found} == {padded}
    rows = [value for part, _ in found for value in part]
    assert len(rows) == 1_001 - left_out + padded
    assert len(set(rows)) == 1_001 - left_out
    assert shards[0].stats().run.left_out_rows == left_out


@pytest.mark.parametrize(("equal", "warns"), [(False, True), (True, False), ("pad", False)])
def test_uneven_shards_under_torch_distributed(tmp_path: Path, equal: Any, warns: bool) -> None:
    import torch.distributed as distributed

    path = write_numbers(tmp_path / "x.parquet", 101)
    pipe = windrow.read_parquet(str(path)).repeat(1).random_shuffle_each_window(seed=1)
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = [
                shard.iter_batches(1) for shard in pipe.options(executor="threads").split(2, equal=equal)
            ]
            for of_shard in batches:
                of_shard.close()
    finally:
        distributed.destroy_process_group()
    texts = [str(warning.message) for warning in caught if "steps in epoch 0" in str(warning.message)]
    assert len(texts) == (2 if warns else 0)
    assert all("50 or 51 steps" in text and "equal='pad'" in text for text in texts)
    assert "torch" in sys.modules


def test_torch_world_of_size_one(tmp_path: Path) -> None:
    import torch.distributed as distributed

    path = write_numbers(tmp_path / "x.parquet", 101)
    pipe = windrow.read_parquet(str(path)).repeat(1).random_shuffle_each_window()
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    try:
        rows = column(read_pass(pipe.options(executor="threads").shard()))
    finally:
        distributed.destroy_process_group()
    assert np.array_equal(np.sort(rows), np.arange(101))

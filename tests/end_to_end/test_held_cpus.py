"""Consumers that hold all CPUs of the cluster: only then do data tasks run without a CPU slot."""

from __future__ import annotations

import json
import threading
import time
import uuid
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windrow
from tests.end_to_end.data import write_numbers
from tests.end_to_end.reading import eventually
from windrow import Shard

pytestmark = pytest.mark.timeout(150)

ROWS, BLOCKS = 4_000, 20
CPUS = 4
HELD = "no CPU of the cluster is free"


def record_cpus(batch: dict[str, Any]) -> dict[str, Any]:
    """Record the CPUs that the running task was given."""
    import ray

    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 0.0)
    return {**batch, "cpus": np.full(len(batch["x"]), cpus)}


class RecordInterval:
    """A transform that records its start and end time; it is slow, ``until`` a file exists."""

    def __init__(self, folder: Path, until: Path | None = None) -> None:
        self.folder, self.until = folder, until

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        began = time.time()
        if self.until is None or not self.until.exists():
            time.sleep(0.2)
        (self.folder / f"{uuid.uuid4()}.json").write_text(json.dumps([began, time.time()]))
        return batch

    def max_concurrent(self) -> int:
        """Maximum number of concurrent calls."""
        intervals = [json.loads(path.read_text()) for path in self.folder.glob("*.json")]
        assert len(intervals) >= BLOCKS
        return max(sum(start <= began < stop for start, stop in intervals) for began, _ in intervals)


class Trainer:
    """Reads its shard; returns the rows, the CPUs of the tasks that prepared them, and the warnings."""

    def read(self, shard: Shard) -> tuple[list[int], set[float], list[str]]:
        rows, cpus = list[int](), set[float]()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            for batch in shard.iter_batches(100):
                rows += batch["x"].tolist()
                cpus |= set(batch["cpus"].tolist())
        return rows, cpus, [str(warning.message) for warning in warned if HELD in str(warning.message)]


@pytest.fixture
def pipe(tmp_path: Path) -> windrow.DatasetPipeline:
    path = write_numbers(tmp_path / "x.parquet", ROWS, row_group_size=ROWS // BLOCKS)
    ds = windrow.read_parquet(str(path), target_block_bytes=1).map_batches(record_cpus)
    return ds.window(blocks_per_window=5).random_shuffle_each_window(seed=5)


@pytest.fixture(params=["actors", pytest.param("placement group", marks=pytest.mark.nightly)])
def trainers(ray_local: Any, request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Four trainers that hold all four CPUs; in some cases in a placement group that captures child tasks."""
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    def all_free() -> bool:
        return bool(ray_local.available_resources().get("CPU", 0) == CPUS)

    assert eventually(all_free, 60)
    options: dict[str, Any] = {"num_cpus": 1}
    group = None
    if request.param == "placement group":
        group = placement_group([{"CPU": 1}] * CPUS)
        ray_local.get(group.ready(), timeout=30)
        options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
            group, placement_group_capture_child_tasks=True
        )
    actors = [ray_local.remote(Trainer).options(**options).remote() for _ in range(CPUS)]
    assert eventually(lambda: not ray_local.available_resources().get("CPU", 0), 30)
    yield actors
    for actor in actors:
        ray_local.kill(actor)
    if group is not None:
        remove_placement_group(group)
    assert eventually(all_free, 60)


def test_data_tasks_run_although_consumers_hold_all_cpus(
    ray_local: Any, pipe: windrow.DatasetPipeline, trainers: list[Any]
) -> None:
    shards = pipe.options(executor="ray").split(CPUS)
    found = ray_local.get([t.read.remote(s) for t, s in zip(trainers, shards, strict=True)], timeout=120)
    assert sorted(row for rows, _, _ in found for row in rows) == list(range(ROWS))
    assert {cpu for _, cpus, _ in found for cpu in cpus} == {0.0}
    assert sum(len(warned) for _, _, warned in found) == 1, "each warning is issued once"


@pytest.fixture
def recorded(tmp_path: Path) -> tuple[RecordInterval, windrow.Dataset]:
    """A dataset whose tasks record when they run."""
    path = write_numbers(tmp_path / "x.parquet", ROWS, row_group_size=ROWS // BLOCKS)
    (tmp_path / "recorded").mkdir()
    note = RecordInterval(tmp_path / "recorded")
    ds = windrow.read_parquet(str(path), target_block_bytes=1).map_batches(note)
    return note, ds.options(executor="ray")


# without a placement group alone: the test above shows that tasks run the same way within one
@pytest.mark.parametrize("trainers", ["actors"], indirect=True)
@pytest.mark.nightly
def test_tasks_without_cpu_slots_are_limited_by_the_cores(
    ray_local: Any, recorded: tuple[RecordInterval, windrow.Dataset], trainers: list[Any]
) -> None:
    note, ds = recorded
    shards = ds.map_batches(record_cpus).window(blocks_per_window=BLOCKS).split(CPUS)
    found = ray_local.get([t.read.remote(s) for t, s in zip(trainers, shards, strict=True)], timeout=120)
    assert sorted(row for rows, _, _ in found for row in rows) == list(range(ROWS))
    assert 1 < note.max_concurrent() <= CPUS


@pytest.mark.nightly
def test_write_continues_when_trainers_take_the_cpus_at_its_start(ray_local: Any, tmp_path: Path) -> None:
    """The CPUs do not appear as taken before the trainers have started."""
    blocks = 25 * BLOCKS  # a write that takes longer than the trainers' start, on a busy machine too
    path = write_numbers(tmp_path / "x.parquet", ROWS, row_group_size=ROWS // blocks)
    (tmp_path / "recorded").mkdir()
    note = RecordInterval(tmp_path / "recorded", until=tmp_path / "started")
    ds = windrow.read_parquet(str(path), target_block_bytes=1).map_batches(note).options(executor="ray")
    assert eventually(lambda: ray_local.available_resources().get("CPU", 0) == CPUS, 60)
    trainers = [ray_local.remote(Trainer).options(num_cpus=1).remote() for _ in range(CPUS)]

    def watch() -> None:
        ray_local.get([trainer.__ray_ready__.remote() for trainer in trainers], timeout=120)
        (tmp_path / "started").touch()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        with pytest.warns(RuntimeWarning, match=HELD) as warned:
            ds.write_parquet(str(tmp_path / "copy"))
        assert sum(HELD in str(warning.message) for warning in warned) == 1
        assert note.max_concurrent() <= CPUS
        watcher.join(120)
    finally:
        for trainer in trainers:
            ray_local.kill(trainer)
    rows = windrow.read_parquet(str(tmp_path / "copy")).to_numpy()["x"]
    assert sorted(rows.tolist()) == list(range(ROWS))
    assert len(list((tmp_path / "copy").glob("*.parquet"))) == blocks, (
        "blocks whose tasks were started twice are written once"
    )


class Splitter:
    """A consumer within the placement group that splits and writes itself."""

    def run(self, pipe: windrow.DatasetPipeline, path: str) -> tuple[int, int]:
        with pipe.options(executor="ray").iterator() as shard, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = sum(len(batch["x"]) for batch in shard.iter_batches(100))
            windrow.read_parquet(path).options(executor="ray").write_parquet(path + "-copy")
        return rows, windrow.read_parquet(path + "-copy").count()


@pytest.mark.nightly
def test_tasks_started_in_a_placement_group_are_not_captured(
    ray_local: Any, pipe: windrow.DatasetPipeline, tmp_path: Path
) -> None:
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": CPUS}])
    ray_local.get(group.ready(), timeout=60)
    within = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    splitter = ray_local.remote(Splitter).options(num_cpus=CPUS, scheduling_strategy=within).remote()
    try:
        ref = splitter.run.remote(pipe, str(tmp_path / "x.parquet"))
        assert ray_local.get(ref, timeout=120) == (ROWS, ROWS)
    finally:
        ray_local.kill(splitter)
        remove_placement_group(group)


def test_tasks_have_a_cpu_slot_while_cpus_are_free(ray_local: Any, pipe: windrow.DatasetPipeline) -> None:
    assert eventually(lambda: ray_local.available_resources().get("CPU", 0) == CPUS, 60)
    shards = pipe.options(executor="ray").split(2)
    trainers = [ray_local.remote(Trainer).options(num_cpus=1).remote() for _ in shards]
    found = ray_local.get([t.read.remote(s) for t, s in zip(trainers, shards, strict=True)], timeout=120)
    assert {cpu for _, cpus, _ in found for cpu in cpus} == {1.0}
    assert [warned for _, _, warned in found] == [[], []]

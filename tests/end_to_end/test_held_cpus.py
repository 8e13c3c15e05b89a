"""Consumers that hold every CPU of the cluster: data tasks run beside them, and only then."""

from __future__ import annotations

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

ROWS = 4_000
CPUS = 4
HELD = "no CPU of the cluster is free"


def note_cpus(batch: dict[str, Any]) -> dict[str, Any]:
    """What the task that runs this was given."""
    import ray

    cpus = ray.get_runtime_context().get_assigned_resources().get("CPU", 0.0)
    return {**batch, "cpus": np.full(len(batch["x"]), cpus)}


class Trainer:
    """Reads its shard; returns the rows, the CPUs that prepared them, and what it was warned of."""

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
    path = write_numbers(tmp_path / "x.parquet", ROWS, row_group_size=200)
    ds = windrow.read_parquet(str(path), target_block_bytes=1).map_batches(note_cpus)
    return ds.window(blocks_per_window=5).random_shuffle_each_window(seed=5)


@pytest.fixture(params=["actors", "placement group"])
def trainers(ray_local: Any, request: pytest.FixtureRequest) -> Iterator[list[Any]]:
    """Four trainers with a CPU each, which are all there are; some in a placement group that captures tasks."""
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


def test_data_tasks_run_beside_consumers_that_hold_all_cpus(
    ray_local: Any, pipe: windrow.DatasetPipeline, trainers: list[Any]
) -> None:
    shards = pipe.options(executor="ray").split(CPUS)
    found = ray_local.get([t.read.remote(s) for t, s in zip(trainers, shards, strict=True)], timeout=120)
    assert sorted(row for rows, _, _ in found for row in rows) == list(range(ROWS))
    assert {cpu for _, cpus, _ in found for cpu in cpus} == {0.0}
    assert sum(len(warned) for _, _, warned in found) == 1, "all are told once"


class Splitter:
    """A consumer within the placement group that splits for itself, and writes."""

    def run(self, pipe: windrow.DatasetPipeline, path: str) -> tuple[int, int]:
        with pipe.options(executor="ray").iterator() as shard, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            rows = sum(len(batch["x"]) for batch in shard.iter_batches(100))
            windrow.read_parquet(path).options(executor="ray").write_parquet(path + "-copy")
        return rows, windrow.read_parquet(path + "-copy").count()


def test_what_is_begun_within_a_placement_group_is_not_captured_by_it(
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


def test_where_a_cpu_is_free_every_task_has_one(ray_local: Any, pipe: windrow.DatasetPipeline) -> None:
    assert eventually(lambda: ray_local.available_resources().get("CPU", 0) == CPUS, 60)
    shards = pipe.options(executor="ray").split(2)
    trainers = [ray_local.remote(Trainer).options(num_cpus=1).remote() for _ in shards]
    found = ray_local.get([t.read.remote(s) for t, s in zip(trainers, shards, strict=True)], timeout=120)
    assert {cpu for _, cpus, _ in found for cpu in cpus} == {1.0}
    assert [warned for _, _, warned in found] == [[], []]

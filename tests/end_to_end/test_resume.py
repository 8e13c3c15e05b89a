"""Resuming with different numbers of trainers and batch sizes, each time in a fresh process, on Ray."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import windrow
from tests.conftest import REPOSITORY
from tests.end_to_end.data import write_wide
from tests.end_to_end.reading import at_once

pytestmark = pytest.mark.timeout(240)

# Reads some steps of all shards from a state, stops with the iterators alive or dropped, and writes the new
# state. It writes to a file, because Ray prints warnings of raylets to the standard output of every driver.
_TRAIN = """
import json, sys
import numpy as np
import ray, windrow

address, path, column, window, n, batch_size, steps, stop, state, out = sys.argv[1:]
ray.init(address=address, log_to_driver=False, logging_level="ERROR")
ds = windrow.read_parquet(path, columns=[column], target_block_bytes="100kB")
pipe = ds.window(bytes_per_window=window).repeat(2).random_shuffle_each_window(seed=11)
shards = pipe.options(executor="ray").split(int(n), state_dict=json.loads(state))
rows, left = [], int(steps)
states = [shard.state_dict() for shard in shards]
while left:
    readings = []
    try:
        readings = [shard.iter_batches(int(batch_size)) for shard in shards]
    except windrow.PlanError as error:
        assert "all 2 epochs" in str(error), error
        break
    while left:
        step = [next(reading, None) for reading in readings]
        if all(batch is None for batch in step):
            break
        rows.append(np.concatenate([batch[column] for batch in step if batch is not None]))
        left -= 1
        ended = [batch is None for batch in step]
    if left == 0 and stop == "break":
        readings = step = None
    states = [shard.state_dict() for shard, end in zip(shards, ended) if not end] if left == 0 else states
    for reading in readings or []:
        if left:
            assert next(reading, None) is None
states = states if left == 0 else [shard.state_dict() for shard in shards]
assert all(state == states[0] for state in states), states
np.save(out, np.concatenate(rows) if rows else np.zeros(0, np.int64))
with open(out + ".json", "w") as file:
    json.dump(states[0], file)
"""


def _train(
    where: tuple[str, Path, str, str], numbers: tuple[int, int, int], stop: str, state: Any, out: Path
) -> Any:
    address, path, column, window = where
    arguments = [address, str(path), column, window, *map(str, numbers), stop, json.dumps(state), str(out)]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _TRAIN, *arguments],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(Path(f"{out}.json").read_text())


def _resume_often(
    ray: Any, path: Path, column: str, window: str, tmp_path: Path, *, points: int, seed: int
) -> None:
    """Read two epochs with ``points`` resumes in fresh processes, and compare with uninterrupted threads."""
    ds = windrow.read_parquet(str(path), columns=[column], target_block_bytes="100kB")
    pipe = ds.window(bytes_per_window=window).repeat(2).random_shuffle_each_window(seed=11)
    expected = np.concatenate(
        [batch[column] for batch in pipe.options(executor="threads").iter_batches(65_536)]
    )
    stored = pq.read_table(path, columns=[column])[column].to_numpy()
    assert np.array_equal(np.sort(expected), np.sort(np.tile(stored, 2)))
    address, chance = ray.get_runtime_context().gcs_address, random.Random(seed)
    state: Any = None
    found = []
    for point in range(points):
        n, batch_size = chance.randint(1, 4), chance.choice([64, 100, 1_000, 4_096])
        share = len(expected) // points
        steps = max(1, chance.randint(share // 2, 3 * share // 2) // (n * batch_size))
        # the last process reads all remaining rows
        steps = 2**40 if point == points - 1 else steps
        out = tmp_path / f"{point}.npy"
        stop = "break" if point % 2 else "save"
        state = _train((address, path, column, window), (n, batch_size, steps), stop, state, out)
        found.append(np.load(out))
        if state["epoch"] == 2:
            break
    assert (state["epoch"], state["row"]) == (2, 0)
    assert np.array_equal(np.concatenate(found), expected)


@pytest.mark.nightly
def test_every_row_once_over_a_few_processes(ray_local: Any, trips_path: Path, tmp_path: Path) -> None:
    _resume_often(ray_local, trips_path, "key", "40kB", tmp_path, points=2, seed=1)


@pytest.mark.nightly
def test_every_flight_once_over_three_processes(ray_local: Any, flights_path: Path, tmp_path: Path) -> None:
    _resume_often(ray_local, flights_path, "distance", "7MB", tmp_path, points=3, seed=2)


@pytest.mark.nightly
@pytest.mark.timeout(7_200)
def test_every_flight_once_over_hundreds_of_processes(
    ray_local: Any, flights_path: Path, tmp_path: Path
) -> None:
    _resume_often(ray_local, flights_path, "distance", "7MB", tmp_path, points=500, seed=3)


@pytest.mark.ray_at_night
def test_resume_reads_nothing_before_the_window(executor: str, tmp_path: Path) -> None:
    rows, group = 400_000, 5_000
    path = write_wide(tmp_path / "wide.parquet", rows, columns=8, row_group_size=group)
    windrow.read_parquet(str(path)).save_manifest(tmp_path / "manifest")

    def make_pipeline() -> windrow.DatasetPipeline:
        ds = windrow.read_parquet(str(path), manifest=tmp_path / "manifest", target_block_bytes=1)
        pipe = ds.window(blocks_per_window=8).random_shuffle_each_window(seed=1)
        return pipe.options(executor=executor, prefetch_windows=0)

    shards = make_pipeline().split(2)
    whole = [_keys(part) for part in at_once(shards, _step_through)]
    with make_pipeline().iterator() as shard:
        batches = shard.iter_batches(1_000)
        for _ in range(5 * 40 + 7):
            next(batches)
        state = shard.state_dict()
        batches.close()
    assert (state["window"], state["window_row"]) == (5, 5 * 40_000)
    shards = make_pipeline().split(2, state_dict=state)
    rest = [_keys(part) for part in at_once(shards, _step_through)]
    # rows before the state are in full steps of 2 x 500 rows
    assert [np.array_equal(part, all_[207 * 500 :]) for part, all_ in zip(rest, whole, strict=True)] == [
        True
    ] * 2
    windows = {span.window for shard in shards for span in shard.stats().run.spans}
    assert windows == set(range(5, 10))


def _step_through(shard: windrow.Shard) -> list[np.ndarray]:
    return [batch["key"] for batch in shard.iter_batches(500)]


def _keys(batches: list[np.ndarray]) -> np.ndarray:
    return np.concatenate(batches)

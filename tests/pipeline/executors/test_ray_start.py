"""What a split starts on Ray before any shard reads."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import windrow
from windrow.pipeline.executors.ray import executor, ray_task


@pytest.mark.parametrize(("rows", "workers"), [(200, 2), pytest.param(1_000, 4, marks=pytest.mark.nightly)])
def test_as_many_workers_are_started_as_there_are_blocks_and_cpus(
    ray_local: Any, monkeypatch: pytest.MonkeyPatch, rows: int, workers: int
) -> None:
    asked: list[tuple[int, int]] = []

    def start(count: int, *, nodes: int) -> list[Any]:
        asked.append((count, nodes))
        return ray_task.start_workers(count, nodes=nodes)

    monkeypatch.setattr(executor, "start_workers", start)
    dataset = windrow.from_numpy({"x": np.arange(rows)}, target_block_bytes=800)
    pipe = dataset.window(blocks_per_window=2).random_shuffle_each_window(seed=1)
    with pipe.options(executor="ray", progress=False).iterator() as shard:
        assert asked == [(workers, 1)]
        assert sum(len(batch["x"]) for batch in shard.iter_batches(1_000)) == rows


def test_no_task_begins_before_workers_have(ray_local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # Ray starts a process for each task that finds none idle, also while others are about to be
    begun: list[Any] = []

    def start(count: int, *, nodes: int) -> list[Any]:
        begun.append(ray_local.remote(num_cpus=0)(_begin_slowly).remote())
        return begun

    monkeypatch.setattr(executor, "start_workers", start)
    pipe = windrow.range(1_000).repeat(1).random_shuffle_each_window(seed=1)
    with pipe.options(executor="ray", progress=False).iterator() as shard:
        assert sum(len(batch["id"]) for batch in shard.iter_batches(1_000)) == 1_000
        run = shard.stats().run
    assert run is not None
    assert min(span.start_time for span in run.spans) >= ray_local.get(begun[0])


def _begin_slowly() -> float:
    time.sleep(0.5)
    return time.time()


@pytest.mark.timeout(45)
def test_workers_that_do_not_start_delay_nothing_for_long(
    ray_local: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    never = ray_local.remote(resources={"no node has it": 1})(_begin_slowly).remote()
    monkeypatch.setattr(executor, "start_workers", lambda count, nodes: [never])
    pipe = windrow.range(1_000).repeat(1).random_shuffle_each_window(seed=1)
    with pipe.options(executor="ray", progress=False).iterator() as shard:
        assert sum(len(batch["id"]) for batch in shard.iter_batches(1_000)) == 1_000
    ray_local.cancel(never)

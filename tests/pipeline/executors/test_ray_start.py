"""What is begun on Ray at a split, before any shard reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import windrow
from windrow.pipeline.executors.ray import executor, tasks


@pytest.mark.parametrize(("rows", "workers"), [(200, 2), (100_000, 4)])
def test_as_many_workers_are_started_as_there_are_blocks_and_cpus(
    ray_local: Any, monkeypatch: pytest.MonkeyPatch, rows: int, workers: int
) -> None:
    asked: list[tuple[int, bool]] = []

    def start(count: int, *, spread: bool) -> None:
        asked.append((count, spread))
        tasks.start_workers(count, spread=spread)

    monkeypatch.setattr(executor, "start_workers", start)
    dataset = windrow.from_numpy({"x": np.arange(rows)}, target_block_bytes=800)
    pipe = dataset.window(blocks_per_window=2).random_shuffle_each_window(seed=1)
    with pipe.options(executor="ray", progress=False).iterator() as shard:
        assert asked == [(workers, False)]
        assert sum(len(batch["x"]) for batch in shard.iter_batches(1_000)) == rows

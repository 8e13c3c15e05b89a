"""The trial by fault, of what only a cluster has: trainers that hold the CPUs, and a narrow network."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import windrow
from tests.trial.runs import check, read, sleeping, write_rows
from windrow.pipeline.executors.ray.fetch_thread import Fetcher

_BYTES_PER_SECOND = 2e6


def shuffled(dataset: Any, windows: int = 2) -> Any:
    pipe = dataset.window(blocks_per_window=16 // windows).repeat(2).random_shuffle_each_window(seed=7)
    return pipe.options(executor="ray")


@contextmanager
def held_cpus(ray: Any, count: int) -> Iterator[None]:
    """Hold some of Ray's CPUs as a trainer's actor does."""

    class Trainer:
        def ready(self) -> None: ...

    actor = ray.remote(num_cpus=count)(Trainer).remote()
    ray.get(actor.ready.remote())
    yield
    ray.kill(actor)


@pytest.mark.nightly
def test_too_few_cpus(ray_local: Any, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "rows.parquet")
    pipe = shuffled(windrow.read_parquet(path, target_block_bytes=1).map_batches(sleeping(0.1)))
    # the worker processes start in the first run
    read(pipe)
    fixed = read(pipe)
    with held_cpus(ray_local, 3):
        limited = read(pipe)
    check(limited, "cpus", "hold fewer CPUs", fixed)


@pytest.mark.nightly
def test_a_narrow_network(ray_local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    get = Fetcher._get

    def get_slowly(fetcher: Fetcher, *args: Any) -> Any:
        values = get(fetcher, *args)
        size = sum(output.nbytes for outputs in (values or {}).values() for output in outputs)
        time.sleep(size / _BYTES_PER_SECOND)
        return values

    monkeypatch.setattr(Fetcher, "_get", get_slowly)
    path = write_rows(tmp_path / "rows.parquet", columns=16, rows=64_000)
    limited, fixed = (
        read(shuffled(windrow.read_parquet(path, target_block_bytes=1, columns=columns)), batch_size=4_000)
        for columns in (None, ["c0"])
    )
    check(limited, "transfer", "columns=", fixed)

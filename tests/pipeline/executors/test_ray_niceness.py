"""Giving way: only this thread, only meanwhile, and not at all where it could not be taken back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

import windrow
from windrow.pipeline.executors.ray import niceness
from windrow.pipeline.executors.ray.niceness import giving_way


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    niceness._can_take_back.cache_clear()
    yield
    niceness._can_take_back.cache_clear()


def _own() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def _inside() -> tuple[int, int, int]:
    before = _own()
    with giving_way():
        inside = _own()
    return before, inside, _own()


def _in_a_thread(first: int = 0) -> tuple[int, int, int]:
    """As in a thread of its own, which may be made nicer for good."""

    def run() -> tuple[int, int, int]:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(first, _own()))
        return _inside()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()


needs_right = pytest.mark.skipif(
    not niceness._can_take_back(), reason="this process may not make threads less nice again"
)


@needs_right
@pytest.mark.parametrize(("first", "expected"), [(0, 4), (15, 19), (17, 19), (19, 19)])
def test_a_thread_is_nicer_meanwhile_and_no_other(first: int, expected: int) -> None:
    others = _own()
    if others > first:
        pytest.skip("this process is nicer than that already")
    assert _in_a_thread(first) == (first, expected, first)
    assert _own() == others


@needs_right
def test_an_error_takes_it_back() -> None:
    def fail() -> None:
        with giving_way():
            raise KeyError(_own())

    before = _own()
    with pytest.raises(KeyError) as error:
        fail()
    assert error.value.args[0] > before
    assert _own() == before


def test_nothing_is_given_that_cannot_be_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    setpriority = os.setpriority

    def refuse(kind: int, who: int, priority: int) -> None:
        if priority < _own():
            raise PermissionError(13, "Permission denied")
        setpriority(kind, who, priority)

    monkeypatch.setattr(os, "setpriority", refuse)
    before = _own()
    assert _inside() == (before, before, before)


@needs_right
def test_tasks_on_ray_give_way_and_those_of_others_do_not(ray_local: Any, tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": np.arange(100)}), tmp_path / "x.parquet", row_group_size=10)

    def tell(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
        return {"x": np.full(len(batch["x"]), own)}

    def ask() -> set[int]:
        task = ray.remote(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        return set(ray.get([task.remote() for _ in range(4)]))

    before = ask()
    ds = windrow.read_parquet(str(tmp_path), target_block_bytes=1).map_batches(tell)
    pipe = ds.repeat(1).random_shuffle_each_window(seed=1).options(executor="ray")
    told = {row for batch in pipe.iter_batches(100) for row in batch["x"].tolist()}
    assert told == {min(own + 4, 19) for own in before}
    assert ask() == before

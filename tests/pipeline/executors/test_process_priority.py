"""Lowered priority: only for this thread, only inside the block, and only where it can be restored."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray

import windrow
from windrow.pipeline.executors.ray import process_priority
from windrow.pipeline.executors.ray.process_priority import yielding_cpu
from windrow.pipeline.shard import prefetch_loop


@pytest.fixture(autouse=True)
def _asked_anew() -> Iterator[None]:
    process_priority._can_restore_priority.cache_clear()
    yield
    process_priority._can_restore_priority.cache_clear()


class Table:
    """The niceness of threads on Linux, with or without the privilege to lower it."""

    def __init__(self, first: int, *, may_take_back: bool = True) -> None:
        self.threads = {threading.get_native_id(): first}
        self.may_take_back = may_take_back
        self.error: type[OSError] = PermissionError

    def get(self, kind: int, who: int) -> int:
        assert kind == os.PRIO_PROCESS
        return self.threads[who]

    def set(self, kind: int, who: int, niceness: int) -> None:
        assert kind == os.PRIO_PROCESS
        if niceness < self.threads[who] and not self.may_take_back:
            raise self.error
        self.threads[who] = min(max(niceness, -20), 19)

    @property
    def own(self) -> int:
        return self.threads[threading.get_native_id()]


def _use(monkeypatch: pytest.MonkeyPatch, table: Table) -> None:
    monkeypatch.setattr(os, "getpriority", table.get)
    monkeypatch.setattr(os, "setpriority", table.set)
    monkeypatch.setattr(sys, "platform", "linux")


@pytest.mark.parametrize(
    ("first", "expected"), [(-20, -16), (0, 4), (15, 19), (17, 19), (19, 19)], ids=lambda value: str(value)
)
def test_a_thread_is_nicer_meanwhile_and_no_other(
    monkeypatch: pytest.MonkeyPatch, first: int, expected: int
) -> None:
    table = Table(first)
    _use(monkeypatch, table)
    with yielding_cpu():
        assert table.own == expected
    assert table.threads == {threading.get_native_id(): first}


def test_an_error_takes_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(15)
    _use(monkeypatch, table)

    def fail() -> None:
        with yielding_cpu():
            raise KeyError(table.own)

    with pytest.raises(KeyError) as error:
        fail()
    assert (error.value.args, table.own) == ((19,), 15)


@pytest.mark.parametrize("error", [PermissionError, OSError])
def test_nothing_is_given_that_cannot_be_taken_back(
    monkeypatch: pytest.MonkeyPatch, error: type[OSError]
) -> None:
    table = Table(15, may_take_back=False)
    table.error = error
    _use(monkeypatch, table)
    with yielding_cpu():
        assert table.own == 15
    assert table.own == 15


needs_right = pytest.mark.skipif(
    not process_priority._can_restore_priority(), reason="this process may not make threads less nice again"
)


@needs_right
def test_tasks_on_ray_lower_their_priority_and_those_of_others_do_not(ray_local: Any, tmp_path: Path) -> None:
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


@pytest.mark.skipif(sys.platform != "linux", reason="how threads wake up can be told on Linux only")
@pytest.mark.parametrize(("executor", "policy"), [("ray", "SCHED_BATCH"), ("threads", "SCHED_OTHER")])
def test_on_ray_a_consumer_keeps_its_core_when_it_wakes_the_prefetch_loop(
    ray_local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, executor: str, policy: str
) -> None:
    """On threads the prefetch loop would not get a core, since workers use them all."""
    pq.write_table(pa.table({"x": np.arange(300)}), tmp_path / "x.parquet", row_group_size=100)
    walking: list[tuple[str, int]] = []
    submit = prefetch_loop.PrefetchLoop._submit

    def note(*given: Any, **options: Any) -> Any:
        walking.append((threading.current_thread().name, os.sched_getscheduler(0)))
        return submit(*given, **options)

    monkeypatch.setattr(prefetch_loop.PrefetchLoop, "_submit", note)
    pipe = windrow.read_parquet(str(tmp_path)).window().options(executor=executor)
    with pipe.iterator() as shard:
        assert sum(len(batch["x"]) for batch in shard.iter_batches(100)) == 300
    assert set(walking) == {("windrow-shard-0", getattr(os, policy))}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER

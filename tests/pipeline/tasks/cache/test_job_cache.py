"""The driver's view of the cached blocks of its job."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.dataset.example_sources import make_source
from windrow.pipeline.coordinator.scheduling.events import Work
from windrow.pipeline.tasks.cache.cache_report import CacheReport
from windrow.pipeline.tasks.cache.job_cache import JobCache
from windrow.pipeline.tasks.map_task import Task

SOURCE = make_source(1, 1, 1)


def make(*blocks: int) -> Task:
    addresses = SOURCE.addresses(blocks)
    return Task(Work(0, 0, 0, 0, 0), blocks, addresses, (1,) * len(blocks), reads=True, ordering=None)


def run(cache: JobCache, task: Task) -> tuple[Task, list[Any]]:
    """Prepare a task and take what it keeps: a name for each block, of ten bytes."""
    prepared, found = cache.prepare(task)
    kept = [f"block {task.blocks[at]}" for at in prepared.keeps]
    cache.add_report(prepared, CacheReport(cached_bytes=(10,) * len(kept)), kept)
    return prepared, list(found)


def test_later_tasks_are_given_what_earlier_ones_kept() -> None:
    cache = JobCache(20, np.array([10, 10, 10]))
    first, found = run(cache, make(2, 0, 1))
    assert (first.found, first.keeps, found) == ((), (0, 1), [])
    second, found = run(cache, make(1, 2))
    assert (second.found, second.keeps, found) == ((1,), (), ["block 2"])
    assert cache.held_bytes == 20


def test_what_is_lost_is_read_and_kept_again() -> None:
    cache = JobCache(20, np.array([10, 10]))
    run(cache, make(0, 1))
    task, _ = run(cache, make(0))
    assert cache.evict_lost_blocks(task).found == ()
    assert cache.held_bytes == 10
    again, found = run(cache, make(0, 1))
    assert (again.found, again.keeps, found) == ((1,), (0,), ["block 1"])


def test_errors_and_corrupt_blocks_are_counted_and_each_told_once() -> None:
    cache = JobCache(0, np.array([10]))
    assert cache.take_warnings() == ()
    for _ in range(3):
        cache.add_report(make(0), CacheReport(errors=2, first_error="full"), ())
    assert cache.take_warnings() == ("full",)
    for number in range(2):
        cache.add_report(make(0), CacheReport(corrupt_blocks=1, first_corruption=f"block {number}"), ())
    assert cache.take_warnings() == ("block 0",)
    assert cache.take_warnings() == ()
    assert (cache.totals.errors, cache.totals.corrupt_blocks) == (6, 2)

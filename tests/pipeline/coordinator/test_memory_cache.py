"""Which decoded blocks are cached in memory, and the driver's view of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.dataset.example_sources import make_source
from tests.laws.examples import examples
from windrow.pipeline.coordinator.memory_cache import BlockCache, JobCache
from windrow.pipeline.tasks.cache.disk_cache import CacheReport
from windrow.pipeline.tasks.task import Task, Work

SOURCE = make_source(1, 1, 1)


def make(limit: int, *sizes: int) -> BlockCache:
    return BlockCache(limit, np.array(sizes, dtype=np.int64))


def test_blocks_that_fit_are_cached_and_stay() -> None:
    cache = make(20, 10, 10, 10)
    assert cache.reserve([1, 2, 0]) == (0, 1)
    for block in (1, 2):
        cache.put(block, 10, f"block {block}")
    assert cache.reserve([0]) == ()
    assert cache.find([0, 2, 1]) == {1: "block 2", 2: "block 1"}
    assert cache.held_bytes == 20


def test_memory_is_reserved_for_blocks_being_read() -> None:
    cache = make(15, 10, 10)
    assert cache.reserve([0]) == (0,)
    assert cache.reserve([0, 1]) == ()
    assert cache.find([0]) == {}
    assert cache.held_bytes == 0


def test_block_larger_than_the_unreserved_memory_is_not_cached() -> None:
    cache = make(20, 10, 10)
    cache.reserve([0, 1])
    cache.put(0, 15, "large")
    assert cache.find([0]) == {}, "room is held for block 1"
    cache.put(1, 9, "small")
    assert cache.find([0, 1]) == {1: "small"}
    assert cache.reserve([0]) == (0,)


def test_lost_block_can_be_cached_again() -> None:
    cache = make(10, 10)
    cache.reserve([0])
    cache.put(0, 10, "first")
    cache.evict([0, 0, 5])
    assert (cache.find([0]), cache.held_bytes) == ({}, 0)
    assert cache.reserve([0]) == (0,)


def test_cleared_cache_stays_empty() -> None:
    cache = make(100, 10, 10)
    cache.reserve([0, 1])
    cache.put(0, 10, "first")
    cache.clear()
    cache.put(1, 10, "late")
    assert cache.find([0, 1]) == {}
    assert cache.reserve([0]) == ()


def test_cache_of_zero_bytes_holds_no_empty_blocks() -> None:
    cache = make(0, 0, 10)
    assert cache.reserve([0, 1]) == ()


def test_block_read_during_clear_is_not_cached() -> None:
    cache = make(10, 0, 10)
    assert cache.reserve([0, 1]) == (0, 1)
    cache.clear()
    for block in (0, 1):
        cache.put(block, 0, "block")
    assert cache.find([0, 1]) == {}


@examples(50)
@given(
    limit=st.integers(0, 60),
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.sampled_from("rkf"), st.integers(0, 7), st.integers(0, 30)), max_size=40),
)
def test_cache_never_exceeds_its_limit(
    limit: int, sizes: list[int], steps: list[tuple[str, int, int]]
) -> None:
    cache, held = make(limit, *sizes), dict[int, int]()
    for kind, number, size in steps:
        block = number % len(sizes)
        if kind == "r":
            cache.reserve([block])
        elif kind == "k":
            cache.put(block, size, size)
        else:
            cache.evict([block])
        held = {b: cache.find([b])[0] for b in range(len(sizes)) if cache.find([b])}
        assert cache.held_bytes == sum(held.values()) <= limit


def make_task(*blocks: int) -> Task:
    addresses = SOURCE.addresses(blocks)
    return Task(Work(0, 0, 0, 0, 0), blocks, addresses, (1,) * len(blocks), reads=True, ordering=None)


def run(cache: JobCache, task: Task) -> tuple[Task, list[Any]]:
    """Prepare a task and cache its blocks, each as a handle of ten bytes."""
    prepared, found = cache.prepare(task)
    kept = [f"block {task.blocks[at]}" for at in prepared.keeps]
    cache.add_report(prepared, CacheReport(cached_bytes=(10,) * len(kept)), kept)
    return prepared, list(found)


def test_later_tasks_get_blocks_that_earlier_ones_cached() -> None:
    cache = JobCache(20, np.array([10, 10, 10]))
    first, found = run(cache, make_task(2, 0, 1))
    assert (first.found, first.keeps, found) == ((), (0, 1), [])
    second, found = run(cache, make_task(1, 2))
    assert (second.found, second.keeps, found) == ((1,), (), ["block 2"])
    assert cache.held_bytes == 20


def test_lost_block_is_read_and_cached_again() -> None:
    cache = JobCache(20, np.array([10, 10]))
    run(cache, make_task(0, 1))
    task, _ = run(cache, make_task(0))
    assert cache.evict_lost_blocks(task).found == ()
    assert cache.held_bytes == 10
    again, found = run(cache, make_task(0, 1))
    assert (again.found, again.keeps, found) == ((1,), (0,), ["block 1"])


def test_errors_and_corrupt_blocks_are_counted_and_reported_once() -> None:
    cache = JobCache(0, np.array([10]))
    assert cache.take_warnings() == ()
    for _ in range(3):
        cache.add_report(make_task(0), CacheReport(errors=2, first_error="full"), ())
    assert cache.take_warnings() == ("full",)
    for number in range(2):
        cache.add_report(make_task(0), CacheReport(corrupt_blocks=1, first_corruption=f"block {number}"), ())
    assert cache.take_warnings() == ("block 0",)
    assert cache.take_warnings() == ()
    assert (cache.totals.errors, cache.totals.corrupt_blocks) == (6, 2)

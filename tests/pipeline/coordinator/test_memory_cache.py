"""Which decoded blocks are cached in memory, and the driver's view of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.dataset.example_sources import make_source
from tests.laws.examples import examples
from windrow.pipeline.coordinator.memory_cache import JobCache
from windrow.pipeline.tasks.cache.disk_cache import CacheReport
from windrow.pipeline.tasks.task import Task, Work

SOURCE = make_source(*[1] * 8)


def make(limit: int, *sizes: int) -> JobCache:
    return JobCache(limit, np.array(sizes, dtype=np.int64))


def make_task(*blocks: int) -> Task:
    addresses = SOURCE.addresses(blocks)
    return Task(Work(0, 0, 0, 0, 0), blocks, addresses, (1,) * len(blocks), reads=True, ordering=None)


def reserve(cache: JobCache, *blocks: int) -> Task:
    """A task that is about to read blocks, and returns those that memory is reserved for."""
    return cache.prepare(make_task(*blocks))[0]


def put(cache: JobCache, task: Task, *sizes: int) -> None:
    """Return the blocks of a task, of these sizes."""
    handles = [f"block {task.blocks[at]}" for at in task.keeps]
    cache.add_report(task, CacheReport(cached_bytes=sizes), handles)


def find(cache: JobCache, *blocks: int) -> list[str]:
    """The handles of the cached ones among some blocks; reserves nothing."""
    return [cache._cached[block][0] for block in blocks if block in cache._cached]


def test_blocks_that_fit_are_cached_and_stay() -> None:
    cache = make(20, 10, 10, 10)
    task = reserve(cache, 1, 2, 0)
    assert task.keeps == (0, 1)
    put(cache, task, 10, 10)
    assert cache.held_bytes == 20
    again, handles = cache.prepare(make_task(0, 2, 1))
    assert (again.found, again.keeps, list(handles)) == ((1, 2), (), ["block 2", "block 1"])


def test_memory_is_reserved_for_blocks_being_read() -> None:
    cache = make(15, 10, 10)
    task = reserve(cache, 0)
    assert task.keeps == (0,)
    assert reserve(cache, 0, 1).keeps == ()
    assert cache.held_bytes == 0
    cache.release_reservations(task)
    assert reserve(cache, 0, 1).keeps == (0,)


def test_block_larger_than_the_unreserved_memory_is_not_cached() -> None:
    cache = make(20, 10, 10)
    large, small = reserve(cache, 0), reserve(cache, 1)
    put(cache, large, 15)
    assert find(cache, 0) == [], "room is held for block 1"
    put(cache, small, 9)
    assert find(cache, 0, 1) == ["block 1"]
    assert reserve(cache, 0).keeps == (0,)


def test_a_cleared_cache_takes_blocks_again_but_none_that_were_read_before() -> None:
    cache = make(100, 10, 0)
    first, late = reserve(cache, 0), reserve(cache, 1)
    put(cache, first, 10)
    cache.clear()
    put(cache, late, 0)
    assert find(cache, 0, 1) == []
    assert cache.held_bytes == 0
    assert reserve(cache, 0, 1).keeps == (0, 1)


def test_a_cache_gives_up_its_whole_budget_also_behind_being_cleared() -> None:
    cache = make(100, 10, 0)
    put(cache, reserve(cache, 0), 10)
    cache.clear()
    put(cache, reserve(cache, 0), 10)
    assert cache.give_up() == 100
    assert find(cache, 0) == []
    assert reserve(cache, 0, 1).keeps == ()
    assert (cache.give_up(), cache.held_bytes) == (0, 0)


def test_cache_of_zero_bytes_holds_no_empty_blocks() -> None:
    assert reserve(make(0, 0, 10), 0, 1).keeps == ()


@examples(50)
@given(
    limit=st.integers(0, 60),
    sizes=st.lists(st.integers(0, 20), min_size=1, max_size=8),
    steps=st.lists(st.tuples(st.sampled_from("rkf"), st.integers(0, 7), st.integers(0, 30)), max_size=40),
)
def test_cache_never_exceeds_its_limit(
    limit: int, sizes: list[int], steps: list[tuple[str, int, int]]
) -> None:
    cache, reading, held = make(limit, *sizes), dict[int, Task](), dict[int, int]()
    for kind, number, size in steps:
        block = number % len(sizes)
        if kind == "r":
            task = reserve(cache, block)
            if task.keeps:
                reading[block] = task
        elif kind == "k" and block in reading:
            put(cache, reading.pop(block), size)
            if find(cache, block):
                held[block] = size
        elif kind == "f":
            cache.evict_lost_blocks(replace(make_task(block), found=(0,)))
            held.pop(block, None)
        assert [b for b in range(len(sizes)) if find(cache, b)] == sorted(held)
        assert cache.held_bytes == sum(held.values()) <= limit


def run(cache: JobCache, task: Task) -> tuple[Task, list[Any]]:
    """Prepare a task and cache its blocks, each as a handle of ten bytes."""
    prepared, found = cache.prepare(task)
    kept = [f"block {task.blocks[at]}" for at in prepared.keeps]
    cache.add_report(prepared, CacheReport(cached_bytes=(10,) * len(kept)), kept)
    return prepared, list(found)


def test_lost_block_is_read_and_cached_again() -> None:
    cache = make(20, 10, 10)
    run(cache, make_task(0, 1))
    task, _ = run(cache, make_task(0))
    assert cache.evict_lost_blocks(task).found == ()
    assert cache.held_bytes == 10
    again, found = run(cache, make_task(0, 1))
    assert (again.found, again.keeps, found) == ((1,), (0,), ["block 1"])


def test_errors_and_corrupt_blocks_are_counted_and_reported_once() -> None:
    cache = make(0, 10)
    assert cache.take_warnings() == ()
    for _ in range(3):
        cache.add_report(make_task(0), CacheReport(errors=2, first_error="full"), ())
    assert cache.take_warnings() == ("full",)
    for number in range(2):
        cache.add_report(make_task(0), CacheReport(corrupt_blocks=1, first_corruption=f"block {number}"), ())
    assert cache.take_warnings() == ("block 0",)
    assert cache.take_warnings() == ()
    assert (cache.totals.errors, cache.totals.corrupt_blocks) == (6, 2)

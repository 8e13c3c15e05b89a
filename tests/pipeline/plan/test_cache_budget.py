"""How much memory the block cache gets, and how ``explain()`` describes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.dataset.example_sources import TableSource, make_source
from windrow.core.errors import PlanError
from windrow.pipeline.plan.explain import explain_program
from windrow.pipeline.plan.job import Job, Options, Resources
from windrow.pipeline.plan.memory_budget import budget_program
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget

RESOURCES = Resources(executor="threads", workers=1, memory_bytes=2**30, limit_covers_all=True)
TEN_BLOCKS = make_source(*[100_000] * 10)
BLOCK_BYTES = 800_000
DATA_BYTES = 10 * BLOCK_BYTES


def budget(resources: Resources = RESOURCES, **options: Any) -> Budget:
    job = Job(TEN_BLOCKS, epochs=3, seed=1, options=Options(**options))
    return budget_program(Program(job, 1, False, (0,)), resources, 1)


def told(epochs: int | None = 3, **options: Any) -> list[str]:
    job = Job(TEN_BLOCKS, epochs=epochs, seed=1, options=Options(**options))
    text = str(explain_program(Program(job, 1, False, (0,)), RESOURCES, None))
    return [line[9:] for line in text.splitlines() if line.startswith("cache ")]


def test_all_blocks_are_cached_where_memory_suffices() -> None:
    plain, cached = budget(), budget(cache="memory")
    assert DATA_BYTES <= cached.cache_bytes <= DATA_BYTES * 9 // 8
    assert cached.needed_bytes == plain.needed_bytes + cached.cache_bytes
    assert (cached.limit_bytes, cached.slices) == (plain.limit_bytes, plain.slices)
    assert told(cache="memory") == ["memory, up to 8.6 MiB: all of 10 blocks"]


def test_cache_gets_a_share_of_the_memory_left_by_windows() -> None:
    plain = budget()
    left = 4 * BLOCK_BYTES
    limit = plain.needed_bytes + left
    cached = budget(cache="memory", memory_limit=limit)
    assert cached.cache_bytes == int(left * 0.8)
    assert cached.total_bytes <= limit
    assert told(cache="memory", memory_limit=limit) == ["memory, up to 2.4 MiB: about 3 of 10 blocks"]


def test_cache_does_not_shrink_windows() -> None:
    plain = budget()
    tight = plain.needed_bytes - plain.window_bytes // 2
    assert budget(memory_limit=tight).slices > 1
    assert budget(cache="memory", memory_limit=tight).cache_bytes == 0
    assert told(cache="memory", memory_limit=tight) == ["none: windows leave no memory for it"]


def test_cache_limit_is_reserved_before_windows_are_planned() -> None:
    plain = budget()
    cached = budget(cache="memory", cache_limit=3 * BLOCK_BYTES, memory_limit=plain.needed_bytes)
    assert cached.cache_bytes == 3 * BLOCK_BYTES
    assert cached.slices > 1
    assert cached.total_bytes <= plain.needed_bytes


def test_cache_limit_that_leaves_no_window_raises() -> None:
    plain = budget()
    limit = plain.needed_bytes - plain.window_bytes + BLOCK_BYTES
    with pytest.raises(
        PlanError, match=r"the cache takes .* does not fit into the rest: lower options\(cache"
    ):
        budget(cache="memory", cache_limit=DATA_BYTES, memory_limit=limit)


def test_cached_blocks_share_the_object_store_with_windows_only() -> None:
    store = replace(RESOURCES, limit_covers_all=False)
    plain = budget(store)
    limit = plain.windows_limit_bytes + 4 * BLOCK_BYTES
    cached = budget(store, cache="memory", memory_limit=limit)
    assert cached.cache_bytes == int(4 * BLOCK_BYTES * 0.8)
    assert cached.tasks_bytes > plain.tasks_bytes, "a worker holds them until they are in the store"


def test_cache_leaves_a_quarter_more_for_estimated_windows() -> None:
    source = TableSource(TEN_BLOCKS.reader, bytes_exact=False)
    job = Job(source, epochs=3, seed=1, options=Options(cache="memory"))
    cached = budget_program(Program(job, 1, False, (0,)), RESOURCES, 1)
    left = cached.limit_bytes - cached.runs_bytes - cached.tasks_bytes - cached.windows_bytes * 5 // 4
    assert cached.cache_bytes == int(left * 0.8)


def test_disk_cache_takes_no_share_of_the_memory() -> None:
    assert budget(cache="disk").cache_bytes == 0
    assert budget(cache="disk").tasks_bytes > budget().tasks_bytes, (
        "a task holds blocks until they are written"
    )
    assert budget(cache="memory").tasks_bytes == budget().tasks_bytes
    assert told(cache="disk", cache_dir="/here") == [
        "disk of each machine (/here), up to half of what is free"
    ]
    (line,) = told(cache="disk", cache_dir="/here", cache_limit="3MiB", keep_cache=True)
    assert line == "disk of each machine (/here), up to 3.0 MiB: about 3 of 10 blocks, kept for later jobs"


def test_single_epoch_caches_blocks_only_with_keep_cache() -> None:
    assert told(1, cache="memory") == ["none: a single epoch reads no block twice"]
    assert told(1, cache="disk") == ["none: a single epoch reads no block twice"]
    assert "kept for later" in told(1, cache="disk", cache_dir="/here", keep_cache=True)[0]
    assert told() == []

"""`explain()` with fixed resources."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import windrow
from tests.dataset.example_sources import make_source
from windrow.core.errors import PlanError
from windrow.pipeline.plan.explain import explain_program
from windrow.pipeline.plan.explanation import Explanation
from windrow.pipeline.plan.job import Job, Options, Resources
from windrow.pipeline.plan.process_budget import PROCESS_BYTES
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.actor_pool import ActorPool, WorkerResources
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.shard_assignment import Equal

RESOURCES = Resources(executor="threads", workers=2, memory_bytes=2**30, limit_covers_all=True)
TEN_BLOCKS = make_source(*[1_000] * 10)


def _same(batch: Any) -> Any:
    return batch


def _explain(
    job: Job,
    shards: int = 1,
    *,
    equal: Equal = False,
    batch_rows: int | None = None,
    resources: Resources = RESOURCES,
) -> Explanation:
    return explain_program(Program(job, shards, equal, tuple(range(shards))), resources, batch_rows)


def test_text() -> None:
    job = Job(TEN_BLOCKS, WindowCut(blocks_per_window=5), 10, seed=7, before=(MapBatches(_same),), after=())
    lines = str(_explain(job, 4, equal=True, batch_rows=64)).splitlines()
    assert lines[:6] == [
        "10 epochs, seed 7, order v1, executor threads",
        "rows     10,000 an epoch; 10 tables",
        "bytes    78.1 KiB decoded an epoch",
        "windows  2 an epoch of about 39.1 KiB (50 % of the data each)",
        "shards   4, equal=True; batch_size 64: 40 steps, the last of 16 rows, 0 rows left out",
        "tasks    up to 1 a window; 1 object",
    ]
    assert lines[6] == "stages   read + map_batches(_same) + shuffle"
    assert lines[7].startswith("memory   about ")
    assert lines[7].endswith("; limit 1.0 GiB")
    assert lines[8].startswith("warning  windows hold about 5 of 10 blocks, too few to mix well: ")
    assert len(lines) == 9


@pytest.mark.parametrize(
    ("rows", "shards", "equal", "steps", "last", "left_out"),
    [
        (10, 1, False, 3, 2, 0),
        (8, 2, False, 1, 0, 0),
        (11, 2, False, 2, 3, 0),
        (11, 2, True, 2, 2, 1),
        (11, 2, "pad", 2, 4, 0),
        (1, 2, True, 0, 0, 1),
        (0, 2, False, 0, 0, 0),
    ],
)
def test_steps(rows: int, shards: int, equal: Equal, steps: int, last: int, left_out: int) -> None:
    told = _explain(Job(make_source(rows)), shards, equal=equal, batch_rows=4)
    assert (told.steps, told.last_step_rows, told.left_out_rows) == (steps, last, left_out)


def test_memory_is_the_budget_of_the_run() -> None:
    told = _explain(Job(TEN_BLOCKS, seed=1))
    assert told.budget.exact
    assert told.budget.limit_bytes == 2**30
    assert "memory   ≤ " in str(told)
    limited = _explain(Job(TEN_BLOCKS, seed=1, options=Options(memory_limit="512MiB")))
    assert limited.budget.limit_bytes == 2**29


def test_estimates_are_marked() -> None:
    source = make_source(10)
    source.bytes_exact = False
    text = str(_explain(Job(source, seed=1)))
    assert "bytes    about 80 B decoded" in text
    assert "memory   about " in text


def test_unknown_rows() -> None:
    told = _explain(Job(make_source(10, rows_known=False)), batch_rows=2)
    assert (told.rows, told.steps) == (10, None)
    text = str(told)
    assert "rows     at most 10 an epoch, to be counted" in text
    assert "batch_size 2: the number of steps is known once rows are counted" in text
    assert "warning  the first epoch counts rows as it reads them" in text


def test_number_of_epochs_in_stored_order() -> None:
    assert str(_explain(Job(TEN_BLOCKS, epochs=None))).startswith("endless epochs, stored order, executor")
    assert str(_explain(Job(TEN_BLOCKS))).startswith("1 epoch, stored order, executor")


@pytest.mark.parametrize(("blocks", "warned"), [(1, True), (7, True), (8, False), (16, False)])
def test_warning_for_windows_of_few_blocks(blocks: int, warned: bool) -> None:
    # the last window can have fewer blocks
    for source in (make_source(*[10] * 16), make_source(*[10] * 18)):
        told = _explain(Job(source, WindowCut(blocks_per_window=blocks), seed=1))
        few = [line for line in told.user_warnings if "too few to mix" in line]
        assert bool(few) == warned
        assert not few or f"windows hold about {blocks} of " in few[0]


def test_warning_for_blocks_larger_than_windows() -> None:
    source = make_source(1_000, 1_000)
    told = _explain(Job(source, WindowCut(bytes_per_window=100), seed=1))
    assert told.windows == 2
    assert (
        "2 blocks fill only 2 of the 160 requested windows: give read_parquet a smaller target_block_bytes"
        in str(told)
    )


def test_no_warning_for_small_windows_without_a_shuffle() -> None:
    assert _explain(Job(TEN_BLOCKS, WindowCut(blocks_per_window=1))).user_warnings == ()


def test_no_warning_for_few_blocks_in_one_window() -> None:
    assert _explain(Job(TEN_BLOCKS, seed=1)).user_warnings == ()


def test_warnings_of_the_executor() -> None:
    resources = replace(RESOURCES, user_warnings=("trainers hold all CPUs",))
    assert str(_explain(Job(TEN_BLOCKS), resources=resources)).endswith("\nwarning  trainers hold all CPUs")


@pytest.mark.parametrize(
    ("limit", "fix"),
    [
        ("64MiB", r"use window\(bytes_per_window=.*or raise options\(memory_limit="),
        ("1MiB", r": raise options\(memory_limit=.*\) or more, since no window is small enough$"),
    ],
)
def test_window_that_cannot_fit_raises(limit: str, fix: str) -> None:
    job = Job(make_source(10_000_000), seed=1, options=Options(memory_limit=limit))
    with pytest.raises(PlanError, match=fix) as failed:
        _explain(job)
    (enough,) = re.findall(r'memory_limit="(\w+)"', str(failed.value))
    _explain(replace(job, options=Options(memory_limit=enough)))


def test_stages_tell_what_runs_where() -> None:
    pooled = MapBatches(
        _same, compute=ActorPool(min_size=1, max_size=4), resources=WorkerResources(num_gpus=0.5)
    )
    before = (MapBatches(_same), pooled, MapBatches(_same, call="filter(f)"))
    job = Job(TEN_BLOCKS, epochs=1, seed=7, before=before, after=(MapBatches(_same), MapBatches(_same)))
    assert _explain(job, 1).stages == (
        "read + map_batches(_same) | map_batches(_same) in 1 to 4 processes, num_gpus=0.5 each | filter(f) + shuffle | "
        "map_batches(_same) + map_batches(_same) in the trainers"
    )
    blocks = Job(TEN_BLOCKS, epochs=1, seed=7, shuffles_blocks=True)
    assert str(_explain(blocks, 1)).startswith("1 epoch, seed 7, order v1, blocks only, executor threads")


def test_processes_of_transforms_count_in_the_memory() -> None:
    pipe = windrow.range(100).repeat(1).random_shuffle_each_window(seed=1).options(executor="threads")
    plain = pipe.map_batches(_same).explain(1).budget
    pooled = pipe.map_batches(_same, compute=ActorPool(3)).explain(1).budget
    assert pooled.processes_bytes == plain.processes_bytes + 3 * PROCESS_BYTES
    assert pooled.runs_bytes > plain.runs_bytes

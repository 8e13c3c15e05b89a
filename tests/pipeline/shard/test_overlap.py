"""Tasks that wait for object storage share cores, where that does not reduce windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.core.source import is_remote
from windrow.pipeline.plan.job import Job, Resources
from windrow.pipeline.plan.memory_budget import budget_program, overlap_waiting, size_parts
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.epoch_plan import WindowCut

RESOURCES = Resources(
    "simulated", 3, 2**30, limit_covers_all=True, processes_bytes=400, worker_bytes=100, task_cpus=1.0
)


@pytest.fixture(params=["memory", "local"])
def dataset(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    table = pa.table({"x": range(40_000)})
    path = f"memory:/{tmp_path}" if request.param == "memory" else str(tmp_path / "x.parquet")
    with fsspec.open(f"{path}/x.parquet" if request.param == "memory" else path, "wb") as file:
        pq.write_table(table, file, row_group_size=4_000)
    return windrow.read_parquet(path, target_block_bytes=1)


def make(dataset: Any) -> Program:
    return Program(Job(dataset._plan.source, WindowCut(blocks_per_window=5), 2, seed=1), 1, False, (0,))


def _is_distant(program: Program) -> bool:
    reader = program.job.source.reader
    return is_remote(reader)


def test_only_waiting_shards_share_cores(dataset: Any) -> None:
    program = make(dataset)
    got = overlap_waiting(program, RESOURCES)
    if _is_distant(program):
        assert (got.workers, got.task_cpus, got.processes_bytes) == (6, 0.5, 700)
        assert replace(got, workers=3, task_cpus=1.0, processes_bytes=400) == RESOURCES
    else:
        assert got is RESOURCES


def test_windows_come_first(dataset: Any) -> None:
    """Whatever the limit, as many windows fit as without, and in no finer slices."""
    program = make(dataset)
    seen = set()
    for kib in range(32_700, 35_700, 20):
        limited = replace(RESOURCES, memory_bytes=kib * 1024)
        try:
            plain = budget_program(size_parts(program, limited), limited, 1)
        except windrow.PlanError:
            assert overlap_waiting(program, limited) is limited
            continue
        got = overlap_waiting(program, limited)
        budget = budget_program(size_parts(program, got), got, 1)
        assert (budget.windows, budget.slices) == (plain.windows, plain.slices)
        assert budget.total_bytes <= kib * 1024
        seen.add(got.workers)
    assert seen == ({3, 6} if _is_distant(program) else {3})


def test_what_is_explained_is_what_runs(dataset: Any) -> None:
    pipe = dataset.window(blocks_per_window=5).repeat(2).random_shuffle_each_window(seed=1)
    pipe = pipe.options(executor="threads", memory_limit="200MB")
    estimated = pipe.explain(batch_size=100).budget.total_bytes
    with pipe.iterator() as shard:
        assert sorted(x for batch in shard.iter_batches(100) for x in batch["x"].tolist()) == list(
            range(40_000)
        )
        assert shard.stats().run.estimated_bytes == estimated

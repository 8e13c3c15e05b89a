"""The limits of a run, by its program and budget."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from pathlib import Path

import pyarrow as pa
import pytest

import windrow
from tests.io.files import write
from windrow.pipeline.coordinator.scheduling.memory_limit import make_limits
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.memory_budget import budget_program
from windrow.pipeline.plan.program import Program


@pytest.mark.parametrize("transforms", [False, True])
def test_only_tasks_whose_rows_can_grow_are_bounded(transforms: bool) -> None:
    dataset = windrow.range(9)
    pipe = (dataset.map_batches(lambda batch: batch) if transforms else dataset).repeat(1)
    program = Program(pipe._job(), 1, False, (0,))
    budget = budget_program(program, ThreadsExecutor(2).resources(), 8)
    limits = make_limits(program, budget, 2, (0,))
    assert (limits.bounds_tasks, limits.exact) == (transforms, not transforms)


@pytest.mark.parametrize(("windows_ahead", "sources"), [(1, 2), (2, 2), (1, 1), (0, 3)])
def test_a_mixture_prepares_as_many_rounds_as_its_windows_fill(windows_ahead: int, sources: int) -> None:
    # windows of all sources end together, in a round that needs the next ones too
    window_rows, round_rows = 2**14, 3 * 2**11
    one = windrow.range(8 * window_rows, block_rows=2**11).window(blocks_per_window=8)
    pipes = {f"source {number}": one.repeat() for number in range(sources)}
    pipe = windrow.mixture(pipes, dict.fromkeys(pipes, 1), seed=3)
    job = pipe.options(prefetch_windows=windows_ahead)._job()
    assert job.mixture is not None
    job = replace(job, mixture=replace(job.mixture, round_rows=round_rows))
    program = Program(job, 1, False, (0,))
    limits = make_limits(program, budget_program(program, ThreadsExecutor(2).resources(), 8), 2, (0,))
    assert limits.prefetch_windows == ceil(windows_ahead * sources * window_rows / round_rows)


@pytest.mark.parametrize("is_joined", [False, True])
def test_rounds_of_sequences_are_as_many_as_tokens_of_windows_fill(is_joined: bool, tmp_path: Path) -> None:
    tokens, documents, seq_len, round_rows = 50, 256, 2**9, 7
    table = pa.table({"ids": [[1] * tokens] * (8 * documents)})
    path = write(tmp_path / "t.parquet", table, row_group_size=32)
    one = windrow.read_parquet(path, target_block_bytes=1).window(blocks_per_window=8).repeat()
    pipes = {name: one if is_joined else one.pack(seq_len, ["ids"]) for name in "ab"}
    pipe = windrow.mixture(pipes, {"a": 1, "b": 1}, seed=3)
    job = (pipe.pack(seq_len, ["ids"]) if is_joined else pipe)._job()
    assert job.mixture is not None
    program = Program(replace(job, mixture=replace(job.mixture, round_rows=round_rows)), 1, False, (0,))
    limits = make_limits(program, budget_program(program, ThreadsExecutor(2).resources(), 8), 2, (0,))
    filled = 2 * documents * tokens / seq_len / round_rows
    # a few tokens of a pass come in no sequence, and some sequences need two windows
    assert 0.9 * filled <= limits.prefetch_windows <= 1.1 * filled + 1

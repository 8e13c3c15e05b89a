"""A task that reads its blocks as one: it reports them, and stops at its limit, as if it read them one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.io.files import write
from windrow.core.buffer_pool import BufferPool
from windrow.core.source import BlockAddress
from windrow.io.formats import row_group_format
from windrow.io.parquet import stored_rows
from windrow.io.parquet.block_reader import ParquetReader
from windrow.pipeline.executors import threads_job
from windrow.pipeline.tasks.map_task import TaskContext, run_task
from windrow.pipeline.tasks.task import Task

ROWS = (7, 0, 5, 0, 9, 3, 0)


@pytest.fixture
def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[TaskContext, Task]:
    """A task over all blocks, in parts of two row groups or so, that read their rows in order."""
    for number, rows in enumerate(ROWS):
        write(tmp_path / f"{number}.parquet", pa.table({"n": np.arange(rows)}), use_dictionary=False)
    monkeypatch.setattr(row_group_format, "_LARGE_FILE_BYTES", 1)
    monkeypatch.setattr(stored_rows, "PART_BYTES", 200)
    found: list[tuple[TaskContext, Task]] = []

    def note(context: TaskContext, task: Task, *rest: Any) -> Any:
        found.append((context, task))
        return run_task(context, task, *rest)

    monkeypatch.setattr(threads_job, "run_task", note)
    dataset = windrow.read_parquet(str(tmp_path), target_block_bytes=1)
    pipe = dataset.repeat(1).random_shuffle_each_window(seed=1)
    assert (
        sum(len(batch["n"]) for batch in pipe.options(executor="threads", progress=False).iter_batches())
        == 24
    )
    ((context, task),) = found
    assert len(task.blocks) > 2
    return context, task


def count_joins(monkeypatch: pytest.MonkeyPatch, *, joins: bool) -> list[int]:
    counts, join = [], ParquetReader.join_blocks

    def note(reader: ParquetReader, addresses: Sequence[BlockAddress]) -> BlockAddress | None:
        counts.append(len(addresses))
        return join(reader, addresses) if joins else None

    monkeypatch.setattr(ParquetReader, "join_blocks", note)
    return counts


def test_blocks_are_reported_one_by_one(
    captured: tuple[TaskContext, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, task = captured
    counts = count_joins(monkeypatch, joins=True)
    report, output, _ = run_task(context, task, None, BufferPool(2**20))
    assert counts == [len(task.blocks)]
    assert report.rows == task.rows
    assert report.cache.misses == len(task.blocks)
    count_joins(monkeypatch, joins=False)
    apart, outputs, _ = run_task(context, task, None, BufferPool(2**20))
    assert apart.rows == report.rows
    # one map output for each part, of which there are fewer
    assert len(output[0][0]) < len(outputs[0][0])


@pytest.mark.parametrize("joins", [False, True])
def test_a_task_stops_with_the_block_that_exceeds_its_limit(
    captured: tuple[TaskContext, Task], monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    context, task = captured
    count_joins(monkeypatch, joins=joins)
    whole, _, _ = run_task(context, task, None, BufferPool(2**20))
    report, _, _ = run_task(
        context, replace(task, max_bytes=sum(whole.slice_bytes) - 1), None, BufferPool(2**20)
    )
    assert report.shortfall is not None
    # with the last part, or before the last block, which has no rows and weighs as much as one
    assert (report.shortfall.share, report.shortfall.rows) == (1.0 if joins else 26 / 27, sum(ROWS))
    report, _, _ = run_task(context, replace(task, max_bytes=0), None, BufferPool(2**20))
    assert report.shortfall is not None
    assert report.shortfall.rows < sum(ROWS)


def test_a_shortfall_counts_the_rows_whose_bytes_it_states(captured: tuple[TaskContext, Task]) -> None:
    """Also those of a block of which more parts would come."""
    context, task = captured
    report, _, _ = run_task(context, replace(task, max_bytes=0), None, BufferPool(2**20))
    found = report.shortfall
    assert found is not None
    assert found.share == found.rows / sum(ROWS)


def test_blocks_that_do_not_follow_one_another_in_the_window_are_read_one_by_one(
    captured: tuple[TaskContext, Task], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, task = captured
    assert task.ordering is not None
    counts = count_joins(monkeypatch, joins=True)
    # they lie in the window the other way round
    stops = accumulate(rows for rows in task.rows if rows is not None)
    moved = replace(task.ordering, offsets=tuple(sum(ROWS) - stop for stop in stops))
    report, _, _ = run_task(context, replace(task, ordering=moved), None, BufferPool(2**20))
    assert counts == []
    assert report.rows == task.rows

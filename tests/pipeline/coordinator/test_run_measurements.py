"""Row counts of blocks, as tasks and shards report them."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.laws.cases import Case
from windrow.core.errors import SourceError
from windrow.pipeline.coordinator.run_measurements import BlockRowCounts, MemoryEstimate
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import UNKNOWN_ROWS, Program
from windrow.pipeline.plan.window_budget import RowSizes
from windrow.pipeline.tasks.task import Corruption, TaskReport
from windrow.shuffle.order.epoch_plan import WindowCut

# in stored order, so that window w is block w
CASE = Case((10,) * 4, WindowCut(blocks_per_window=1), seed=None, corrupt=frozenset())


@pytest.fixture
def rows() -> BlockRowCounts:
    return BlockRowCounts(Program(CASE.job(ThreadsExecutor(1)), 1, False, (0,)))


def record(rows: BlockRowCounts, window: int, counted: int, *corrupt: Corruption) -> list[str]:
    task: Any = SimpleNamespace(work=SimpleNamespace(epoch=0, window=window, part=0), blocks=(window,))
    return rows.record(task, TaskReport((counted,), (0,), None, 0.0, 0.0, corrupt=corrupt))


def test_rows_are_known_once_all_are_counted(rows: BlockRowCounts) -> None:
    assert rows.array.tolist() == [UNKNOWN_ROWS] * 4
    for window, counted in enumerate((10, 7, 0, 3)):
        assert rows.total(0) is None
        assert record(rows, window, counted) == []
    assert (rows.total(0), rows.count([0, 1]), rows.count([3])) == (20, 17, 3)


def test_corrupt_block_has_no_rows_for_any_reader(rows: BlockRowCounts) -> None:
    assert record(rows, 1, 0, Corruption(1, "block 1 is torn")) == [
        "a corrupt block is skipped, 10 stored rows: block 1 is torn"
    ]
    # another attempt at its window started before
    assert record(rows, 1, 10) == []
    assert rows.count([1]) == 0
    # one that finds it torn as well reports nothing new
    assert record(rows, 1, 0, Corruption(1, "block 1 is torn")) == []


def test_what_has_been_counted_is_not_left_out_any_more(rows: BlockRowCounts) -> None:
    record(rows, 2, 10)
    with pytest.raises(SourceError, match="block 2 is torn"):
        record(rows, 2, 0, Corruption(2, "block 2 is torn"))


def test_documents_that_are_counted_again_must_be_the_same() -> None:
    rows = BlockRowCounts(Program(replace(CASE, packed=3).job(ThreadsExecutor(1)), 1, False, (0,)))

    def count(window: int, lengths: list[int], *corrupt: Corruption) -> None:
        documents = (np.array(lengths, np.int32),)
        work = SimpleNamespace(epoch=0, window=window, part=0)
        address = SimpleNamespace(origin=f"block {window}")
        task: Any = SimpleNamespace(work=work, blocks=(window,), addresses=(address,))
        report = TaskReport((sum(lengths),), (0,), None, 0.0, 0.0, corrupt=corrupt, documents=documents)
        rows.record(task, report)

    for lengths in ([2, 1], [2, 1]):
        count(0, lengths)
    with pytest.raises(SourceError, match=r"block 0: read 2 documents of 3 tokens.*not a pure function"):
        count(0, [1, 2])
    count(1, [])
    with pytest.raises(SourceError, match="block 1: read 1 documents of 4 tokens, expected 0"):
        count(1, [4])
    # a corrupt block that another attempt could still read has no documents
    count(2, [], Corruption(2, "block 2 is torn"))
    count(2, [3])
    found = [None if each is None else each.tolist() for each in rows.documents]
    assert found == [[2, 1], [], [], None]


def test_a_block_that_a_state_leaves_out_has_no_rows(rows: BlockRowCounts) -> None:
    rows.admit(Cursor(0, corrupt=(1,)), 1)
    assert (rows.count([1]), rows.corrupt.blocks) == (0, (1,))
    for window in (0, 2, 3):
        record(rows, window, 10)
    assert rows.total(0) == 30
    with pytest.raises(SourceError, match="can be read now"):
        rows.admit(Cursor(0, corrupt=(2,)), 2)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (RowSizes(row_bytes=2**20, growth=1.0), "batches take 1.0 MiB per row, more than estimated"),
        (RowSizes(row_bytes=2**20, growth=3.0), "blocks take 3.0 times the memory that was estimated"),
    ],
)
def test_what_has_grown_is_told_once(sizes: RowSizes, reason: str) -> None:
    grown = SimpleNamespace(total_bytes=5 * 2**30, window_bytes=2**30, copies=1.0)
    budget: Any = SimpleNamespace(
        exact=False, total_bytes=2**30, limit_bytes=8 * 2**30, grown=lambda _: grown
    )
    estimate = MemoryEstimate(budget)
    [warning] = estimate.grow(sizes, memory_bytes=2**31)
    assert warning.startswith(
        f"{reason}: the run needs about 5.0 GiB in total instead of 1.0 GiB; a window takes about 1.0 GiB"
    )
    assert estimate.grow(sizes, memory_bytes=2**31) == []
    assert estimate.total_bytes == 5 * 2**30


def test_what_has_grown_is_not_told_far_below_the_memory_limit() -> None:
    grown = SimpleNamespace(total_bytes=5 * 2**30, window_bytes=2**30, copies=1.0)
    budget: Any = SimpleNamespace(
        exact=False, total_bytes=2**30, limit_bytes=24 * 2**30, grown=lambda _: grown
    )
    estimate = MemoryEstimate(budget)
    assert estimate.grow(RowSizes(row_bytes=2**20, growth=3.0), memory_bytes=2**31) == []
    assert estimate.total_bytes == 5 * 2**30

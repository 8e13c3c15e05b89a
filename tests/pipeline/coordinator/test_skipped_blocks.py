"""Which corrupt blocks a run skips, and when that contradicts what it has delivered."""

from __future__ import annotations

import pytest

from tests.laws.cases import Case
from windrow.core.errors import SourceError
from windrow.pipeline.coordinator.skipped_blocks import MAX_BLOCKS, SkippedBlocks, blocks_passed
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Corruption
from windrow.shuffle.order.epoch_plan import WindowCut

# in stored order, so that block b is in window b // 2
CASE = Case((10,) * 20, WindowCut(blocks_per_window=2), seed=None, corrupt=frozenset())


@pytest.fixture
def program() -> Program:
    return Program(CASE.job(ThreadsExecutor(1)), 1, False, (0,))


@pytest.fixture
def left_out(program: Program) -> SkippedBlocks:
    return SkippedBlocks(program)


def corruption(block: int) -> Corruption:
    return Corruption(block, f"block {block} is torn")


def test_corrupt_blocks_are_reported_named_and_counted(left_out: SkippedBlocks) -> None:
    assert left_out.find_skipped(0, [3, 4]) == ()
    assert left_out.add(0, 3, corruption(7)) == "a corrupt block is skipped, 10 stored rows: block 7 is torn"
    left_out.add(0, 1, corruption(2))
    assert left_out.blocks == (2, 7)
    assert left_out.names == ("block 2", "block 7")
    assert left_out.rows == 20
    assert left_out.find_skipped(0, [6, 7, 2, 3]) == (1, 2)


def test_one_too_many(left_out: SkippedBlocks) -> None:
    for block in range(MAX_BLOCKS):
        left_out.add(0, block // 2, corruption(block))
    with pytest.raises(SourceError, match=r"9 blocks are corrupt.*8 at most: block 0; .*; block 19\..*torn"):
        left_out.add(0, 9, corruption(19))


def test_a_window_that_a_shard_has_passed_must_not_change(left_out: SkippedBlocks) -> None:
    left_out.admit(0, 3, [2], counted=[])
    assert left_out.blocks == (2,)
    with pytest.raises(SourceError, match=r"block 7 is torn\. It can no longer be skipped"):
        left_out.add(0, 3, corruption(7))
    left_out.add(0, 4, corruption(8))
    # an older place takes nothing back, and another epoch is its own
    left_out.admit(0, 1, [2], counted=[])
    with pytest.raises(SourceError, match="can no longer be skipped"):
        left_out.add(0, 2, corruption(5))
    left_out.add(1, 2, corruption(5))


def test_a_shard_that_has_passed_a_window_knows_of_its_corruption(left_out: SkippedBlocks) -> None:
    left_out.add(0, 3, corruption(7))
    left_out.admit(0, 2, [], counted=[])
    with pytest.raises(SourceError, match=r"block 7 is torn\. It can no longer be skipped"):
        left_out.admit(0, 3, [], counted=[])
    left_out.admit(0, 3, [7], counted=[])


def test_shard_in_an_earlier_epoch_ignores_later_corrupt_blocks(left_out: SkippedBlocks) -> None:
    """It can have started behind that block; if its epoch needs the block, that epoch had its rows."""
    left_out.add(1, 3, corruption(7))
    left_out.admit(0, 4, [], counted=[])
    assert left_out.find_skipped(1, [6, 7]) == (1,)
    assert left_out.find_skipped(0, [8, 9]) == ()
    with pytest.raises(SourceError, match=r"block 7 is torn\. It can no longer be skipped"):
        left_out.find_skipped(0, [6, 7])
    with pytest.raises(SourceError, match="can no longer be skipped"):
        left_out.admit(1, 3, [], counted=[])


def test_rows_omitted_for_a_shard_are_not_counted(left_out: SkippedBlocks) -> None:
    with pytest.raises(SourceError, match=r"block 4: .*was skipped as corrupt before, but can be read now"):
        left_out.admit(0, 3, [4, 5], counted=[4])
    assert left_out.blocks == ()


def test_blocks_passed(program: Program) -> None:
    blocks = frozenset({0, 5, 19})
    passed = {window: blocks_passed(program, 0, window, blocks) for window in (-1, 0, 1, 2, 9, 10, 11)}
    assert passed == {-1: [], 0: [0], 1: [0], 2: [0, 5], 9: [0, 5, 19], 10: [0, 5, 19], 11: [0, 5, 19]}


def test_a_cursor_names_all_corruption_of_its_window_where_its_last_step_lies_in_it() -> None:
    assert Cursor().passed(1) == -1
    assert Cursor(0, 30, 2, 20, (2, 5)).passed(1) == 2
    assert Cursor(0, 30, 2, 21, (2, 5)).passed(1) == -1
    # with sequences of three rows, two batches of five are 30 rows
    assert Cursor(0, 60, 2, 30, (2, 5)).passed(3) == 2
    assert Cursor(0, 60, 2, 31, (2, 5)).passed(3) == -1
    # what was not read in steps, or by an unknown assignment, proves nothing
    assert Cursor(0, 30, 2, 20).passed(1) == -1
    cursor = Cursor(0, 30, 2, 20, (2, 5), (7,)).skipping([3, 7])
    assert (cursor.corrupt, cursor.passed(1), cursor) == ((3, 7), 2, Cursor(0, 30, 2, 20))
    assert cursor.next_epoch().corrupt == (3, 7)

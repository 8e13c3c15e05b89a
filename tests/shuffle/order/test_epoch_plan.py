"""Epoch plans: an exact partition of the blocks, cut by the formula, different in each epoch."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from windrow.core.errors import PlanError
from windrow.core.source import BlockTable
from windrow.shuffle.order import epoch_plan
from windrow.shuffle.order.epoch_plan import EpochPlan, WindowCut, plan_epoch
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import block_order

SIZES = st.lists(st.integers(0, 50), max_size=12)
SEEDS = st.none() | st.integers(-(2**70), 2**70)


def table(sizes: list[int]) -> BlockTable:
    array = np.array(sizes, dtype=np.int64)
    # only decoded bytes determine the cut, so rows and memory have other values
    return BlockTable(array * 0 + 1, array, array * 3 + 7, rows_known=True, bytes_exact=False)


def windows(plan: EpochPlan) -> list[list[int]]:
    return [plan.window_blocks(window).tolist() for window in range(plan.windows)]


@by_day(30)
@given(SIZES, st.none() | st.integers(1, 15), st.none() | st.integers(1, 400), SEEDS, st.integers(0, 3))
def test_an_exact_partition(
    sizes: list[int], blocks: int | None, size: int | None, seed: int | None, epoch: int
) -> None:
    cut = WindowCut(blocks, None if blocks is not None else size)
    plan = plan_epoch(table(sizes), cut=cut, seed=seed, epoch=epoch)
    assert sorted(plan.blocks.tolist()) == list(range(len(sizes)))
    assert list(chain(*windows(plan))) == plan.blocks.tolist()
    assert all(window == sorted(window) for window in windows(plan))
    assert plan.epoch == epoch
    if seed is None:
        assert plan.blocks.tolist() == list(range(len(sizes)))


@by_day(30)
@given(SIZES, st.integers(1, 400), SEEDS, st.integers(0, 3))
@example([2**62, 2**62 - 1, 0, 0], 2**60, None, 0)
@example([2**40] * 7, 3 * 2**40, 5, 1)
@example([0, 0, 0], 10, None, 0)
def test_windows_of_bytes(sizes: list[int], size: int, seed: int | None, epoch: int) -> None:
    plan = plan_epoch(table(sizes), cut=WindowCut(bytes_per_window=size), seed=seed, epoch=epoch)
    order = list(range(len(sizes)))
    if seed is not None:
        order = block_order(derive_key(seed, "blocks", epoch, 0), len(sizes)).tolist()
    total = sum(sizes)
    count = max(-(-total // size), min(1, len(sizes)))
    expected: list[list[int]] = [[] for _ in range(count)]
    before = 0
    for block in order:
        # a block without bytes at the very end belongs to the last window
        expected[min(before * count // total, count - 1) if total else 0].append(block)
        before += sizes[block]
    assert windows(plan) == [sorted(window) for window in expected]


@by_day(30)
@given(st.integers(0, 12), st.integers(1, 15), SEEDS)
def test_windows_of_blocks(count: int, per_window: int, seed: int | None) -> None:
    plan = plan_epoch(table([5] * count), cut=WindowCut(blocks_per_window=per_window), seed=seed, epoch=2)
    sizes = [len(window) for window in windows(plan)]
    assert len(sizes) == -(-count // per_window)
    assert all(size == per_window for size in sizes[:-1])


def test_nothing_to_plan() -> None:
    for cut in (WindowCut(), WindowCut(blocks_per_window=2), WindowCut(bytes_per_window=2)):
        assert plan_epoch(table([]), cut=cut, seed=7, epoch=0).windows == 0


def test_one_window_without_a_cut() -> None:
    assert windows(plan_epoch(table([1, 2, 3]), cut=WindowCut(), seed=None, epoch=0)) == [[0, 1, 2]]


def test_epochs_and_seeds_differ() -> None:
    cut = WindowCut(blocks_per_window=4)
    plans = {
        str(windows(plan_epoch(table([1] * 40), cut=cut, seed=seed, epoch=epoch)))
        for seed in (None, 0, 1, 2)
        for epoch in range(4)
    }
    assert len(plans) == 1 + 3 * 4


def test_tiny_windows_of_much_data_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PlanError, match=r"bytes_per_window=7 .*set it to 262144 bytes or more"):
        plan_epoch(table([2**40]), cut=WindowCut(bytes_per_window=7), seed=None, epoch=0)
    # the plan of all of them takes a second
    monkeypatch.setattr(epoch_plan, "MAX_WINDOWS", 64)
    assert plan_epoch(table([2**24]), cut=WindowCut(bytes_per_window=2**18), seed=1, epoch=0).windows == 64
    with pytest.raises(PlanError, match="set it to 262144 bytes or more"):
        plan_epoch(table([2**24]), cut=WindowCut(bytes_per_window=2**18 - 1), seed=1, epoch=0)


@pytest.mark.parametrize("seed", [None, 3])
def test_products_beyond_64_bits(seed: int | None) -> None:
    sizes = [2**50 + i for i in range(1000)]
    plan = plan_epoch(table(sizes), cut=WindowCut(bytes_per_window=2**51), seed=seed, epoch=0)
    held = [sum(sizes[block] for block in window) for window in windows(plan)]
    assert sum(held) == sum(sizes)
    assert max(held) <= 3 * (2**50 + 1000)


@by_day(30)
@given(count=st.integers(0, 40), per_window=st.integers(1, 9), epoch=st.integers(0, 3))
def test_blocks_keep_their_new_order_where_rows_are_not_shuffled(
    count: int, per_window: int, epoch: int
) -> None:
    blocks, cut = table([10] * count), WindowCut(blocks_per_window=per_window)
    in_order = plan_epoch(blocks, cut=cut, seed=7, epoch=epoch)
    shuffled = plan_epoch(blocks, cut=cut, seed=7, epoch=epoch, sorts_windows=False)
    assert shuffled.blocks.tolist() == block_order(derive_key(7, "blocks", epoch, 0), count).tolist()
    assert in_order.starts.tolist() == shuffled.starts.tolist()
    for window in range(shuffled.windows):
        assert sorted(shuffled.window_blocks(window)) == in_order.window_blocks(window).tolist()

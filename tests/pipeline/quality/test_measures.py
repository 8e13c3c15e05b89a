"""Orders computed from the plan are those that are delivered, and the measures count what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import windrow
from windrow.pipeline.plan.program import Program
from windrow.pipeline.quality.epoch_order import EpochOrder, full_order
from windrow.pipeline.quality.measure_job import choose_batches
from windrow.pipeline.quality.measures import count_distinct, find_entropy, meet_again
from windrow.shuffle.order.epoch_plan import EpochPlan

Ints = NDArray[np.int64]

ROWS = 3_000


def make_pipe(shuffle: str, blocks_per_window: int) -> windrow.DatasetPipeline:
    dataset = windrow.from_numpy({"row": np.arange(ROWS)}, target_block_bytes=8 * 77)
    pipe = dataset.window(blocks_per_window=blocks_per_window).repeat(3)
    if shuffle == "rows":
        return pipe.random_shuffle_each_window(seed=11)
    return pipe.randomize_block_order_each_window(seed=11) if shuffle == "blocks" else pipe


def order_of(pipe: windrow.DatasetPipeline, epoch: int) -> EpochOrder:
    job = pipe._plan.job()
    return EpochOrder(Program(job, 1, False, (0,)).plan(epoch), job.source.blocks.rows, job.row_seed)


@pytest.mark.parametrize("shuffle", ["rows", "blocks", "nothing"])
@pytest.mark.parametrize("blocks_per_window", [1, 7, 100])
def test_order_is_the_delivered_one(shuffle: str, blocks_per_window: int) -> None:
    pipe = make_pipe(shuffle, blocks_per_window)
    some = np.flatnonzero(np.arange(ROWS) % 7)
    for epoch in pipe.iter_epochs(2):
        delivered = np.concatenate([batch["row"] for batch in epoch.iter_batches()])
        order = order_of(pipe, epoch.number)
        assert order.stored_rows(np.arange(ROWS)).tolist() == delivered.tolist()
        assert order.stored_rows(some).tolist() == delivered[some].tolist()


def test_order_of_large_windows_is_a_permutation() -> None:
    counts = np.array([70_000, 0, 1, 30_000])
    stored = full_order(counts, 5).stored_rows(np.arange(100_001))
    assert np.array_equal(np.sort(stored), np.arange(100_001))


def count_meetings(stored: Ints, order: EpochOrder) -> float:
    """Share of the pairs of each batch that share a batch of the other order, by looking at every pair."""
    size = stored.shape[1]
    batch_of = np.empty(ROWS, np.int64)
    batch_of[order.stored_rows(np.arange(ROWS))] = np.arange(ROWS) // size
    batches = batch_of[stored]
    same = (batches[:, :, None] == batches[:, None, :]).sum() - stored.size
    return float(same / 2 / (len(stored) * size * (size - 1) / 2))


@pytest.mark.parametrize("shuffle", ["blocks", "nothing"])
def test_recurrence_without_shuffled_rows_is_counted(shuffle: str) -> None:
    pipe = make_pipe(shuffle, 5)
    first, second = order_of(pipe, 0), order_of(pipe, 1)
    stored = first.stored_rows(np.arange(ROWS)).reshape(-1, 50)
    assert meet_again(stored, second) == pytest.approx(count_meetings(stored, second))


# windows of whole batches, that end within batches, and that are smaller than a batch
@pytest.mark.parametrize(("blocks_per_window", "size"), [(5, 50), (3, 100), (1, 250), (100, 60)])
def test_recurrence_is_the_mean_over_orders_of_the_windows(blocks_per_window: int, size: int) -> None:
    pipe = make_pipe("rows", blocks_per_window)
    first, second = order_of(pipe, 0), order_of(pipe, 1)
    stored = first.stored_rows(np.arange(ROWS)).reshape(-1, size)
    counted = np.array([count_meetings(stored, replace(second, row_seed=seed)) for seed in range(30)])
    error = counted.std() / np.sqrt(len(counted) - 1)
    assert abs(meet_again(stored, second) - counted.mean()) < 4 * error + 1e-12


def test_entropy_is_that_of_distances() -> None:
    # distances 1, 2, 1 and 3, 3, 3
    places = np.array([[0, 1, 3, 2], [9, 6, 3, 0]])
    shares = np.array([2, 1, 3]) / 6
    assert find_entropy(places) == pytest.approx(-(shares * np.log2(shares)).sum())
    assert find_entropy(np.array([[1], [2]])) == 0


def test_distinct_values_are_counted_a_batch() -> None:
    assert count_distinct(np.array([[5, 1, 5, 5], [2, 3, 4, 5]])).tolist() == [2, 4]


def test_small_epochs_are_sampled_whole() -> None:
    sample = choose_batches(1_000, 30, windows=4)
    assert sample.rows.tolist() == list(range(990))


@pytest.mark.parametrize("windows", [1, 20, 10**6, 10**9])
@pytest.mark.parametrize("batch_rows", [1, 100, 4_096, 10**6])
def test_samples_are_bounded_and_spread(windows: int, batch_rows: int) -> None:
    total = 10**11 + 7
    sample = choose_batches(total, batch_rows, windows)
    assert len(sample.rows) <= max(2**19, batch_rows)
    touched = sum(
        int((start + sample.segment_rows) * windows // total) - int(start * windows // total) + 1
        for start in sample.starts.tolist()
    )
    assert touched <= 512 + 2 * len(sample.starts) + sample.segment_rows * windows // total
    assert (sample.starts % batch_rows == 0).all()
    assert (np.diff(sample.starts) > 0).all()
    assert sample.rows[-1] < total
    # each part of the epoch has one
    assert ((sample.starts * len(sample.starts) // total) == np.arange(len(sample.starts))).mean() > 0.9
    assert np.array_equal(choose_batches(total, batch_rows, windows).rows, sample.rows)


def test_window_without_blocks_holds_no_rows() -> None:
    plan = EpochPlan(0, np.array([1, 0]), np.array([0, 1, 1, 2]))
    order = EpochOrder(plan, np.array([2, 3]), 7)
    assert sorted(order.stored_rows(np.arange(3)).tolist()) == [2, 3, 4]
    assert sorted(order.stored_rows(np.arange(3, 5)).tolist()) == [0, 1]

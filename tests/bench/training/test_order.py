from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.training.delivered_rows import Randomness, measure_randomness


def _measure(keys: NDArray[np.int64], batch_size: int = 1_000) -> Randomness:
    return measure_randomness([keys], len(keys), batch_size=batch_size, row_groups=20)


def test_uniform_and_stored_order() -> None:
    rows = 20_000
    uniform = _measure(np.random.Generator(np.random.Philox(1)).permutation(rows))
    assert uniform.neighbour_distance == pytest.approx(1, abs=0.03)
    assert _measure(np.arange(rows)).neighbour_distance < 0.001


@pytest.mark.parametrize(("in_window", "blocks"), [(1, 2), (2, 8), (4, 8), (8, 8)])
def test_windows_of_few_blocks_match_the_formula_in_the_report(in_window: int, blocks: int) -> None:
    block_rows = 4_000
    draws = np.random.Generator(np.random.Philox(2))
    expected = 1 - 1 / in_window + 1 / blocks
    measured = []
    for _ in range(20):
        order = draws.permutation(blocks).reshape(-1, in_window)
        rows = order[:, :, None] * block_rows + np.arange(block_rows)
        keys = np.concatenate([draws.permutation(window.ravel()) for window in rows])
        measured.append(_measure(keys).neighbour_distance)
    assert np.mean(measured) == pytest.approx(expected, rel=0.12)


@pytest.mark.parametrize("batch_size", [10, 64, 1_000])
def test_uniform_batches_have_the_expected_row_groups(batch_size: int) -> None:
    draws = np.random.Generator(np.random.Philox(3))
    uniform = _measure(draws.permutation(20_000), batch_size=batch_size)
    assert uniform.groups_a_batch == pytest.approx(uniform.groups_expected, rel=0.03)
    assert uniform.neighbours_kept < 0.001


def test_buffered_and_stored_order_have_few_row_groups_per_batch() -> None:
    rows, buffer = 20_000, 2_000
    stored = _measure(np.arange(rows))
    assert (stored.groups_a_batch, stored.neighbours_kept) == (1, 1)
    draws = np.random.Generator(np.random.Philox(4))
    buffered = np.concatenate([draws.permutation(buffer) + first for first in range(0, rows, buffer)])
    assert _measure(buffered).groups_a_batch == 2


def test_batch_larger_than_the_epoch_is_all_rows() -> None:
    assert _measure(np.arange(100), batch_size=1_000).groups_a_batch == 20

"""Measures law 5: the orders cannot be distinguished from random orders.

Keys are fixed, so a test passes always or never. The tests at the end show that the statistics
reject weaker constructions and accept a true random order.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from _pytest.mark.structures import ParameterSet
from numpy.typing import NDArray
from scipy import stats

from tests.shuffle.order.randomness import (
    BUCKETS,
    Positions,
    chi_square_p,
    correlation_p,
    lag_difference_p,
    lag_p_values,
    neighbour_distance_p,
    place_p_values,
    plausible,
)
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation, Rounds


def at_night(*values: int) -> ParameterSet:
    return pytest.param(*values, marks=pytest.mark.nightly)


# Two sizes of the exact branch; then just above powers of two, where most rows need cycle walking, and below.
SIZES = (5_000, at_night(65_536), 65_537, *map(at_night, (98_304, 131_071, 131_072, 131_073, 262_143)))


def key_of(number: int) -> bytes:
    return derive_key(number % 7, "rows", number // 7 % 11, number // 77)


def order_of(number: int, size: int) -> Positions:
    return Permutation(key_of(number), size).positions(0, size)


# Small windows: every order.


def order_counts(rows: int, orders: int, draw: Callable[[int], Positions]) -> NDArray[np.int64]:
    weights = rows ** np.arange(rows)
    codes = np.array([int(draw(number) @ weights) for number in range(orders)])
    counts = np.unique(codes, return_counts=True)[1]
    return np.pad(counts, (0, math.factorial(rows) - counts.size))


@pytest.mark.parametrize(
    ("rows", "orders"), [(2, 2_000), (3, 3_000), at_night(4, 4_000), at_night(5, 6_000), at_night(6, 22_000)]
)
def test_every_order_of_a_small_window_is_equally_likely(rows: int, orders: int) -> None:
    counts = order_counts(rows, orders, lambda number: order_of(number, rows))
    assert 1e-3 < chi_square_p(counts, orders / counts.size, counts.size - 1) < 1 - 1e-3


# Larger windows.


@pytest.mark.parametrize("size", SIZES)
def test_positions_are_independent_of_stored_places(size: int) -> None:
    assert plausible([place_p_values(order_of(number, size)) for number in range(24)])


@pytest.mark.parametrize("size", SIZES)
def test_positions_do_not_correlate_with_stored_rows(size: int) -> None:
    rows = np.arange(size)
    assert plausible([correlation_p(rows, order_of(number, size)) for number in range(60)])


@pytest.mark.parametrize("size", SIZES)
def test_neighbours_are_scattered(size: int) -> None:
    orders = [order_of(number, size) for number in range(40)]
    assert plausible([neighbour_distance_p(order) for order in orders])
    # About two pairs of neighbours per order stay neighbours; their sum has a Poisson distribution.
    together = sum(int(np.count_nonzero(np.abs(np.diff(order)) == 1)) for order in orders)
    assert 1e-3 < stats.poisson.cdf(together, 2 * len(orders)) < 1 - 1e-3


@pytest.mark.parametrize(
    ("size", "orders"),
    [(5_000, 200), (65_537, 60), *(at_night(size, 200) for size in (65_537, 98_304, 131_071, 131_073))],
)
def test_differences_at_every_power_of_two_lag(size: int, orders: int) -> None:
    p_values = np.array([lag_p_values(order_of(number, size)) for number in range(orders)])
    assert plausible(p_values)
    # Lag by lag, so that one bad lag cannot hide among good ones.
    assert min(stats.kstest(column, "uniform").pvalue for column in p_values.T) > 1e-3 / p_values.shape[1]


# Fewer keys where rows need many passes of cycle walking.
@pytest.mark.parametrize(
    ("size", "keys"),
    [
        (2**24 - 3, 60),
        (2**33 + 1, 40),
        *(at_night(size, 200) for size in (2**24 - 3, 2**32, 2**33 - 5, 2**40 - 7)),
    ],
)
def test_differences_at_every_power_of_two_lag_in_samples(size: int, keys: int) -> None:
    assert plausible([sampled_lag_p_values(number, size, rows=4_096) for number in range(keys)])


def sampled_lag_p_values(number: int, size: int, rows: int) -> list[float]:
    permutation = Permutation(key_of(number), size)
    p_values = []
    for bit in range((size - rows).bit_length() - 1):
        # Another start for every key, so that the samples cover the range.
        start = (number * 0x9E3779B97F4A7C15 >> 7) % (size - rows - (1 << bit))
        first = permutation.positions(start, start + rows)
        lagged = permutation.positions(start + (1 << bit), start + (1 << bit) + rows)
        p_values.append(lag_difference_p(first, lagged, size))
    return p_values


@pytest.mark.parametrize("size", [2**33 - 5, at_night(2**33 + 1), at_night(2**40)])
def test_large_positions_are_uniform_in_samples(size: int) -> None:
    p_values = []
    for number in range(60):
        start = number * (size // 60)
        positions = Permutation(key_of(number), size).positions(start, start + 20_000)
        counts = np.bincount(positions * BUCKETS // size, minlength=BUCKETS)
        p_values.append(chi_square_p(counts, positions.size / BUCKETS, BUCKETS - 1))
        p_values.append(stats.kstest(positions / size, "uniform").pvalue)
    assert plausible(p_values)


@pytest.mark.parametrize("size", [6_000, 66_000])
def test_row_groups_in_a_batch_follow_the_hypergeometric_distribution(size: int) -> None:
    group_rows, batch_rows = 500, 10
    groups = size // group_rows
    distinct = np.concatenate([distinct_groups(order_of(n, size), group_rows, batch_rows) for n in range(40)])
    missed = math.comb(size - group_rows, batch_rows) / math.comb(size, batch_rows)
    both_missed = math.comb(size - 2 * group_rows, batch_rows) / math.comb(size, batch_rows)
    mean = groups * (1 - missed)
    variance = groups * missed * (1 - missed) + groups * (groups - 1) * (both_missed - missed**2)
    assert abs(distinct.mean() - mean) < 4 * math.sqrt(variance / distinct.size)
    assert distinct.var() == pytest.approx(variance, rel=0.03)


def distinct_groups(order: Positions, group_rows: int, batch_rows: int) -> NDArray[np.int64]:
    group_at = np.empty(order.size, np.int64)
    group_at[order] = np.arange(order.size) // group_rows
    batches = np.sort(group_at.reshape(-1, batch_rows), axis=1)
    return 1 + np.count_nonzero(np.diff(batches, axis=1), axis=1)


# Independence between epochs, windows, seeds and purposes.

Inputs = tuple[int, str, int, int]

CHANGES: dict[str, Callable[[int], tuple[Inputs, Inputs]]] = {
    "next epoch": lambda i: ((i, "rows", 3, 2), (i, "rows", 4, 2)),
    "next window": lambda i: ((i, "rows", 3, 2), (i, "rows", 3, 3)),
    "next seed": lambda i: ((i, "rows", 3, 2), (i + 1, "rows", 3, 2)),
    "other purpose": lambda i: ((i, "rows", 3, 2), (i, "blocks", 3, 2)),
    "seed and epoch exchanged": lambda i: ((i, "rows", i + 1, 0), (i + 1, "rows", i, 0)),
    "epoch and window exchanged": lambda i: ((0, "rows", i, i + 1), (0, "rows", i + 1, i)),
    "opposite seed": lambda i: ((i + 1, "rows", 0, 0), (-i - 1, "rows", 0, 0)),
}


@pytest.mark.parametrize("size", [1_000, at_night(66_000)])
@pytest.mark.parametrize("change", sorted(CHANGES))
def test_orders_are_independent(change: str, size: int) -> None:
    correlations, matches, pairs = [], 0, 60
    for i in range(pairs):
        first, second = (
            Permutation(derive_key(*inputs), size).positions(0, size) for inputs in CHANGES[change](i)
        )
        correlations.append(correlation_p(first, second))
        matches += int(np.count_nonzero(first == second))
    assert plausible(correlations)
    # Two random orders agree in about one row.
    assert 1e-3 < stats.poisson.cdf(matches, pairs) < 1 - 1e-3


@pytest.mark.parametrize("size", [100, 5_000, 65_537, at_night(131_071)])
def test_about_one_row_stays_in_place(size: int) -> None:
    rows, orders = np.arange(size), 100
    fixed = sum(int(np.count_nonzero(order_of(number, size) == rows)) for number in range(orders))
    assert 1e-3 < stats.poisson.cdf(fixed, orders) < 1 - 1e-3


# The power of the statistics.

BITS = 17


WEAKER: dict[str, Callable[[Rounds], Rounds]] = {
    "three rounds": lambda rounds: replace(rounds, keys=rounds.keys[:3], multipliers=rounds.multipliers[:3]),
    "four rounds": lambda rounds: replace(rounds, keys=rounds.keys[:4], multipliers=rounds.multipliers[:4]),
    "no multiplication": lambda rounds: replace(rounds, multipliers=(1,) * 6),
    "lame multipliers": lambda rounds: replace(rounds, multipliers=(1, 3, 5, 1, 3, 5)),
}


def test_rounds_without_cycle_walking_are_the_permutation() -> None:
    order = Rounds.from_key(key_of(0), BITS).mix_range(0, 1 << BITS)
    assert np.array_equal(order, order_of(0, 1 << BITS))


# four rounds are closer to six than three are
@pytest.mark.parametrize(
    "weakness",
    [pytest.param(name, marks=[pytest.mark.nightly] * (name == "three rounds")) for name in sorted(WEAKER)],
)
def test_weaker_rounds_are_rejected(weakness: str) -> None:
    weaker = [WEAKER[weakness](Rounds.from_key(key_of(number), BITS)) for number in range(8)]
    assert not plausible([lag_p_values(rounds.mix_range(0, 1 << BITS).astype(np.int64)) for rounds in weaker])


def test_a_true_random_order_is_accepted() -> None:
    raw = (np.random.Philox(key=number).random_raw(1 << BITS) for number in range(8))
    orders = [np.argsort(values, kind="stable") for values in raw]
    assert plausible([lag_p_values(order) for order in orders])
    assert plausible([place_p_values(order) for order in orders])
    assert plausible([neighbour_distance_p(order) for order in orders])


def test_orders_left_as_stored_are_rejected() -> None:
    stored = np.arange(1 << BITS)
    shuffled_in_small_windows = (stored.reshape(-1, 64) ^ 37).ravel()
    for order in (stored, stored[::-1], shuffled_in_small_windows):
        assert not plausible(place_p_values(order))
        assert not plausible([neighbour_distance_p(order)])
        assert not plausible([correlation_p(stored, order)])


def test_swapping_with_any_row_is_rejected() -> None:
    """The classic mistake: each row is swapped with any row instead of a later one."""

    def naive(number: int) -> Positions:
        raw = np.random.Philox(key=number).random_raw(4)
        order = np.arange(4)
        for row, other in enumerate((raw >> np.uint64(33)).astype(np.int64) % 4):
            order[row], order[other] = order[other], order[row]
        return order

    counts = order_counts(4, 4_000, naive)
    assert chi_square_p(counts, 4_000 / counts.size, counts.size - 1) < 1e-6


def test_keys_that_are_sums_are_rejected() -> None:
    """With ``seed + epoch`` in the key, exchanging seed and epoch gives the same order."""
    first, second = (
        Permutation(derive_key(seed + epoch, "rows", 0, 0), 1_000).positions(0, 1_000)
        for seed, epoch in ((0, 1), (1, 0))
    )
    assert not plausible([correlation_p(first, second)])

"""Statistics that distinguish an order from a random one, each as a p-value.

The p-values of random orders are uniform. :func:`plausible` tests many p-values twice: the smallest one
against Bonferroni's bound, and all together for uniformity (Kolmogorov-Smirnov), which finds a bias too
weak to show in a single order.
"""

from __future__ import annotations

import math
from functools import cache
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

Positions = NDArray[np.int64]

BUCKETS = 64


def plausible(p_values: Any) -> bool:
    p = np.ravel(np.asarray(p_values, dtype=np.float64))
    return bool(p.min() > 1e-3 / p.size and stats.kstest(p, "uniform").pvalue > 1e-3)


def chi_square_p(counts: NDArray[Any], expected: NDArray[Any] | float, freedom: int) -> float:
    return float(stats.chi2.sf(np.sum((counts - expected) ** 2 / expected), freedom))


def two_sided_p(z: float) -> float:
    return float(2 * stats.norm.sf(abs(z)))


def lag_difference_p(first: Positions, second: Positions, size: int) -> float:
    """Are the differences modulo the size, all but 0, equally likely?"""
    differences = second - first
    differences += (differences >> 63) & size
    counts = np.bincount(differences * BUCKETS // size, minlength=BUCKETS)
    return chi_square_p(counts, difference_shares(size) * first.size, BUCKETS - 1)


@cache
def difference_shares(size: int) -> NDArray[np.float64]:
    edges = [-(-bucket * size // BUCKETS) for bucket in range(BUCKETS + 1)]
    widths = np.diff(edges).astype(np.float64)
    widths[0] -= 1
    return widths / (size - 1)


def lag_p_values(order: Positions) -> list[float]:
    size = order.size
    # A larger lag leaves too few differences per bucket.
    lags = [1 << bit for bit in range(size.bit_length()) if size - (1 << bit) > 2_000]
    return [lag_difference_p(order[:-lag], order[lag:], size) for lag in lags]


def table_p(left: NDArray[Any], right: NDArray[Any], cells: int) -> float:
    """Are two groupings of the same rows independent of each other?"""
    table = np.bincount(left * cells + right, minlength=cells * cells).reshape(cells, cells)
    expected = np.outer(table.sum(axis=1), table.sum(axis=0)) / left.size
    # Both margins are fixed, which widens the statistic by n / (n - 1).
    shrunk = expected + (table - expected) * math.sqrt((left.size - 1) / left.size)
    return chi_square_p(shrunk, expected, (cells - 1) ** 2)


def place_p_values(order: Positions) -> list[float]:
    """Is the position independent of the stored place, by region and by remainder (as in shard assignment)?"""
    rows, size, cells = np.arange(order.size), order.size, 16
    region, remainder = rows * cells // size, rows % cells
    new_region, new_remainder = order * cells // size, order % cells
    stored, placed = (region, remainder), (new_region, new_remainder)
    return [table_p(left, right, cells) for left, right in product(stored, placed)]


def correlation_p(left: Positions, right: Positions) -> float:
    """Pearson's correlation; of ranks, so Spearman's too."""
    return two_sided_p(float(np.corrcoef(left, right)[0, 1]) * math.sqrt(left.size - 1))


def neighbour_distance_p(order: Positions) -> float:
    """Are stored neighbours as far apart as two rows drawn at random (a triangular distribution)?"""
    size = order.size
    distance = np.abs(np.diff(order))
    edges = np.linspace(0, size - 1, BUCKETS + 1).astype(np.int64)
    # Pairs at a distance of at most d: the sum of (size - i) for i from 1 to d.
    within = edges * size - edges * (edges + 1) // 2
    expected = np.diff(within) / within[-1] * distance.size
    counts = np.histogram(distance, bins=np.append(edges[:-1] + 1, size))[0]
    return chi_square_p(counts, expected, BUCKETS - 1)

"""Measures of sampled batches of an epoch, each a pure function of stored rows, and what a full shuffle would give."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.quality.epoch_order import EpochOrder

Ints = NDArray[np.int64]

_SHARES = np.arange(0, 101, 5)
# mean distance between two random places, relative to the number of places
MEAN_DISPLACEMENT = 1 / 3
# of a product that are computed
_FACTORS = 1024


@dataclass(frozen=True)
class Distribution:
    """Mean and quantiles of a measured value.

    Attributes
    ----------
    mean
        The mean.
    quantiles
        (21,) the quantiles at 0, 5, 10, ..., 100 %.

    Examples
    --------
    >>> import windrow
    >>> pipe = windrow.range(1000).repeat(2).random_shuffle_each_window(seed=7)
    >>> report = windrow.shuffle_report(pipe, batch_size=100)
    >>> 0.3 < report.displacement.mean < 0.36, len(report.displacement.quantiles)
    (True, 21)
    """

    mean: float
    quantiles: tuple[float, ...]

    def quantile(self, percent: int) -> float:
        """Return the quantile at a multiple of 5 %."""
        return self.quantiles[percent // 5]


@dataclass(frozen=True)
class OrderMeasures:
    """The measures of an epoch's order and of a full shuffle of its rows; `ShuffleReport` describes them."""

    rows: int
    blocks: int
    windows: int
    groups: int
    group_kind: Literal["row groups", "blocks"]
    shuffle: Literal["rows", "blocks", "nothing"]
    seed: int | None
    epoch: int
    batch_size: int
    sampled_batches: int
    sampled_rows: int
    whole_epoch: bool
    displacement: Distribution
    displacement_full: Distribution
    groups_per_batch: Distribution
    groups_per_batch_full: Distribution
    pairs_met_again: float | None
    pairs_met_again_full: float | None
    entropy: float
    entropy_full: float
    neighbour_distance: float
    neighbour_distance_full: float
    notes: tuple[str, ...] = ()

    @property
    def groups_ratio(self) -> float:
        """Row groups a batch relative to a full shuffle; 1 is a full shuffle."""
        return _ratio(self.groups_per_batch.mean, self.groups_per_batch_full.mean)

    @property
    def recurrence(self) -> float | None:
        """How many times more often pairs meet again than by chance; 1 is a full shuffle."""
        if self.pairs_met_again is None or self.pairs_met_again_full is None:
            return None
        return _ratio(self.pairs_met_again, self.pairs_met_again_full)


def _ratio(observed: float, full: float) -> float:
    """Return a measure relative to that of a full shuffle; 1 if that is 0."""
    return observed / full if full else 1.0


def summarise(values: NDArray[np.int64] | NDArray[np.float64]) -> Distribution:
    """Summarise values, of which there is at least one."""
    return Distribution(float(np.mean(values)), tuple(np.percentile(values, _SHARES).tolist()))


def count_distinct(groups: Ints) -> Ints:
    """(batches,) the number of distinct values in each row of (batches, rows).

    >>> count_distinct(np.array([[1, 2, 1], [3, 3, 3]])).tolist()
    [2, 1]
    """
    ordered = np.sort(groups, axis=1)
    return 1 + np.count_nonzero(np.diff(ordered, axis=1), axis=1)


def find_entropy(places: Ints) -> float:
    """Entropy in bits of the distances between neighbours in each row of (segments, rows).

    This is the measure of the simulator of MosaicML Streaming, `get_entropy` in ``simulation/core/shuffle_quality.py``
    of https://github.com/mosaicml/streaming, which adds that of samples to that of their shards. It is 0 for the stored
    order. Its maximum depends on how many neighbours are measured, so compare it with a full shuffle's.

    >>> find_entropy(np.array([[0, 1, 2, 3]])), find_entropy(np.array([[0, 1, 3]]))
    (0.0, 1.0)
    """
    distances = np.abs(np.diff(places, axis=1)).ravel()
    if not distances.size:
        return 0.0
    _, counts = np.unique(distances, return_counts=True)
    shares = counts / distances.size
    return abs(float((shares * np.log2(shares)).sum()))


def neighbour_distance(places: Ints, total: int) -> float:
    """Mean distance between neighbours in each row of (segments, rows), relative to ``total``.

    >>> neighbour_distance(np.array([[0, 3, 1]]), 10)
    0.25
    """
    distances = np.abs(np.diff(places, axis=1))
    return float(distances.mean()) / total if distances.size else 0.0


def meet_again(stored: Ints, order: EpochOrder) -> float:
    """Share of the pairs of rows of a batch that share a batch in another epoch too.

    Where the other epoch shuffles the rows of its windows, this is the expectation over all orders of each window,
    given which blocks each window holds. So it is not blurred by chance, although a dataset of billions of rows
    has too few such pairs to count.

    Parameters
    ----------
    stored
        (batches, batch rows) the stored rows of some batches.
    order
        The other epoch.
    """
    batches, size = stored.shape
    blocks = np.searchsorted(order.block_ends, stored.ravel(), side="right")
    of_batch = np.repeat(np.arange(batches), size)
    if order.row_seed is None:
        firsts = order.block_ends - order.counts
        places = order.first_of_block[blocks] + stored.ravel() - firsts[blocks]
        rows = _count_pairs(of_batch, places // size)[2]
        met = float((rows * (rows - 1.0) / 2).sum())
    else:
        met = _expect_meetings(of_batch, order.window_of_block[blocks], order.window_starts, size)
    return met / (batches * size * (size - 1) / 2)


def _count_pairs(left: Ints, right: Ints) -> tuple[Ints, Ints, Ints]:
    """The distinct pairs of two arrays, and how often each occurs."""
    order, starts = _group_pairs(left, right)
    firsts = order[starts]
    return left[firsts], right[firsts], np.diff(starts, append=len(order))


def _group_pairs(left: Ints, right: Ints) -> tuple[Ints, Ints]:
    """The order in which equal pairs of two arrays are adjacent, and where each pair begins there."""
    order = np.lexsort((right, left))
    left, right = left[order], right[order]
    is_first = np.ones(len(left), np.bool_)
    is_first[1:] = (left[1:] != left[:-1]) | (right[1:] != right[:-1])
    return order, np.flatnonzero(is_first)


def _expect_meetings(of_batch: Ints, of_window: Ints, starts: Ints, size: int) -> float:
    """Expected pairs of rows that share a batch, where the rows of each window are placed at random in it."""
    batch, window, rows = _count_pairs(of_batch, of_window)
    first, stop = starts[window].astype(np.float64), starts[window + 1].astype(np.float64)
    length = stop - first
    # a window begins and ends within batches that other windows share; those between are its own
    head = np.minimum(length, -first % size)
    own, tail = np.divmod(length - head, size)
    within = head * (head - 1) + own * size * (size - 1) + tail * (tail - 1)
    pairs = rows * (rows - 1.0) / 2
    met = float((pairs * within / np.maximum(1.0, length * (length - 1))).sum())
    shared = np.concatenate([starts[window] // size, starts[window + 1] // size])
    expected = np.concatenate([rows * head / length, rows * tail / length])
    owners, filled = np.concatenate([batch, batch]), expected > 0
    return met + _pairs_between(owners[filled], shared[filled], expected[filled])


def _pairs_between(owners: Ints, shared: Ints, expected: NDArray[np.float64]) -> float:
    """Expected pairs of rows of different windows in the batches that these share."""
    if not len(owners):
        return 0.0
    order, starts = _group_pairs(owners, shared)
    expected = expected[order]
    sums, squares = np.add.reduceat(expected, starts), np.add.reduceat(expected**2, starts)
    return float((sums**2 - squares).sum() / 2)


def expect_distinct(sizes: NDArray[np.int64], drawn: int) -> float:
    """Expected number of distinct groups among rows that are drawn without replacement.

    The number of drawn rows of a group follows the hypergeometric law. So of N rows, a group of n is missed with
    probability C(N − n, drawn) / C(N, drawn).

    Parameters
    ----------
    sizes
        (groups,) rows of each group.
    drawn
        Rows drawn, at most all.

    Examples
    --------
    >>> round(expect_distinct(np.array([2, 2]), 2), 6)
    1.666667
    >>> expect_distinct(np.array([3, 1, 0]), 4)
    2.0
    """
    total = int(sizes.sum())
    distinct, counts = np.unique(sizes[sizes > 0], return_counts=True)
    found = 0.0
    for size, count in zip(distinct.tolist(), counts.tolist(), strict=True):
        found += count * (1 - _missed(total, size, drawn))
    return found


def _missed(total: int, size: int, drawn: int) -> float:
    """C(total − size, drawn) / C(total, drawn)."""
    few, many = sorted((size, drawn))
    if few + many > total:
        return 0.0
    # The product of (total − many − i) / (total − i) for all i < few. Factorials of large totals would cancel each
    # other's digits, and so many factors vary so slowly that their mean comes from some of them.
    count = min(few, _FACTORS)
    steps = (np.arange(count) + 0.5) * few / count - 0.5
    return math.exp(few * float(np.log1p(-many / (total - steps)).mean())) if count else 1.0


def meeting_probability(total: int, batch_size: int) -> float:
    """Probability that two given rows of ``total`` share a batch; the last batch can be short.

    >>> meeting_probability(4, 2), meeting_probability(5, 8)
    (0.333..., 1.0)
    """
    if total < 2:
        return 0.0
    batches, rest = divmod(total, batch_size)
    pairs = batches * batch_size * (batch_size - 1) + rest * (rest - 1)
    return pairs / (total * (total - 1))


def displacement_quantile(share: float) -> float:
    """The displacement below which a ``share`` of rows lies, relative to the number of rows.

    The distance x of two random places, of places in [0, 1], has the distribution function 2x − x².

    >>> displacement_quantile(0.75), displacement_quantile(1)
    (0.5, 1.0)
    """
    return 1 - math.sqrt(1 - share)

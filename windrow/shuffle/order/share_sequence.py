"""Which source each row of a mixture comes from: an order of sources that holds every share to within one row.

The order of sources is periodic, so that the source of any row, and the place of any row of a source, are arithmetic.
In every beginning of it, each source has less than one row more or less than its exact share. Where that leaves a
choice, a key makes it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.shuffle.kernels import native, row_positions

Ints = NDArray[np.int64]

# A period is at least this long, so that nobody meets the same order of sources twice within some batches.
_MIN_PERIOD = 2**14
# Exchanges of neighbours that make the order random: so many turns, or fewer over long periods, since each takes time.
_MAX_TURNS, _MIN_TURNS, _EXCHANGES = 32, 6, 2**20
# How often random beginnings are drawn until one holds the shares: of each source's rows, then of the period.
_PHASES, _STARTS = 4, 32


class ShareSequence:
    """The source of each row.

    Parameters
    ----------
    weights
        (sources,) integers of 0 or more: the exact share of each source is its weight divided by their sum.
    key
        32 bytes, as `derive_key` returns them.

    Examples
    --------
    >>> sequence = ShareSequence([2, 1], bytes(32))
    >>> [sequence.count(source, 3) for source in range(2)]
    [2, 1]
    >>> sequence.places(1, np.arange(3)) // 3
    array([0, 1, 2])
    """

    def __init__(self, weights: Sequence[int], key: bytes) -> None:
        common = gcd(*weights)
        reduced = [weight // common for weight in weights]
        repeats = -(-_MIN_PERIOD // sum(reduced))
        self.weights = np.array(reduced, np.int64) * repeats
        self.period = int(self.weights.sum())
        self._key = key

    def __reduce__(self) -> tuple[Any, ...]:
        # tasks of one process share what has been computed of it
        return share_sequence, (tuple(self.weights.tolist()), self._key)

    @cached_property
    def sources(self) -> NDArray[np.int32]:
        """(period,) the source of each row of a period."""
        return _exchange(_begin_anywhere(self.weights, self._key), self.weights, self._key)

    @cached_property
    def _places(self) -> list[NDArray[np.int32]]:
        """By source, the rows of a period that come from it."""
        by_source = np.argsort(self.sources, kind="stable").astype(np.int32)
        return np.split(by_source, np.cumsum(self.weights)[:-1])

    def places(self, source: int, numbers: Ints) -> Ints:
        """(rows,) where the rows of a source that have these numbers, from 0, come."""
        weight = int(self.weights[source])
        # NumPy divides by a number far faster than it computes both of divmod()
        periods = numbers // weight
        within = self._places[source][numbers - periods * weight]
        periods *= self.period
        periods += within
        return periods

    def scatter(self, source: int, numbers: Ints, first: int, before: int, start: int) -> None:
        """Turn row numbers of a source into rows of a mixture, in place.

        None is below ``first``. The sequence begins at the row ``start`` of the mixture, before which the source has
        ``before`` rows.
        """
        weight = int(self.weights[source])
        periods = (first - before) // weight
        before += periods * weight
        start += periods * self.period
        if native.LIBRARY is not None and len(numbers) and int(numbers.max()) - before <= native.MAX_ROWS:
            row_positions.scatter(numbers, before, self.period, self._places[source], start)
        else:
            numbers[:] = self.places(source, numbers - before)
            numbers += start

    def count(self, source: int, rows: int) -> int:
        """How many of the first ``rows`` rows come from a source."""
        periods, rest = divmod(rows, self.period)
        return periods * int(self.weights[source]) + int(np.searchsorted(self._places[source], rest))

    def counts(self, rows: int) -> Ints:
        """(sources,) how many of the first ``rows`` rows come from each source."""
        return np.array([self.count(source, rows) for source in range(len(self.weights))], np.int64)

    def table(self, rows: Ints) -> Ints:
        """(sources, rows) the same for several numbers of rows."""
        periods, rest = np.divmod(rows, self.period)
        within = np.array([np.searchsorted(places, rest) for places in self._places], np.int64)
        found: Ints = self.weights[:, None] * periods + within
        return found


@lru_cache(maxsize=64)
def share_sequence(weights: tuple[int, ...], key: bytes) -> ShareSequence:
    """The sequence of some weights and a key, which is computed once in a process."""
    return ShareSequence(weights, key)


def _begin_anywhere(weights: Ints, key: bytes) -> NDArray[np.int32]:
    """An order that holds the shares and begins at random.

    In one that always begins alike, a small share comes in the middle of the rows in which it is due once, and where
    shares change before that, never.
    """
    words = Philox(key=np.frombuffer(key[16:], "<u8"))
    for _ in range(_PHASES):
        # 53 bits make a double between 0 and 1
        order = _spread_evenly(weights, (words.random_raw(len(weights)) >> np.uint64(11)) * 2.0**-53)
        if _holds_shares(order, weights):
            return order
    order = _spread_evenly(weights, np.full(len(weights), 0.5))
    if not _holds_shares(order, weights):
        order = _earliest_deadline_first(weights)
    return _begin_at(order, weights, words.random_raw(_STARTS) % np.uint64(len(order)))


def _spread_evenly(weights: Ints, phases: NDArray[np.float64]) -> NDArray[np.int32]:
    """Each source's rows at equal distances, as far as others leave them room; the first after a part of a distance."""
    sources = np.repeat(np.arange(len(weights), dtype=np.int32), weights)
    starts = np.cumsum(weights) - weights
    numbers = np.arange(len(sources)) - np.repeat(starts, weights)
    return sources[np.argsort((numbers + phases[sources]) / weights[sources], kind="stable")]


def _numbers(order: NDArray[np.int32], weights: Ints) -> Ints:
    """(rows,) how many rows of the same source each row has up to itself."""
    by_source = np.argsort(order, kind="stable")
    starts = np.cumsum(weights) - weights
    numbers = np.empty(len(order), np.int64)
    numbers[by_source] = np.arange(len(order)) - np.repeat(starts, weights) + 1
    return numbers


def _holds_shares(order: NDArray[np.int32], weights: Ints) -> bool:
    """Whether every source is always less than one row away from its share."""
    total, numbers, own = len(order), _numbers(order, weights), weights[order]
    places = np.arange(total)
    too_early = numbers * total - own * (places + 1) >= total
    too_late = own * places - (numbers - 1) * total >= total
    return not (too_early.any() or too_late.any())


def _earliest_deadline_first(weights: Ints) -> NDArray[np.int32]:
    """Of the sources that may come, always the one that must come first: this holds shares for any weights.

    The j-th row of a source may come once its share exceeds j - 1, and must have come when it reaches j.
    """
    total = int(weights.sum())
    waiting = [(0, source, 1) for source, weight in enumerate(weights.tolist()) if weight]
    ready: list[tuple[int, int, int]] = []
    order = np.empty(total, np.int32)
    for place in range(total):
        while waiting and waiting[0][0] <= place:
            _, source, number = heapq.heappop(waiting)
            heapq.heappush(ready, (-(-number * total // int(weights[source])), source, number))
        _, source, number = heapq.heappop(ready)
        order[place] = source
        if number < weights[source]:
            heapq.heappush(waiting, (number * total // int(weights[source]), source, number + 1))
    return order


def _begin_at(order: NDArray[np.int32], weights: Ints, starts: NDArray[np.uint64]) -> NDArray[np.int32]:
    """Begin a period at the first of some rows from which on it holds the shares as well, or else where it began."""
    total, numbers, own = len(order), _numbers(order, weights), weights[order]
    places = np.arange(total)
    # how far each source comes to be ahead of its share and behind it, in rows times the period
    most, least = np.zeros_like(weights), np.zeros_like(weights)
    np.maximum.at(most, order, numbers * total - own * (places + 1))
    np.minimum.at(least, order, (numbers - 1) * total - own * places)
    for start in starts.tolist():
        ahead = np.bincount(order[:start], minlength=len(weights)) * total - weights * start
        if (most - ahead < total).all() and (ahead - least < total).all():
            return np.roll(order, -start)
    return order


def _exchange(order: NDArray[np.int32], weights: Ints, key: bytes) -> NDArray[np.int32]:
    """Exchange neighbours at random where both sources stay less than one row away from their shares."""
    total, words = len(order), Philox(key=np.frombuffer(key[:16], "<u8"))
    order, numbers = order.copy(), _numbers(order, weights)
    for turn in range(min(_MAX_TURNS, max(_MIN_TURNS, _EXCHANGES // total))):
        first = np.arange(turn % 2, total - 1, 2)
        second = first + 1
        ahead, behind = order[first], order[second]
        may = words.random_raw(len(first)) >> np.uint64(63) == 1
        # the one that moves back comes late by at most one row, the one that moves forward is early by at most one
        may &= weights[ahead] * second - (numbers[first] - 1) * total < total
        may &= numbers[second] * total - weights[behind] * second < total
        moved, onto = first[may], second[may]
        for values in (order, numbers):
            values[moved], values[onto] = values[onto], values[moved]
    return order

"""Which source each row of a mixture comes from: an order of sources that holds every share to within one row.

The order of sources is periodic, so that the source of any row, and the place of any row of a source, are arithmetic.
In every beginning of it, each source has less than one row more or less than its exact share. Where that leaves a
choice, a key makes it: see `windrow.shuffle.order.source_draws`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import gcd
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels import native, row_positions
from windrow.shuffle.order.source_draws import draw_sources

Ints = NDArray[np.int64]

# A period is at least this long, so that nobody meets the same order of sources twice within some batches.
_MIN_PERIOD = 2**14
# The beginning of a period is drawn first, at least 2 to the power of this many rows.
_LEAST_BITS = 8


class _Beginning(NamedTuple):
    """The first rows of a period."""

    sources: NDArray[np.int32]
    places: list[NDArray[np.int32]]  # by source, those of the rows that come from it


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
        self._begun = _Beginning(np.empty(0, np.int32), [])

    def __reduce__(self) -> tuple[Any, ...]:
        # tasks of one process share what has been computed of it
        return share_sequence, (tuple(self.weights.tolist()), self._key)

    @property
    def sources(self) -> NDArray[np.int32]:
        """(period,) the source of each row of a period."""
        return self._begin(self.period).sources

    def sources_of(self, first: int, count: int) -> NDArray[np.int32]:
        """(count,) the sources of the rows from ``first`` on."""
        within = first % self.period
        sources = self._begin(within + count).sources
        if within + count <= self.period:
            return sources[within : within + count]
        return sources[np.arange(within, within + count) % self.period]

    def _begin(self, rows: int) -> _Beginning:
        """The first rows of a period, so many or more: where shares soon change again, nobody needs the rest."""
        begun, rows = self._begun, max(1, min(rows, self.period))
        if len(begun.sources) < rows:
            drawn = min(self.period, 2 ** max(_LEAST_BITS, (rows - 1).bit_length()))
            sources = draw_sources(self.weights, drawn, self._key)
            by_source = np.argsort(sources, kind="stable").astype(np.int32)
            counts = np.bincount(sources, minlength=len(self.weights))
            begun = self._begun = _Beginning(sources, np.split(by_source, np.cumsum(counts)[:-1]))
        return begun

    def _places_of(self, source: int, last: int) -> NDArray[np.int32]:
        """Where the rows of a source come in a period, up to the number ``last`` or farther."""
        weight = int(self.weights[source])
        # the row that has this number must have come when the share reaches the next number
        return self._begin(-(-(min(last, weight - 1) + 1) * self.period // weight)).places[source]

    def places(self, source: int, numbers: Ints) -> Ints:
        """(rows,) where the rows of a source that have these numbers, from 0, come."""
        weight = int(self.weights[source])
        # NumPy divides by a number far faster than it computes both of divmod()
        periods = numbers // weight
        within = numbers - periods * weight
        places = self._places_of(source, int(within.max(initial=0)))
        periods *= self.period
        periods += places[within]
        return periods

    def scatter(self, source: int, numbers: Ints, rows: range, before: int, start: int) -> None:
        """Turn row numbers of a source into rows of a mixture, in place.

        They are counted from the first of ``rows``, of which they are some. The sequence begins at the row ``start`` of
        the mixture, before which the source has ``before`` rows.
        """
        # each pass of NumPy over so many numbers gives the GIL away, and waits for it
        weight = int(self.weights[source])
        periods = (rows.start - before) // weight
        before += periods * weight
        start += periods * self.period
        last = max(rows.stop - 1 - before, 0)
        if native.LIBRARY is not None and last <= native.MAX_ROWS:
            places = self._places_of(source, last)
            row_positions.scatter(numbers, before - rows.start, weight, self.period, places, start)
        else:
            numbers[:] = self.places(source, numbers + (rows.start - before))
            numbers += start

    def count(self, source: int, rows: int) -> int:
        """How many of the first ``rows`` rows come from a source."""
        periods, rest = divmod(rows, self.period)
        return periods * int(self.weights[source]) + int(
            np.searchsorted(self._begin(rest).places[source], rest)
        )

    def most(self, source: int, rows: int) -> int:
        """How many of the first ``rows`` rows can come from a source at the most, whatever the key."""
        return -(-rows * int(self.weights[source]) // self.period)

    def least(self, source: int, rows: int) -> int:
        """How many of the first ``rows`` rows come from a source at the least, whatever the key."""
        return rows * int(self.weights[source]) // self.period

    def counts(self, rows: int) -> Ints:
        """(sources,) how many of the first ``rows`` rows come from each source."""
        return np.array([self.count(source, rows) for source in range(len(self.weights))], np.int64)

    def table(self, rows: Ints) -> Ints:
        """(sources, rows) the same for several numbers of rows."""
        periods, rest = np.divmod(rows, self.period)
        places = self._begin(int(rest.max(initial=0))).places
        within = np.array([np.searchsorted(each, rest) for each in places], np.int64)
        found: Ints = self.weights[:, None] * periods + within
        return found


@lru_cache(maxsize=64)
def share_sequence(weights: tuple[int, ...], key: bytes) -> ShareSequence:
    """The sequence of some weights and a key, which is computed once in a process."""
    return ShareSequence(weights, key)

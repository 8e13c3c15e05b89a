"""A keyed permutation of [0, N): computes the position of any row, without storing the order.

Every process that has the key can compute the position of any row, so processes do not exchange the order.

**Up to 2^16 rows: exact.** Row x gets the rank of the x-th raw 64-bit output of Philox, so every order is
equally likely (ties, of probability below 2^-32, go to the earlier row). NumPy guarantees that the raw stream
of a bit generator never changes. It does not guarantee that for ``Generator.permutation``, so that is not used.

**Above: six rounds** (:mod:`windrow.shuffle.order.feistel_rounds`) that permute [0, 2^b), for the least b with
2^b >= N, and cycle walking: a value at or above N goes through the rounds again until it is below N. This
turns a bijection of [0, 2^b) into one of [0, N). Fewer than half of all values are outside, so a row takes
fewer than two passes on average.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from windrow.shuffle.kernels import native
from windrow.shuffle.order.feistel_rounds import Rounds
from windrow.shuffle.order.keys import KEY_BYTES

__all__ = ["EXACT_ROWS", "MAX_ROWS", "Permutation", "block_order"]

EXACT_ROWS = 1 << 16
MAX_ROWS = 1 << 62

# rows per chunk: a chunk passes through all rounds before the next one, so that it stays in the L2 cache
_CHUNK_ROWS = 1 << 15


@dataclass(frozen=True)
class Permutation:
    """The permutation of ``range(size)``, of at most 2^62 rows, that a key of 32 bytes selects.

    >>> Permutation(bytes(32), 5).positions(0, 5).tolist()
    [0, 2, 1, 4, 3]
    """

    key: bytes
    size: int

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(self.key)}")
        if not 0 <= self.size <= MAX_ROWS:
            raise ValueError(f"a permutation has 0 to 2^62 rows, not {self.size}")

    def __reduce__(self) -> tuple[Any, ...]:
        # key and size suffice, so the cached ranks are not pickled
        return type(self), (self.key, self.size)

    def positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """(stop - start,) the positions of the rows ``start <= x < stop``, in fresh memory owned by the caller."""
        if not 0 <= start <= stop <= self.size:
            raise ValueError(f"rows [{start}, {stop}) do not lie in [0, {self.size})")
        if self.size <= EXACT_ROWS:
            return self._ranks[start:stop].astype(np.int64)
        if native.LIBRARY is not None:
            rounds = self._rounds
            return native.walk(rounds.bits, rounds.keys, rounds.multipliers, self.size, start, stop)
        return self._cycle_walk(start, stop)

    def rows_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """(positions,) the rows at some positions: the inverse of `positions`.

        >>> permutation = Permutation(bytes(32), 100_000)
        >>> permutation.rows_at(permutation.positions(7, 10)).tolist()
        [7, 8, 9]
        """
        if positions.size and not 0 <= positions.min() <= positions.max() < self.size:
            raise ValueError(f"positions do not lie in [0, {self.size})")
        if self.size <= EXACT_ROWS:
            return np.argsort(self._ranks).take(positions)
        rounds = self._rounds
        rows = rounds.unmix(positions.astype(np.uint32 if rounds.bits <= 32 else np.uint64))
        outside = self._find_outside(rows)
        while outside.size:
            rows[outside] = rounds.unmix(rows[outside])
            outside = outside[self._find_outside(rows[outside])]
        return rows.astype(np.int64)

    @cached_property
    def _ranks(self) -> NDArray[np.uint16]:
        generator = Philox(key=int.from_bytes(self.key[:16], "little"))
        order = np.argsort(generator.random_raw(self.size), kind="stable")
        ranks = np.empty(self.size, np.uint16)
        ranks[order] = np.arange(self.size, dtype=np.uint16)
        return ranks

    @cached_property
    def _rounds(self) -> Rounds:
        return Rounds.from_key(self.key, (self.size - 1).bit_length())

    def _cycle_walk(self, start: int, stop: int) -> NDArray[np.int64]:
        out = np.empty(stop - start, np.int64)
        rounds = self._rounds
        outside = []
        for first, last in _chunks(out.size):
            values = rounds.mix_range(start + first, start + last)
            out[first:last] = values
            again = self._find_outside(values)
            outside.append((again + first, values.take(again)))
        rows, values = _join(outside)
        # all chunks continue together, since a pass over a few stragglers costs as much as over thousands
        while rows.size:
            outside = []
            for first, last in _chunks(rows.size):
                chunk, mixed = rows[first:last], rounds.mix(values[first:last])
                out[chunk] = mixed
                again = self._find_outside(mixed)
                outside.append((chunk.take(again), mixed.take(again)))
            rows, values = _join(outside)
        return out

    def _find_outside(self, values: NDArray[Any]) -> NDArray[np.intp]:
        # compared with the last position, since a 32-bit word may not hold the size
        return np.flatnonzero(values > values.dtype.type(self.size - 1))


def _chunks(count: int) -> Iterator[tuple[int, int]]:
    for first in range(0, count, _CHUNK_ROWS):
        yield first, min(first + _CHUNK_ROWS, count)


def _join(pairs: list[tuple[NDArray[np.intp], NDArray[Any]]]) -> tuple[NDArray[np.intp], NDArray[Any]]:
    if not pairs:
        return np.empty(0, np.intp), np.empty(0, np.uint32)
    rows, values = zip(*pairs, strict=True)
    return np.concatenate(rows), np.concatenate(values)


def block_order(key: bytes, n: int) -> NDArray[np.int64]:
    """Order ``n`` blocks: element i is the stored number of the i-th block in the order.

    >>> block_order(bytes(32), 5).tolist()
    [0, 2, 1, 4, 3]
    """
    order = np.empty(n, np.int64)
    order[Permutation(key, n).positions(0, n)] = np.arange(n, dtype=np.int64)
    return order

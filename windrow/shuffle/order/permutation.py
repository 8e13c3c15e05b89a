"""A keyed permutation of [0, N): computes the position of any row, without storing the order.

Every process that has the key can compute the position of any row, so processes do not exchange the order.

**Up to 2^16 rows: exact.** Row x gets the rank of the x-th raw 64-bit output of Philox, so every order is
equally likely (ties, of probability below 2^-32, go to the earlier row). NumPy guarantees that the raw stream
of a bit generator never changes. It does not guarantee that for ``Generator.permutation``, so that is not used.

**Above: six multiply-xorshift rounds** (`Rounds`) that permute [0, 2^b), for the least b with
2^b >= N, and cycle walking: a value at or above N goes through the rounds again until it is below N. This
turns a bijection of [0, 2^b) into one of [0, N). Fewer than half of all values are outside, so a row takes
fewer than two passes on average. One round, with a round key k and an odd multiplier c:

    x ^= k;  x = x * c mod 2^b;  x ^= x >> ((b + 1) // 2)

The multiplication carries every bit upwards, and the shift moves the upper half down, so that successive
rounds spread each bit over the whole word. Each step is invertible (an odd factor has an inverse modulo 2^b,
and the last step preserves the upper half), so a round is a bijection. No step needs memory or a branch.

Only the k depend on the key. Keyed multipliers look stronger but are weaker, since some of them hardly mix:
with five rounds and keyed multipliers, about one key in a hundred shows z > 4, up to 285, in the differences
at power-of-two lags. With the fixed multipliers below, four rounds fail at 17 bits, the narrowest word in
use, and six pass at every width; five seem to pass, and the sixth is a safety margin.
``tests/shuffle/order/test_quality.py`` repeats the tests and shows that they reject weaker constructions. A
mixed-radix Feistel network of six rounds passes as well, at more than ten times the cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.shuffle.kernels import native, row_positions
from windrow.shuffle.order.keys import KEY_BYTES

EXACT_ROWS = 1 << 16
MAX_ROWS = 1 << 62

# rows per chunk: a chunk passes through all rounds before the next one, so that it stays in the L2 cache
_CHUNK_ROWS = 1 << 15
# from MurmurHash3, xxHash32 and lowbias32
MULTIPLIERS_32 = (0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1, 0x7FEB352D, 0x846CA68B, 0x27D4EB2F)
# from MurmurHash3, xxHash64, SplitMix64 and rrmxmx
MULTIPLIERS_64 = (
    0xFF51AFD7ED558CCD,
    0xC4CEB9FE1A85EC53,
    0x9E3779B185EBCA87,
    0xBF58476D1CE4E5B9,
    0x94D049BB133111EB,
    0x9FB21C651E98DF25,
)


@dataclass(frozen=True)
class Rounds:
    """Rounds on words of 1 to 62 bits, one for each key and odd multiplier."""

    bits: int
    keys: tuple[int, ...]
    multipliers: tuple[int, ...]

    @classmethod
    def from_key(cls, key: bytes, bits: int) -> Rounds:
        """Derive the bijection of [0, 2^bits) of a key."""
        multipliers = MULTIPLIERS_32 if bits <= 32 else MULTIPLIERS_64
        stream = hashlib.shake_256(b"windrow rounds" + key).digest(8 * len(multipliers))
        words = (int.from_bytes(stream[i : i + 8], "little") for i in range(0, len(stream), 8))
        return cls(bits, tuple(word % (1 << bits) for word in words), multipliers)

    def mix_range(self, start: int, stop: int) -> NDArray[Any]:
        """Map ``range(start, stop)``: (stop - start,) uint32, or uint64 above 32 bits."""
        # arange(start, stop) would overflow with a stop of 2^32
        x: NDArray[Any] = np.arange(stop - start, dtype=self._word)
        x += self._word(start)
        return self.mix(x)

    def mix(self, x: NDArray[Any]) -> NDArray[Any]:
        """Map each value of ``x`` in place, and return ``x``."""
        word, bits = self._word, self.bits
        shift, mask = word((bits + 1) // 2), word((1 << bits) - 1)
        shifted = np.empty_like(x)
        for key, multiplier in zip(self.keys, self.multipliers, strict=True):
            x ^= word(key)
            x *= word(multiplier)
            if bits != 32:
                x &= mask
            np.right_shift(x, shift, out=shifted)
            x ^= shifted
        return x

    def unmix(self, x: NDArray[Any]) -> NDArray[Any]:
        """Invert `mix` in place, and return ``x``."""
        word, bits = self._word, self.bits
        shift, mask = word((bits + 1) // 2), word((1 << bits) - 1)
        for key, multiplier in zip(reversed(self.keys), reversed(self.multipliers), strict=True):
            # the shift drops at least half of the bits, so applying it once inverts it
            x ^= x >> shift
            x *= word(pow(multiplier, -1, 1 << bits))
            if bits != 32:
                x &= mask
            x ^= word(key)
        return x

    @property
    def _word(self) -> type[np.uint32 | np.uint64]:
        return np.uint32 if self.bits <= 32 else np.uint64


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
            return row_positions.walk(rounds.bits, rounds.keys, rounds.multipliers, self.size, start, stop)
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
        if native.LIBRARY is not None:
            return row_positions.rank(self.key[:16], self.size)
        generator = Philox(key=int.from_bytes(self.key[:16], "little"))
        order = _stable_order(generator.random_raw(self.size))
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


def _stable_order(words: NDArray[np.uint64]) -> NDArray[np.integer[Any]]:
    """The stable order of up to `EXACT_ROWS` random words: as `np.argsort`, in a quarter of the time."""
    low = np.uint64(EXACT_ROWS - 1)
    numbered = words & ~low
    numbered |= np.arange(len(words), dtype=np.uint64)
    numbered.sort()
    order = (numbered & low).astype(np.uint16)
    numbered >>= np.uint64(16)
    if (numbered[1:] == numbered[:-1]).any():
        # the bits that made room for row numbers decide: among 65,536 words, once in 100,000 times
        return np.argsort(words, kind="stable")
    return order


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

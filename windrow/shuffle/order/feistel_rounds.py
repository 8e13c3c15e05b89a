"""Six multiply-xorshift rounds: a keyed bijection of [0, 2^b) at NumPy's vector speed.

One round, with a round key k and an odd multiplier c:

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
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["MULTIPLIERS_32", "MULTIPLIERS_64", "Rounds"]

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

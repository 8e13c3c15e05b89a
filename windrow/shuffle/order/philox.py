"""Philox4x32-10, a counter-based generator: random words as a function of a key and a counter, for arrays of counters.

From Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11). ``numpy.random.Philox`` is another
member of the family (4x64), and makes the words of consecutive counters only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WORDS = 4
"""Words of 32 bits that one counter gives."""

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_KEY_STEPS = 0x9E3779B9, 0xBB67AE85
_LOW, _HALF, _BITS = np.uint64(0xFFFFFFFF), np.uint64(32), 0xFFFFFFFF


def philox(key: int, high: NDArray[np.uint64], low: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """(counters, 4) the words of counters, which are given by their two halves of 64 bits.

    ``key`` has 64 bits.

    >>> none = np.zeros(1, np.uint64)
    >>> [format(word, "x") for word in philox(0, none, none)[0]]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    first, second = low & _LOW, low >> _HALF
    third, fourth = high & _LOW, high >> _HALF
    keys = key & _BITS, (key >> 32) & _BITS
    for _ in range(_ROUNDS):
        left, right = first * _MULTIPLIERS[0], third * _MULTIPLIERS[1]
        first = (right >> _HALF) ^ second ^ np.uint64(keys[0])
        third = (left >> _HALF) ^ fourth ^ np.uint64(keys[1])
        second, fourth = right & _LOW, left & _LOW
        keys = (keys[0] + _KEY_STEPS[0]) & _BITS, (keys[1] + _KEY_STEPS[1]) & _BITS
    return np.stack([first, second, third, fourth], axis=1).astype(np.uint32)

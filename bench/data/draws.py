"""Random numbers that do not change with library versions.

NumPy guarantees stable bit generators but not stable ``Generator`` methods, so only
raw Philox output is used and converted here.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["draw_integers", "draw_raw", "draw_unit"]


def draw_raw(seed: int, group: int, column: int, count: int) -> NDArray[np.uint64]:
    """Draw 64-bit words; each (seed, row group, column) has a separate stream."""
    key = (seed & 0xFFFFFFFF) << 96 | group << 32 | column
    return np.asarray(np.random.Philox(key=key).random_raw(count), dtype=np.uint64)


def draw_integers(raw: NDArray[np.uint64], high: int) -> NDArray[np.int64]:
    """Map words to integers in ``[0, high)``, high below 2**32."""
    return ((raw >> np.uint64(32)) * np.uint64(high) >> np.uint64(32)).astype(np.int64)


def draw_unit(raw: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Map words to doubles in ``[0, 1)``."""
    return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53

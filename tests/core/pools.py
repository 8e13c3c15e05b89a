"""Pools of memory that show what is written to it, and what is read from it before."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windrow.core.buffer_pool import ALIGNMENT_BYTES, BufferPool

__all__ = ["FilledPool", "GuardedPool"]


class GuardedPool(BufferPool):
    """Lends memory between guard bytes that must not be written to."""

    def __init__(self) -> None:
        super().__init__(0)
        self._lent: list[NDArray[np.uint8]] = []

    def take_many(self, nbytes: int, count: int) -> list[NDArray[np.uint8]]:
        lent = super().take_many(nbytes + 2 * ALIGNMENT_BYTES, count)
        for whole in lent:
            whole[:] = 0xAB
        self._lent += lent
        return [whole[ALIGNMENT_BYTES:-ALIGNMENT_BYTES] for whole in lent]

    def assert_guarded(self) -> None:
        for whole in self._lent:
            assert (whole[:ALIGNMENT_BYTES] == 0xAB).all()
            assert (whole[-ALIGNMENT_BYTES:] == 0xAB).all()


class FilledPool(BufferPool):
    """A pool whose memory holds one byte everywhere."""

    def __init__(self, byte: int) -> None:
        super().__init__(0)
        self._byte = byte

    def take_many(self, nbytes: int, count: int) -> list[NDArray[np.uint8]]:
        return [np.full(nbytes, self._byte, np.uint8) for _ in range(count)]

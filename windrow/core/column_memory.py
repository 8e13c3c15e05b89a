"""Memory in which several columns lie, so that one call can move all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.core.buffer_pool import ALIGNMENT_BYTES, BufferPool
from windrow.core.native_libraries import address_of


class ColumnMemory(NamedTuple):
    """Memory of several columns."""

    memory: NDArray[np.uint8]
    starts: NDArray[np.int64]  # (columns,) the byte at which each begins

    @classmethod
    def take(cls, pool: BufferPool, sizes: NDArray[np.int64]) -> ColumnMemory:
        """Memory of a pool for columns of these bytes, each of which begins where the decoder needs it."""
        ends = np.cumsum(-(-sizes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES)
        starts = np.append(0, ends)
        return cls(pool.take(int(starts[-1])), starts[:-1])

    @property
    def addresses(self) -> NDArray[np.int64]:
        """(columns,) where each begins."""
        return self.starts + address_of(self.memory)

    def column(self, number: int, size_bytes: int) -> NDArray[np.uint8]:
        """The first bytes of a column."""
        start = int(self.starts[number])
        return self.memory[start : start + size_bytes]

    def select(self, columns: Sequence[int] | NDArray[np.integer[Any]]) -> ColumnMemory:
        """That of some columns, by number."""
        return ColumnMemory(self.memory, self.starts[columns])

    def check(self, sizes: NDArray[np.int64]) -> None:
        """Raise ValueError unless so many bytes of each column lie in the memory: kernels trust addresses."""
        fits = self.starts.shape == sizes.shape and min(self.starts.min(initial=0), sizes.min(initial=0)) >= 0
        if not fits or (self.starts + sizes).max(initial=0) > len(self.memory):
            raise ValueError("arguments of a kernel do not fit together: columns and their memory")

"""The memory cache: handles of decoded blocks, and reservations for blocks being read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockCache"]


class BlockCache:
    """Handles of decoded blocks, by block number, up to a limit.

    Once the cache is full it takes no more blocks, and evicts none. An epoch reads every block
    once, so LRU would evict each block just before it is read again.

    Parameters
    ----------
    limit_bytes
        The limit of the cache.
    sizes
        (blocks,) expected bytes of each block.

    Examples
    --------
    >>> cache = BlockCache(20, np.array([10, 10, 10]))
    >>> cache.reserve([2, 0, 1])
    (0, 1)
    >>> cache.put(2, 9, "the tables of block 2")
    >>> cache.reserve([1])
    ()
    >>> cache.find([0, 1, 2])
    {2: 'the tables of block 2'}
    """

    def __init__(self, limit_bytes: int, sizes: NDArray[np.int64]) -> None:
        self._limit_bytes = limit_bytes
        self._sizes = sizes
        self._handles: dict[int, Any] = {}
        self._bytes: dict[int, int] = {}
        # cached and reserved
        self._used_bytes = 0
        self._reserved: dict[int, int] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of the cached blocks."""
        return self._used_bytes - sum(self._reserved.values())

    def find(self, blocks: Sequence[int]) -> dict[int, Any]:
        """The handles of the cached ones among some blocks, by their index in ``blocks``."""
        return {at: self._handles[block] for at, block in enumerate(blocks) if block in self._handles}

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """Reserve memory for blocks about to be read; returns the indices in ``blocks`` of those that fit."""
        return tuple(at for at, block in enumerate(blocks) if self._reserve(block))

    def _reserve(self, block: int) -> bool:
        size = int(self._sizes[block])
        known = block in self._handles or block in self._reserved
        # with a limit of 0 not even empty blocks are cached
        if known or not self._limit_bytes or self._used_bytes + size > self._limit_bytes:
            return False
        self._reserved[block] = size
        self._used_bytes += size
        return True

    def put(self, block: int, size_bytes: int, handle: Any) -> None:
        """Cache a reserved block, if its actual size fits."""
        if block not in self._reserved:
            return
        self._used_bytes -= self._reserved.pop(block)
        if self._used_bytes + size_bytes <= self._limit_bytes:
            self._used_bytes += size_bytes
            self._handles[block], self._bytes[block] = handle, size_bytes

    def release(self, blocks: Iterable[int]) -> None:
        """Release the reservations of blocks that will not be put."""
        for block in blocks:
            self._used_bytes -= self._reserved.pop(block, 0)

    def evict(self, blocks: Iterable[int]) -> None:
        """Remove blocks from the cache."""
        for block in blocks:
            if self._handles.pop(block, None) is not None:
                self._used_bytes -= self._bytes.pop(block)

    def clear(self) -> None:
        """Evict all blocks, drop all reservations, and cache no more."""
        self.evict(list(self._handles))
        self._reserved.clear()
        self._used_bytes = self._limit_bytes = 0

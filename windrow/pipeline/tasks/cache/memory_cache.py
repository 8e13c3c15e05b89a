"""The decoded blocks that a run keeps in memory, and which are yet to come."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["BlockCache"]


class BlockCache:
    """Handles of decoded blocks, by block number, up to a limit.

    Blocks are taken in until no more fit, and then stay. An epoch reads every block once,
    so a cache that made room by letting go of the longest unused would let go of each just
    before it is read again.

    Parameters
    ----------
    limit_bytes
        What may be kept.
    sizes
        (blocks,) what each block is expected to take.

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
        # what is kept, and what is being read to be kept
        self._used_bytes = 0
        self._reserved: dict[int, int] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of the blocks that are kept."""
        return self._used_bytes - sum(self._reserved.values())

    def find(self, blocks: Sequence[int]) -> dict[int, Any]:
        """The handles of those blocks that are kept, by their place in ``blocks``."""
        return {at: self._handles[block] for at, block in enumerate(blocks) if block in self._handles}

    def reserve(self, blocks: Sequence[int]) -> tuple[int, ...]:
        """The places in ``blocks`` of those to be kept once they are read; room is held for them."""
        return tuple(at for at, block in enumerate(blocks) if self._reserve(block))

    def _reserve(self, block: int) -> bool:
        size = int(self._sizes[block])
        known = block in self._handles or block in self._reserved
        # an empty block takes nothing, yet is not kept where nothing is to be kept
        if known or not self._limit_bytes or self._used_bytes + size > self._limit_bytes:
            return False
        self._reserved[block] = size
        self._used_bytes += size
        return True

    def put(self, block: int, size_bytes: int, handle: Any) -> None:
        """Keep a block that was reserved, if it turned out to fit."""
        if block not in self._reserved:
            return
        self._used_bytes -= self._reserved.pop(block)
        if self._used_bytes + size_bytes <= self._limit_bytes:
            self._used_bytes += size_bytes
            self._handles[block], self._bytes[block] = handle, size_bytes

    def release(self, blocks: Iterable[int]) -> None:
        """These blocks are not coming: hold no room for them."""
        for block in blocks:
            self._used_bytes -= self._reserved.pop(block, 0)

    def evict(self, blocks: Iterable[int]) -> None:
        """Keep these blocks no longer: what their handles stood for is lost."""
        for block in blocks:
            if self._handles.pop(block, None) is not None:
                self._used_bytes -= self._bytes.pop(block)

    def clear(self) -> None:
        """Keep nothing any more, nor what is being read."""
        self.evict(list(self._handles))
        self._reserved.clear()
        self._used_bytes = self._limit_bytes = 0

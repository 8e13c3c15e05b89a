"""The memory cache of a job, in its driver: handles of decoded blocks, reservations, cache totals and warnings."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.cache.disk_cache import CacheReport
from windrow.pipeline.tasks.task import Task

logger = logging.getLogger(__name__)


class BlockCache:
    """Handles of decoded blocks, by block number, up to a limit; ``sizes`` are the blocks' expected bytes.

    Once the cache is full it takes no more blocks, and evicts none. An epoch reads every block
    once, so LRU would evict each block just before it is read again.

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


class JobCache:
    """Passes cached blocks to tasks, takes the blocks that they return, and sums their cache reports in ``totals``."""

    def __init__(self, limit_bytes: int, sizes: NDArray[np.int64]) -> None:
        self._limit_bytes = limit_bytes
        self._blocks = BlockCache(limit_bytes, sizes)
        self.totals = CacheReport()
        self._warned: set[str] = set()

    @property
    def held_bytes(self) -> int:
        """Bytes cached in memory now, plus all bytes written to disk."""
        return self._blocks.held_bytes + self.totals.disk_bytes

    def add_stats(self, stats: RunStats) -> RunStats:
        """Add the cache's part to the statistics of the run."""
        return replace(
            stats,
            cache_hits=self.totals.hits,
            cache_misses=self.totals.misses,
            cache_bytes=self.held_bytes,
            cache_errors=self.totals.errors,
            cache_corrupt_blocks=self.totals.corrupt_blocks,
        )

    def prepare(self, task: Task) -> tuple[Task, Collection[Any]]:
        """Set which blocks of a task are cached, and which it returns; also returns the former's handles."""
        if not task.reads:
            return task, ()
        found, keeps = self._blocks.find(task.blocks), self._blocks.reserve(task.blocks)
        return (replace(task, found=tuple(found), keeps=keeps) if found or keeps else task), found.values()

    def add_report(self, task: Task, report: CacheReport, handles: Sequence[Any]) -> None:
        """Add the report of a task, and cache the blocks whose handles it returned."""
        self.totals = self.totals.add(report)
        for at, size_bytes, handle in zip(task.keeps, report.cached_bytes, handles, strict=True):
            self._blocks.put(task.blocks[at], size_bytes, handle)

    def release_reservations(self, task: Task) -> None:
        """Release the memory reserved for the blocks of a task that did not return them."""
        self._blocks.release(task.blocks[at] for at in task.keeps)

    def evict_lost_blocks(self, task: Task) -> Task:
        """Evict the cached blocks of a task, which were lost; returns the task that reads them again."""
        logger.warning("%d cached blocks are lost, and read again", len(task.found))
        self._blocks.evict(task.blocks[at] for at in task.found)
        return replace(task, found=())

    def take_warnings(self) -> tuple[str, ...]:
        """Messages about the disk cache that were not returned yet: at most one on errors, one on corrupt blocks."""
        lines = {"errors": self.totals.first_error, "corruption": self.totals.first_corruption}
        unreported = {kind: line for kind, line in lines.items() if line and kind not in self._warned}
        self._warned.update(unreported)
        return tuple(unreported.values())

    def abandon(self) -> int:
        """Evict all blocks and cache no more; returns the bytes of the freed budget."""
        self._blocks.clear()
        freed, self._limit_bytes = self._limit_bytes, 0
        return freed

    def clear(self) -> None:
        """Evict all blocks and cache no more."""
        self._blocks.clear()

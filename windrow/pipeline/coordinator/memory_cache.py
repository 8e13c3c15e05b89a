"""The memory cache of a job, in its driver: handles of decoded blocks, reservations, cache totals and warnings."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.cache.disk_cache import CacheReport
from windrow.pipeline.tasks.task import Task

logger = logging.getLogger(__name__)


class JobCache:
    """Passes cached blocks to tasks, takes the blocks that they return, and sums their cache reports in ``totals``.

    It holds handles of decoded blocks up to a limit; ``sizes`` are the blocks' expected bytes. Once it is full it takes
    no more blocks, and evicts none. An epoch reads every block once, so LRU would evict each block just before it is
    read again.
    """

    def __init__(self, limit_bytes: int, sizes: NDArray[np.int64]) -> None:
        self._limit_bytes = limit_bytes
        self._sizes = sizes
        # by block: its handle, and its size in bytes
        self._cached: dict[int, tuple[Any, int]] = {}
        self._reserved: dict[int, int] = {}
        # cached and reserved
        self._used_bytes = 0
        self.totals = CacheReport()
        self._warned: set[str] = set()

    @property
    def held_bytes(self) -> int:
        """Bytes cached in memory now, plus all bytes written to disk."""
        return self._used_bytes - sum(self._reserved.values()) + self.totals.disk_bytes

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
        """Set which blocks of a task are cached, and which it returns; also returns the former's handles.

        Memory is reserved for those that it returns.
        """
        if not task.reads:
            return task, ()
        found = {at: self._cached[block][0] for at, block in enumerate(task.blocks) if block in self._cached}
        keeps = tuple(at for at, block in enumerate(task.blocks) if self._reserve(block))
        return (replace(task, found=tuple(found), keeps=keeps) if found or keeps else task), found.values()

    def _reserve(self, block: int) -> bool:
        size_bytes = int(self._sizes[block])
        known = block in self._cached or block in self._reserved
        # with a limit of 0 not even empty blocks are cached
        if known or not self._limit_bytes or self._used_bytes + size_bytes > self._limit_bytes:
            return False
        self._reserved[block] = size_bytes
        self._used_bytes += size_bytes
        return True

    def add_report(self, task: Task, report: CacheReport, handles: Sequence[Any]) -> None:
        """Add the report of a task, and cache the blocks whose handles it returned, if their actual sizes fit."""
        self.totals = self.totals.add(report)
        for at, size_bytes, handle in zip(task.keeps, report.cached_bytes, handles, strict=True):
            block = task.blocks[at]
            # the cache may have been cleared meanwhile
            if block in self._reserved:
                self._used_bytes -= self._reserved.pop(block)
                if self._used_bytes + size_bytes <= self._limit_bytes:
                    self._used_bytes += size_bytes
                    self._cached[block] = handle, size_bytes

    def release_reservations(self, task: Task) -> None:
        """Release the memory reserved for the blocks of a task that did not return them."""
        for at in task.keeps:
            self._used_bytes -= self._reserved.pop(task.blocks[at], 0)

    def evict_lost_blocks(self, task: Task) -> Task:
        """Evict the cached blocks of a task, which were lost; returns the task that reads them again."""
        logger.warning("%d cached blocks are lost, and read again", len(task.found))
        for at in task.found:
            _, size_bytes = self._cached.pop(task.blocks[at], (None, 0))
            self._used_bytes -= size_bytes
        return replace(task, found=())

    def take_warnings(self) -> tuple[str, ...]:
        """Messages about the disk cache that were not returned yet: at most one on errors, one on corrupt blocks."""
        lines = {"errors": self.totals.first_error, "corruption": self.totals.first_corruption}
        unreported = {kind: line for kind, line in lines.items() if line and kind not in self._warned}
        self._warned.update(unreported)
        return tuple(unreported.values())

    def clear(self) -> None:
        """Evict all blocks, and drop all reservations."""
        self._cached.clear()
        self._reserved.clear()
        self._used_bytes = 0

    def give_up(self) -> int:
        """Evict all blocks, and cache no more; returns the bytes of the freed budget."""
        self.clear()
        freed_bytes, self._limit_bytes = self._limit_bytes, 0
        return freed_bytes

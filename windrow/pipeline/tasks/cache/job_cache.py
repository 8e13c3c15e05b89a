"""The driver's view of a job's cache: which blocks are in memory, cache totals, and warnings."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.tasks.cache.cache_report import CacheReport
from windrow.pipeline.tasks.cache.memory_cache import BlockCache
from windrow.pipeline.tasks.map_task import Task

__all__ = ["JobCache"]


class JobCache:
    """Passes cached blocks to tasks, takes the blocks that they return, and sums their cache reports.

    Parameters
    ----------
    limit_bytes
        The limit of the memory cache.
    sizes
        (blocks,) expected bytes of each block.

    Attributes
    ----------
    totals
        The sum of the reports of all tasks so far.
    """

    def __init__(self, limit_bytes: int, sizes: NDArray[np.int64]) -> None:
        self._limit_bytes = limit_bytes
        self._blocks = BlockCache(limit_bytes, sizes)
        self.totals = CacheReport()
        self._warned: set[str] = set()

    @property
    def held_bytes(self) -> int:
        """Bytes cached in memory now, plus all bytes written to disk."""
        return self._blocks.held_bytes + self.totals.disk_bytes

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

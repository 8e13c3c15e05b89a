"""What a driver knows of the decoded blocks that its run keeps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.tasks.cache.cache_report import CacheReport
from windrow.pipeline.tasks.cache.memory_cache import BlockCache
from windrow.pipeline.tasks.map_task import Task

__all__ = ["RunCache"]


class RunCache:
    """Gives tasks the blocks that are kept in memory, takes those to keep, and counts.

    Parameters
    ----------
    limit_bytes
        What may be kept in memory.
    sizes
        (blocks,) what each block is expected to take.

    Attributes
    ----------
    told
        What tasks have told so far, together.
    """

    def __init__(self, limit_bytes: int, sizes: NDArray[np.int64]) -> None:
        self._limit_bytes = limit_bytes
        self._blocks = BlockCache(limit_bytes, sizes)
        self.told = CacheReport()
        self._warned: set[str] = set()

    @property
    def held_bytes(self) -> int:
        """What is kept in memory now, and what has been written to disk."""
        return self._blocks.held_bytes + self.told.disk_bytes

    def prepare(self, task: Task) -> tuple[Task, Collection[Any]]:
        """The task with the blocks that are kept and those to be kept, and the handles of the former."""
        if not task.reads:
            return task, ()
        found, keeps = self._blocks.find(task.blocks), self._blocks.reserve(task.blocks)
        return (replace(task, found=tuple(found), keeps=keeps) if found or keeps else task), found.values()

    def take(self, task: Task, report: CacheReport, kept: Sequence[Any]) -> None:
        """Take what a task tells, and the handles of the blocks that it was to keep."""
        self.told = self.told.add(report)
        for at, size_bytes, handle in zip(task.keeps, report.cached_bytes, kept, strict=True):
            self._blocks.put(task.blocks[at], size_bytes, handle)

    def forgo(self, task: Task) -> None:
        """A task has kept nothing of the blocks that it was to keep."""
        self._blocks.release(task.blocks[at] for at in task.keeps)

    def lose(self, task: Task) -> Task:
        """Kept blocks that came with a task are lost: returns the task that reads them again."""
        self._blocks.evict(task.blocks[at] for at in task.found)
        return replace(task, found=())

    def take_trouble(self) -> tuple[str, ...]:
        """What is wrong with cached files: one line about errors and one about corrupt blocks, each once."""
        lines = {"errors": self.told.first_error, "corruption": self.told.first_corruption}
        news = {kind: line for kind, line in lines.items() if line and kind not in self._warned}
        self._warned.update(news)
        return tuple(news.values())

    def abandon(self) -> int:
        """Keep nothing in memory from now on; returns how many bytes may be used otherwise."""
        self._blocks.clear()
        freed, self._limit_bytes = self._limit_bytes, 0
        return freed

    def clear(self) -> None:
        """Keep nothing in memory any more."""
        self._blocks.clear()

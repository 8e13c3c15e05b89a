"""How many rows each block of a run puts out: as footers tell, or counted as tasks read them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.skipped_blocks import SkippedBlocks
from windrow.pipeline.plan.program import UNKNOWN_ROWS, Program
from windrow.pipeline.tasks.corrupt_blocks import refuse_late
from windrow.pipeline.tasks.map_task import Task, TaskReport

__all__ = ["BlockRowCounts"]


class BlockRowCounts:
    """The rows of a run's blocks. A corrupt one that is left out has none.

    Parameters
    ----------
    program
        Whose blocks.

    Attributes
    ----------
    array
        By block, `UNKNOWN_ROWS` for what nobody has counted.
    known
        Whether all are.
    corrupt
        Which are left out.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.array = program.stored_rows.copy()
        self.known = program.job.rows_known
        self.corrupt = SkippedBlocks(program)

    @property
    def total(self) -> int | None:
        """Rows of an epoch, or None while some are unknown."""
        return int(self.array.sum()) if self.known else None

    def count(self, blocks: Sequence[int]) -> int:
        """Rows of some blocks, all of which are known."""
        return int(self.array[list(blocks)].sum())

    def admit(self, cursor: Cursor, window: int) -> None:
        """A shard that opened an epoch at a cursor may have rows of a window, and of those before.

        Raises
        ------
        SourceError
            If the blocks that were left out for it contradict what has been read since.
        """
        known = cursor.corrupt
        counted = [block for block in known if self.array[block] > 0]
        self.corrupt.admit(cursor.epoch, window, known, counted=counted)
        self.array[list(known)] = 0

    def record(self, task: Task, report: TaskReport) -> list[str]:
        """Take what a task has counted; returns what users should know of blocks that it leaves out.

        Raises
        ------
        SourceError
            If a block is corrupt of which rows have been given places.
        """
        if self.known:
            return []
        warnings = self._skip_corrupt(task, report)
        part = self._program.parts(task.work.epoch, task.work.window)[task.work.part]
        self.array[part] = report.rows
        # a task that began before another one found corruption may have read it whole
        self.array[list(self.corrupt.blocks)] = 0
        self.known = bool(np.all(self.array != UNKNOWN_ROWS))
        return warnings

    def _skip_corrupt(self, task: Task, report: TaskReport) -> list[str]:
        warnings = []
        for corruption in report.corrupt:
            if self.array[corruption.block] > 0:
                # counted by another try at its window, meanwhile
                raise refuse_late(corruption.error)
            if self.array[corruption.block] == UNKNOWN_ROWS:
                warnings.append(self.corrupt.add(task.work.epoch, task.work.window, corruption))
        return warnings

"""Row counts of the blocks of a run: from file footers, or counted as tasks read the blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.coordinator.skipped_blocks import SkippedBlocks
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import UNKNOWN_ROWS, Program
from windrow.pipeline.tasks.corrupt_blocks import make_late_corruption_error
from windrow.pipeline.tasks.map_task import Task, TaskReport
from windrow.pipeline.tasks.sequence_packing import check_documents

__all__ = ["BlockRowCounts"]


class BlockRowCounts:
    """The row counts of a run's blocks; a skipped corrupt block has 0.

    ``array`` holds them by block, `UNKNOWN_ROWS` until counted. ``documents`` holds, with packing, the tokens
    of each document by block, None until counted.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self.array = program.stored_rows.copy()
        self.documents: list[NDArray[np.int32] | None] = []
        if program.job.packing is not None:
            self.documents = [None] * len(self.array)
        self.known = program.job.rows_known
        self.corrupt = SkippedBlocks(program)

    @property
    def total(self) -> int | None:
        """Rows per epoch, or None while some are unknown."""
        return int(self.array.sum()) if self.known else None

    @property
    def delivered(self) -> int | None:
        """Rows per epoch as they are delivered, with packing sequences; None while some are unknown."""
        return None if self.total is None else self.total // self._program.job.sequence_rows

    def count(self, blocks: Sequence[int]) -> int:
        """Rows of some blocks, all of which must be known."""
        return int(self.array[list(blocks)].sum())

    def admit(self, cursor: Cursor, window: int) -> None:
        """Admit a shard that opened an epoch at a cursor and may have rows up to a window."""
        known = cursor.corrupt
        counted = [block for block in known if self.array[block] > 0]
        self.corrupt.admit(cursor.epoch, window, known, counted=counted)
        self._set_empty(known)

    def record(self, task: Task, report: TaskReport) -> list[str]:
        """Record what a task counted; returns warnings about the blocks that it skips."""
        if self.known:
            return []
        warnings = self._skip_corrupt(task, report)
        part = self._program.parts(task.work.epoch, task.work.window)[task.work.part]
        self.array[part] = report.rows
        if report.documents is not None:
            for at, lengths in enumerate(report.documents):
                counted = self.documents[task.blocks[at]]
                if counted is not None and task.blocks[at] not in self.corrupt.blocks:
                    check_documents(counted, lengths, task.addresses[at].origin)
                # a copy, since the report can be a view of an object that it would keep in Ray's object store
                self.documents[task.blocks[at]] = lengths.copy()
        # a task that started before another found the corruption may have read the block intact
        self._set_empty(self.corrupt.blocks)
        self.known = bool(np.all(self.array != UNKNOWN_ROWS))
        return warnings

    def _set_empty(self, blocks: Sequence[int]) -> None:
        self.array[list(blocks)] = 0
        if self.documents:
            for block in blocks:
                self.documents[block] = np.zeros(0, np.int32)

    def _skip_corrupt(self, task: Task, report: TaskReport) -> list[str]:
        warnings = []
        for corruption in report.corrupt:
            if self.array[corruption.block] > 0:
                # counted meanwhile by another attempt at its window
                raise make_late_corruption_error(corruption.error)
            if self.array[corruption.block] == UNKNOWN_ROWS:
                warnings.append(self.corrupt.add(task.work.epoch, task.work.window, corruption))
        return warnings

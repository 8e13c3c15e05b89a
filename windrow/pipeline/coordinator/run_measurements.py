"""What a run measures as it reads: row counts of blocks, and sizes of rows, which correct its peak memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError
from windrow.pipeline.coordinator.scheduling.events import Abort
from windrow.pipeline.coordinator.skipped_blocks import SkippedBlocks
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.epoch_shape import EpochCounts, EpochShape
from windrow.pipeline.plan.measured_leg import lengths_of_blocks
from windrow.pipeline.plan.program import UNKNOWN_ROWS, Program
from windrow.pipeline.plan.window_budget import SUGGESTED_SLACK, Budget, RowSizes
from windrow.pipeline.tasks.sequence_packing import check_documents
from windrow.pipeline.tasks.task import Task, TaskReport, make_late_corruption_error
from windrow.pipeline.tasks.transforms import check_schema
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.token_budget import TokenBudget

# Smaller deviations are within the accuracy of an estimate, and not reported.
_REPORT_RATIO, _REPORT_BYTES = 1.2, 64 * 2**20
# of the memory limit: below this, a user has nothing to do
_REPORT_SHARE = 0.25


class LeftOutRows:
    """Counts the rows that ``equal=True`` drops, over all opened epochs, once the rows of each are known."""

    def __init__(self) -> None:
        self.rows = 0
        self._uncounted: dict[int, ShardAssignment] = {}

    def open(self, epoch: int, assignment: ShardAssignment) -> None:
        """An epoch was opened; where steps end by their tokens, their places tell what is left out."""
        if not assignment.ends_by_tokens:
            self._uncounted[epoch] = assignment

    def count(self, total_of: Callable[[int], int | None]) -> None:
        """Count those of the epochs whose rows are known; ``total_of`` tells them."""
        for epoch, assignment in list(self._uncounted.items()):
            total = total_of(epoch)
            if total is not None:
                # not the tokens at the end that fill no sequence
                self.rows += assignment.left_out_rows(total) // assignment.sequence_rows
                del self._uncounted[epoch]


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
            mixture = program.job.mixture
            if mixture is not None and mixture.joined is not None:
                self.documents = [*mixture.block_tokens]
        # of each block from which some are left out
        self._dropped: dict[int, int] = {}
        # the latest one that a shard has opened
        self.epoch = 0
        # of epochs with padding, which differ
        self._totals: dict[int, int | None] = {}
        # of an epoch that was read from a state on, which has counted the rows before
        self._resumed_total: int | None = None
        self.known = program.job.rows_known
        # by column, and by epoch where transforms draw random numbers: those of each block's rows, None until measured
        self._measures: dict[tuple[str, int], list[NDArray[np.float32] | None]] = {}
        self.corrupt = SkippedBlocks(program)
        self._schema: pa.Schema | None = None

    def total(self, epoch: int) -> int | None:
        """Rows of an epoch, or None while some are unknown."""
        if not self.known:
            return self._resumed_total
        if not self._program.job.pads_sequences:
            return int(self.array.sum())
        if epoch not in self._totals:
            # a few, since shards read neighbouring epochs
            kept = {other: total for other, total in self._totals.items() if abs(other - epoch) <= 1}
            self._totals = {**kept, epoch: EpochCounts(self.shape(epoch)).total}
        return self._totals[epoch]

    def note_total(self, total: int | None) -> None:
        """Note the rows of an epoch whose blocks are not all counted, or None: all epochs have as many.

        This does not hold where documents are packed whole, nor where a later epoch may skip a block that was counted.
        """
        job = self._program.job
        if total is not None and not (job.pads_sequences or job.skips_corrupt):
            self._resumed_total = total

    def shape(
        self,
        epoch: int,
        measures: Sequence[NDArray[np.float32] | None] | None = None,
        budget: TokenBudget | None = None,
    ) -> EpochShape:
        """An epoch as the scheduler sees it, with the row counts known so far; the rest is as in `Program.shape`."""
        return self._program.shape(epoch, self.array, self.documents, measures, budget)

    def statistics(self) -> dict[str, Any]:
        """What `RunStats` tells of them."""
        # where epochs differ, of the latest one
        total = self.total(self.epoch)
        return {
            "epoch_rows": None if total is None else total // self._program.job.sequence_rows,
            "dropped_documents": sum(self._dropped.values()),
            "corrupt_blocks": self.corrupt.names,
            "corrupt_rows": self.corrupt.rows,
        }

    def count(self, blocks: Sequence[int]) -> int:
        """Rows of some blocks, all of which must be known."""
        return int(self.array[list(blocks)].sum())

    def measures(self, column: str, epoch: int) -> list[NDArray[np.float32] | None]:
        """What the rows of each block measure by a column in an epoch, None until measured."""
        draws = any(stage.rng for stage in self._program.job.before)
        key = column, epoch if draws else 0
        for other in [other for other in self._measures if draws and other[1] < epoch - 1]:
            del self._measures[other]
        mixture = self._program.job.mixture
        if key not in self._measures and mixture is not None and column == mixture.length_column:
            self._measures[key] = [each for source in mixture.sources for each in lengths_of_blocks(source)]
        if key not in self._measures:
            none = np.zeros(0, np.float32)
            self._measures[key] = [none if rows == 0 else None for rows in self.array.tolist()]
        return self._measures[key]

    def admit(self, cursor: Cursor, window: int) -> None:
        """Admit a shard that opened an epoch at a cursor and may have rows up to a window."""
        known = cursor.corrupt
        counted = [block for block in known if self.array[block] > 0]
        self.corrupt.admit(cursor.epoch, window, known, counted=counted)
        self._set_empty(known)

    def record(self, task: Task, report: TaskReport) -> list[str]:
        """Record what a task counted, and check its schema; returns warnings about the blocks that it skips."""
        warnings = [] if self.known else self._count(task, report)
        if report.measures is not None and task.measure is not None:
            measures = self.measures(task.measure, task.work.epoch)
            for block, found in zip(task.blocks, report.measures, strict=True):
                # a copy, as of documents
                measures[block] = found.copy()
            self._set_empty(self.corrupt.blocks)
        if report.schema is not None:
            if self._schema is None:
                self._schema = report.schema
            check_schema(self._schema, report.schema, task.addresses[0].origin)
        return warnings

    def _count(self, task: Task, report: TaskReport) -> list[str]:
        warnings = self._skip_corrupt(task, report)
        # not those of the plan: a late task can be one of an earlier plan
        self.array[list(task.blocks)] = report.rows
        if report.documents is not None:
            for at, lengths in enumerate(report.documents):
                counted = self.documents[task.blocks[at]]
                if counted is not None and task.blocks[at] not in self.corrupt.blocks:
                    check_documents(counted, lengths, task.addresses[at].origin)
                # a copy, since the report can be a view of an object that it would keep in Ray's object store
                self.documents[task.blocks[at]] = lengths.copy()
            self._dropped |= {
                block: count for block, count in zip(task.blocks, report.dropped, strict=False) if count
            }
        # a task that started before another found the corruption may have read the block intact
        self._set_empty(self.corrupt.blocks)
        self.known = bool(np.all(self.array != UNKNOWN_ROWS))
        return warnings

    def _set_empty(self, blocks: Sequence[int]) -> None:
        self.array[list(blocks)] = 0
        for measures in self._measures.values():
            for block in blocks:
                measures[block] = np.zeros(0, np.float32)
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


class MemoryEstimate:
    """The peak memory of a run, ``total_bytes``: a bound where sizes are exact, else an estimate."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._estimated_bytes = budget.total_bytes
        self.total_bytes = budget.total_bytes

    def grow(self, sizes: RowSizes, *, memory_bytes: int) -> list[str]:
        """Raise the estimate to measured row sizes; returns warnings, where all windows have ``memory_bytes``."""
        if self._budget.exact:
            return []
        grown = self._budget.grown(sizes)
        self.total_bytes = max(self.total_bytes, grown.total_bytes)
        announced_bytes = self._estimated_bytes
        least_bytes = max(_REPORT_RATIO * announced_bytes, announced_bytes + _REPORT_BYTES)
        if self.total_bytes <= max(least_bytes, _REPORT_SHARE * self._budget.limit_bytes):
            return []
        self._estimated_bytes = self.total_bytes
        reason = (
            f"blocks take {sizes.growth:,.1f} times the memory that was estimated"
            if sizes.growth > 1
            else f"batches take {format_bytes(sizes.row_bytes)} per row, more than estimated"
        )
        return [
            f"{reason}: the run needs about "
            f"{format_bytes(self.total_bytes)} in total instead of {format_bytes(announced_bytes)}; "
            f"a window takes about {format_bytes(grown.window_bytes / grown.copies)} of the "
            f"{format_bytes(memory_bytes)} available to all windows. To use less, make windows smaller "
            "with window(bytes_per_window=...)"
        ]


def make_window_error(program: Program, budget: Budget, abort: Abort) -> PlanError:
    """The error for a window that does not fit; suggests a window size and a memory limit that would."""
    missing = abort.window_bytes - abort.limit_bytes
    suggested_bytes = ceil((budget.limit_bytes + missing * budget.copies) * SUGGESTED_SLACK)
    return PlanError(
        f"window {abort.window} of epoch {abort.epoch} takes {format_bytes(abort.window_bytes)} in memory, as "
        f"measured on its first blocks; {format_bytes(max(0, abort.limit_bytes))} are available to windows: "
        f"{_suggest_window(program, budget, abort)}, or raise options(memory_limit={suggested_bytes})"
    )


def _suggest_window(program: Program, budget: Budget, abort: Abort) -> str:
    blocks, sizes = program.job.source.blocks, abort.sizes
    filled = program.estimate.rows > 0
    if not filled.any():
        return f"use smaller windows with {program.job.cut.call}(bytes_per_window=...)"
    rows, decoded = program.estimate.rows[filled], np.maximum(1, blocks.decoded_bytes[filled])
    held = (program.estimate.held_bytes[filled] + rows * sizes.excess_bytes) * SUGGESTED_SLACK
    # windows end at block boundaries, so one can exceed its size by almost a block
    size = int(max(0, abort.limit_bytes) * (decoded / held).min()) - int(decoded.max())
    if size > 0:
        return f"use {program.job.cut.call}(bytes_per_window={size}) or less"
    return _suggest_blocks(program, budget, abort)


def _suggest_blocks(program: Program, budget: Budget, abort: Abort) -> str:
    """Suggest smaller blocks too: a window needs memory for two, and a task for one more."""
    blocks, sizes = program.job.source.blocks, abort.sizes
    stored = max(1, int(program.estimate.rows.sum()))
    row_bytes = float(blocks.decoded_bytes.sum()) / stored
    held_row_bytes = float(program.estimate.held_bytes.sum()) / stored + sizes.excess_bytes
    free = abort.limit_bytes
    overhead = budget.overhead if budget.shared else None
    block_row_bytes = 0.0
    if overhead is not None:
        block_row_bytes = sizes.stored_row_bytes
        free += overhead.blocks_bytes(sizes.stored_row_bytes, 1) - overhead.min_block_bytes
    rows = int(max(0, free) / ((2 * held_row_bytes + block_row_bytes) * SUGGESTED_SLACK))
    if rows < 1:
        return "not even a window of one row fits"
    size = max(1, int(rows * row_bytes))
    return (
        f"blocks are too large: give the read_* or from_* call target_block_bytes={size}, and use "
        f"{program.job.cut.call}(bytes_per_window={size})"
    )

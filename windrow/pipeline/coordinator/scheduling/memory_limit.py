"""The memory limit for map outputs, and size estimates corrected by measured row sizes."""

from __future__ import annotations

from math import ceil

from windrow.pipeline.coordinator.scheduling.events import Finished, Limits
from windrow.pipeline.plan.epoch_shape import Part
from windrow.pipeline.plan.held_windows import prefetch_rounds
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget, RowSizes
from windrow.pipeline.tasks.task import Shortfall

# Rows can grow this many times by columns that transforms add, and by text that was dictionary-encoded.
_UNMEASURED_GROWTH = 16


HEARTBEAT_TIMEOUT_SECONDS = 5.0


def make_limits(program: Program, budget: Budget, workers: int, shards: tuple[int, ...]) -> Limits:
    """The limits of a run with a budget that serves some shards with ``workers`` workers."""
    job = program.job
    prefetch = job.options.prefetch_windows if job.mixture is None else prefetch_rounds(program)
    return Limits(
        shards=shards,
        stop_epoch=job.epochs if job.mixture is None else None,
        slots=workers,
        memory_bytes=budget.shared_bytes,
        prefetch_windows=prefetch + budget.extra_windows,
        crosses_epochs=not job.on_demand and job.mixture is None,
        slices=budget.slices,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_SECONDS,
        overhead=budget.overhead if budget.shared else None,
        row_bytes=budget.overhead.row_bytes if budget.overhead is not None else 0,
        exact=budget.exact,
        bounds_tasks=budget.overhead is not None,
        read_ahead_bytes=budget.read_ahead_bytes if prefetch and job.mixture is None else 0,
    )


class MemoryLimit:
    """The memory limit of a run, and the sizes expected of its tasks.

    Sizes are measured in bytes per stored row. They are not scaled by the ratio of measured to
    estimated size, which means little where the estimate is small. ``sizes`` holds the row sizes
    measured so far.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._stored_rows = self._rows = 0.0
        self._expected_bytes = self._measured_bytes = 0.0
        self._expected_unpacked = self._measured_unpacked = 0.0
        self._delivered_row_bytes = 0.0
        self._memory_bytes = limits.memory_bytes
        self.sizes = RowSizes()

    @property
    def is_measured(self) -> bool:
        """Whether a task with any output has been measured."""
        return self._measured_bytes > 0

    def limit_bytes(self, tasks: int = 1) -> int:
        """The limit for outputs while ``tasks`` tasks run."""
        limits = self._limits
        if limits.overhead is None:
            return self._memory_bytes
        runs = limits.overhead.runs_bytes(self.sizes.row_bytes)
        return self._memory_bytes - runs - self.blocks_bytes(tasks)

    def blocks_bytes(self, tasks: int) -> int:
        """Bytes of the blocks in ``tasks`` tasks if they count against the limit, else 0."""
        overhead = self._limits.overhead
        return 0 if overhead is None else overhead.blocks_bytes(self.sizes.stored_row_bytes, tasks)

    def widen(self, extra_bytes: int) -> None:
        self._memory_bytes += extra_bytes

    def can_grow(self, held_bytes: int, tasks: int) -> bool:
        """Whether this many tasks and held bytes are safe to start although outputs can exceed estimates.

        Until a task with output has been measured, what has been started could turn out not to fit,
        and it cannot be taken back.
        """
        limits = self._limits
        if limits.exact or self.is_measured:
            return True
        grown = held_bytes * _UNMEASURED_GROWTH
        if limits.overhead is not None:
            grown += limits.overhead.runs_bytes(limits.overhead.row_bytes * _UNMEASURED_GROWTH)
            grown += tasks * limits.overhead.block_bytes * _UNMEASURED_GROWTH
        return grown <= self._memory_bytes

    def max_output_bytes(self, size_bytes: int, *, held_bytes: int, allowed_bytes: int, running: int) -> int:
        """The output limit of a task that is expected to output ``size_bytes``, beside ``running`` others.

        It may exceed what is expected by its share of the free memory. Before anything has been
        measured, where blocks count too: a task holds a transformed block beside its output, and that
        block can be as large as the whole output. So the memory limit then covers twice the output
        of every running task (``allowed_bytes`` in all), and tasks that can still start share the rest.
        """
        slots = self._limits.slots
        if self.is_measured or self._limits.overhead is None:
            free_bytes = max(0, self.limit_bytes(running + 1) - held_bytes - size_bytes)
            return size_bytes + free_bytes // slots
        left_bytes = max(0, self.limit_bytes(0) // 2 - allowed_bytes)
        return max(left_bytes // max(1, slots - running), min(size_bytes, left_bytes))

    def measure(self, part: Part, finished: Finished) -> None:
        """Record the expected and the measured output of a task."""
        measured = sum(finished.slice_bytes)
        unpacked = measured if finished.unpacked_bytes is None else finished.unpacked_bytes
        self._add(part, 1.0, finished.rows, measured, unpacked)

    def measure_share(self, part: Part, found: Shortfall) -> None:
        """Record the output of a task that read a share of its part."""
        self._add(part, found.share, found.rows, found.size_bytes, found.size_bytes)

    def _add(self, part: Part, share: float, rows: int, measured: int, unpacked: int) -> None:
        self._stored_rows += part.weight * share
        self._rows += rows
        self._expected_bytes += part.size_bytes * share
        self._measured_bytes += measured
        self._expected_unpacked += (part.unpacked_bytes or part.size_bytes) * share
        self._measured_unpacked += unpacked
        if self.is_measured:
            self._update_sizes()

    def _update_sizes(self) -> None:
        stored_rows, estimate = max(1.0, self._stored_rows), self._limits.row_bytes
        # Estimates include the fixed bytes of every block. So measure by how much the estimate was missed per row:
        # bytes per row would attribute the fixed bytes of small blocks to their few rows.
        expected_rows = self._expected_unpacked * max(1.0, self._rows / stored_rows)
        missed_bytes = (self._measured_unpacked - expected_rows) / max(1, self._rows)
        missed_stored_bytes = (self._measured_unpacked - self._expected_unpacked) / stored_rows
        self.sizes = RowSizes(
            row_bytes=max(self._delivered_row_bytes, estimate + missed_bytes),
            stored_row_bytes=max(0.0, estimate + missed_stored_bytes),
            excess_bytes=max(0.0, (self._measured_bytes - self._expected_bytes) / stored_rows),
            growth=max(
                1.0,
                self._measured_unpacked / max(1, self._expected_unpacked),
                self._measured_bytes / max(1, self._expected_bytes),
            ),
        )

    def note_delivered(self, row_bytes: float) -> None:
        """Record the bytes per delivered row that a shard measured."""
        self._delivered_row_bytes = max(self._delivered_row_bytes, row_bytes)
        self._update_sizes()

    def estimate_bytes(self, part: Part) -> int:
        """Expected output of a part: its estimate, corrected by the measured excess of others."""
        return part.size_bytes + ceil(part.weight * self.sizes.excess_bytes)

"""What may be held: the limit, and what rows turn out to take."""

from __future__ import annotations

from math import ceil

from windrow.pipeline.coordinator.scheduling.events import Finished, Limits, Overflowed, Part
from windrow.pipeline.plan.window_budget import RowSizes

__all__ = ["MemoryBudget"]

# Columns that transforms add, and text that a dictionary holds once, make rows some times as large.
_UNMEASURED_GROWTH = 16


class MemoryBudget:
    """The memory of a run, as far as it can be known without looking.

    Sizes are measured in bytes a row as stored. Nothing here is multiplied by how many times an
    estimate was exceeded: the smaller the estimate, the less that says.

    Parameters
    ----------
    limits
        What may be held.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._stored_rows = self._rows = 0.0
        self._expected_bytes = self._measured_bytes = 0.0
        self._expected_unpacked = self._measured_unpacked = 0.0
        self._delivered_row_bytes = 0.0
        self._memory_bytes = limits.memory_bytes
        self._sizes = RowSizes()

    @property
    def is_measured(self) -> bool:
        """Whether a task that put out anything has been measured."""
        return self._measured_bytes > 0

    @property
    def counts_blocks(self) -> bool:
        """Whether the blocks that tasks hold count against the limit too."""
        return self._limits.overhead is not None

    @property
    def sizes(self) -> RowSizes:
        """What rows have been measured to take so far."""
        return self._sizes

    def limit_bytes(self, tasks: int = 1) -> int:
        """What outputs may hold while so many tasks run."""
        limits = self._limits
        if limits.overhead is None:
            return self._memory_bytes
        runs = limits.overhead.runs_bytes(self._sizes.row_bytes)
        return self._memory_bytes - runs - self.blocks_bytes(tasks)

    def blocks_bytes(self, tasks: int) -> int:
        """What the blocks of so many tasks take, where they count against the limit; otherwise 0."""
        overhead = self._limits.overhead
        return 0 if overhead is None else overhead.blocks_bytes(self._sizes.stored_row_bytes, tasks)

    def widen(self, extra_bytes: int) -> None:
        """So much more may be held."""
        self._memory_bytes += extra_bytes

    def can_grow(self, held_bytes: int, tasks: int) -> bool:
        """Whether so many tasks may hold so much, of which more may come out than is expected.

        Until one that puts out anything has been measured, what is begun could turn out not to fit, and
        there is no taking it back.
        """
        limits = self._limits
        if limits.exact or self.is_measured:
            return True
        grown = held_bytes * _UNMEASURED_GROWTH
        if limits.overhead is not None:
            grown += limits.overhead.runs_bytes(limits.overhead.row_bytes * _UNMEASURED_GROWTH)
            grown += tasks * limits.overhead.block_bytes * _UNMEASURED_GROWTH
        return grown <= self._memory_bytes

    def unmeasured_bytes(self, size_bytes: int, allowed_bytes: int, tasks: int) -> int:
        """What a task may put out before anything has been measured, where blocks count too.

        A task holds a transformed block beside its output, and that block may be as large as all of the
        output. So the limit covers twice the output of every task that runs.

        Parameters
        ----------
        size_bytes
            The expected output.
        allowed_bytes
            What the tasks that already run may put out.
        tasks
            How many more may be started, this one included: each gets an equal share, or more where more
            is expected of this one.
        """
        left_bytes = max(0, self.limit_bytes(0) // 2 - allowed_bytes)
        return max(left_bytes // tasks, min(size_bytes, left_bytes))

    def measure(self, part: Part, finished: Finished) -> None:
        """Note what a task was expected to put out, and what it did."""
        measured = sum(finished.slice_bytes)
        unpacked = measured if finished.unpacked_bytes is None else finished.unpacked_bytes
        self._add(part, 1.0, finished.rows, measured, unpacked)

    def measure_share(self, part: Part, outgrown: Overflowed) -> None:
        """Note what a task put out of a share of its part."""
        self._add(part, outgrown.share, outgrown.rows, outgrown.size_bytes, outgrown.size_bytes)

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
        # every block takes some bytes however few its rows are, which estimates include: what is learnt is
        # how far those were missed, and not what a row takes that few others share a block with
        expected_rows = self._expected_unpacked * max(1.0, self._rows / stored_rows)
        missed_bytes = (self._measured_unpacked - expected_rows) / max(1, self._rows)
        missed_stored_bytes = (self._measured_unpacked - self._expected_unpacked) / stored_rows
        self._sizes = RowSizes(
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
        """Take it that batches hold so much for each row, as a shard has measured it."""
        self._delivered_row_bytes = max(self._delivered_row_bytes, row_bytes)
        self._update_sizes()

    def estimate_bytes(self, part: Part) -> int:
        """What a task will put out, judged by how far others have exceeded what was expected."""
        return part.size_bytes + ceil(part.weight * self._sizes.excess_bytes)

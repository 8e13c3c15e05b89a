"""The limit of a task's output: checked after each block, and on samples while the growth of rows is unknown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil

import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes
from windrow.pipeline.tasks.task import Shortfall

# Evenly spaced rows of a block. Only the larger sample can stop a task.
_SMALL_SAMPLE_ROWS, _LARGE_SAMPLE_ROWS = 16, 256
# A block has at least this many times the rows of its sample; otherwise transforming all of it costs little more.
_MIN_BLOCK_PER_SAMPLE = 4


class OutputLimitError(Exception):
    """The output of a task exceeds its limit."""

    def __init__(self, shortfall: Shortfall) -> None:
        super().__init__(shortfall)
        self.shortfall = shortfall


class OutputLimit:
    """Checks the output of one task against its limit.

    A task holds all its output until it ends. So it checks the size after each block. Until the
    growth of rows by the transforms was measured, it also transforms a sample of each block first
    (``samples``). ``rows`` are those of each block, None where unknown.
    """

    def __init__(self, max_bytes: int | None, rows: Sequence[int | None], *, samples: bool) -> None:
        self._max_bytes = max_bytes
        # if the rows of any block are unknown, all blocks have equal weight
        self._weights = [1 if None in rows else max(1, count or 0) for count in rows]
        self._total_rows = sum(count or 0 for count in rows)
        self._samples = samples and max_bytes is not None
        self._rows = self._bytes = 0

    def add(self, at: int, rows: int, total_bytes: int) -> None:
        """Count the output of a block; ``total_bytes`` is the size of the whole output so far.

        The limit holds for the last block too: several tasks that each exceed it by a block would exceed
        the memory budget for as long as their window is buffered. The retry gets the measured size
        as its limit, so a task is repeated only once.
        """
        self._rows += rows
        self._bytes = total_bytes
        if self._max_bytes is not None and total_bytes > self._max_bytes:
            share = sum(self._weights[: at + 1]) / sum(self._weights)
            raise OutputLimitError(Shortfall(share, self._rows, total_bytes, total_bytes))

    def add_part(self, rows: int, total_bytes: int) -> None:
        """Count the output of a part of several blocks, whose rows are all known; see `add`."""
        self._rows += rows
        self._bytes = total_bytes
        if self._max_bytes is not None and total_bytes > self._max_bytes:
            share = self._rows / max(1, self._total_rows)
            raise OutputLimitError(Shortfall(share, self._rows, total_bytes, total_bytes))

    def check_sample(self, at: int, table: pa.Table, transform: Callable[[pa.Table], pa.Table]) -> None:
        """Transform a sample of a block, and check the estimated output of the whole block."""
        if not self._samples:
            return
        max_rows = table.num_rows // _MIN_BLOCK_PER_SAMPLE
        if max_rows < _SMALL_SAMPLE_ROWS:
            return
        for count in (_SMALL_SAMPLE_ROWS, min(_LARGE_SAMPLE_ROWS, max_rows)):
            # evenly spaced; slices, since Arrow's `take` does not support every type
            rows = [table.slice(at * table.num_rows // count, 1) for at in range(count)]
            sample = transform(pa.concat_tables(rows))
            block_bytes = ceil(arrow_bytes(sample) * table.num_rows / count)
            if self._bytes + block_bytes <= (self._max_bytes or 0):
                return
        before, all_blocks = sum(self._weights[:at]), sum(self._weights)
        share = (before + self._weights[at] * count / table.num_rows) / all_blocks
        size_bytes = self._bytes + arrow_bytes(sample)
        rows = self._rows + sample.num_rows
        raise OutputLimitError(Shortfall(share, rows, size_bytes, self._bytes + block_bytes))

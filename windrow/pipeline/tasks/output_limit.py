"""How much a task may put out: what it has put out so far, and what a few rows of a block tell of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import pyarrow as pa

from windrow.pipeline.tasks.transforms import MapBatches, apply_maps

__all__ = ["OutputLimit", "OutputLimitError", "Shortfall"]

# Rows of a block, evenly spaced, that tell what all of them take; the second time they have to be sure.
_SMALL_SAMPLE_ROWS, _LARGE_SAMPLE_ROWS = 16, 256
# A sample must be a small part of the block, or the block might as well be read.
_MIN_BLOCK_PER_SAMPLE = 4


@dataclass(frozen=True)
class Shortfall:
    """Why a task has put out nothing: it would have been more than it may.

    Attributes
    ----------
    share
        The share of the task's rows that it had read.
    rows, size_bytes
        What it had put out for these by then.
    least_bytes
        What all of it takes at least: the blocks that were begun.
    """

    share: float
    rows: int
    size_bytes: int
    min_bytes: int


class OutputLimitError(Exception):
    """A task would put out more than it may."""

    def __init__(self, shortfall: Shortfall) -> None:
        super().__init__(shortfall)
        self.shortfall = shortfall


class OutputLimit:
    """What a task may put out.

    A task holds all its output until it ends, and nothing that it has put out can be taken back. So it
    looks at what it has after each block, and before the first one at a few rows, if nobody has
    measured what transforms make of a row.

    Parameters
    ----------
    most_bytes
        What it may put out; None: no bound.
    rows
        Rows of each block; None where that is not known.
    samples
        Whether to look at a few rows of each block.
    """

    def __init__(self, max_bytes: int | None, rows: Sequence[int | None], *, samples: bool) -> None:
        self._max_bytes = max_bytes
        # blocks of which nobody knows the rows count alike
        self._weights = [1 if None in rows else max(1, count or 0) for count in rows]
        self._samples = samples and max_bytes is not None
        self._rows = self._bytes = 0

    def add(self, at: int, rows: int, total_bytes: int) -> None:
        """A block has been put out; ``total_bytes`` is the size of all that has been so far.

        The last block is no exception: several tasks that exceed what they may put out by a block each
        would exceed the memory of the run, for as long as their window is held. What a task has measured is
        what it is given the next time, so that it is repeated once.

        Raises
        ------
        OutputLimitError
            If that is more than it may be.
        """
        self._rows += rows
        self._bytes = total_bytes
        if self._max_bytes is not None and total_bytes > self._max_bytes:
            share = sum(self._weights[: at + 1]) / sum(self._weights)
            raise OutputLimitError(Shortfall(share, self._rows, total_bytes, total_bytes))

    def check_sample(self, at: int, table: pa.Table, maps: Sequence[MapBatches], origin: str) -> None:
        """Before a block is transformed, see whether what comes of it can be put out.

        Raises
        ------
        OutputLimitError
            If it cannot.
        """
        if not self._samples or not maps:
            return
        max_rows = table.num_rows // _MIN_BLOCK_PER_SAMPLE
        if max_rows < _SMALL_SAMPLE_ROWS:
            return
        for count in (_SMALL_SAMPLE_ROWS, min(_LARGE_SAMPLE_ROWS, max_rows)):
            sample = apply_maps(_sample_rows(table, count), maps, origin)
            block_bytes = ceil(sample.nbytes * table.num_rows / count)
            if self._bytes + block_bytes <= (self._max_bytes or 0):
                return
        before, all_blocks = sum(self._weights[:at]), sum(self._weights)
        share = (before + self._weights[at] * count / table.num_rows) / all_blocks
        size_bytes = self._bytes + sample.nbytes
        rows = self._rows + sample.num_rows
        raise OutputLimitError(Shortfall(share, rows, size_bytes, self._bytes + block_bytes))


def _sample_rows(table: pa.Table, count: int) -> pa.Table:
    """Rows from all over a table."""
    # Arrow cannot take rows of every type
    return pa.concat_tables([table.slice(at * table.num_rows // count, 1) for at in range(count)])

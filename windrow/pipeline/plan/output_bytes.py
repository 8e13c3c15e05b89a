"""Estimates the bytes of rows and of map outputs before anything is read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.source import Source
from windrow.pipeline.plan.job import Job
from windrow.pipeline.tasks.key_columns import KEY_COPIES, SORTED_ROW_BYTES

# A map output also holds each row's position, its buffers are rounded up by 6 % on average,
# and every block has a few small arrays.
_PLACE_BYTES = 4
_ROUNDING = 1.07
# of a key to sort by; those of text can take more
_KEY_BYTES = 8
_BLOCK_BYTES = 2**14


def stored_row_bytes(source: Source) -> int:
    """The mean bytes of a source's stored rows in memory; at least 1."""
    rows = int(source.blocks.rows.sum())
    return max(1, -(-int(source.blocks.memory_bytes.sum()) // rows)) if rows else 1


@dataclass(frozen=True, eq=False)
class OutputEstimate:
    """What the map outputs of a job's blocks are expected to take, for shards that get a ``share`` of all rows."""

    job: Job
    share: float

    @cached_property
    def row_bytes(self) -> int:
        """Estimated bytes of a row in memory: the mean of stored rows, or with packing, a token."""
        source = self.job.source
        if self.job.packing is not None:
            return self.job.packing.token_bytes(source.schema)
        return stored_row_bytes(source)

    @cached_property
    def rows(self) -> NDArray[np.int64]:
        """(blocks,) the rows of each block before any transform changes their number; with packing, tokens."""
        blocks = self.job.source.blocks
        if self.job.mixture is not None:
            return self.job.mixture.block_rows
        return blocks.rows if self.job.packing is None else blocks.memory_bytes // self.row_bytes

    @cached_property
    def packs(self) -> bool:
        """Whether map outputs are expected to be smaller than the rows because their values are packed.

        This is frame-of-reference encoding, not `Job.packing`. False with transforms, which can change values, and
        where blocks are held whole, as read.
        """
        blocks = self.job.source.blocks
        if blocks.packed_bytes is None or self.job.holds_blocks or self.job.before:
            return False
        return bool((blocks.packed_bytes < blocks.memory_bytes).any())

    @cached_property
    def held_bytes(self) -> NDArray[np.int64]:
        """(blocks,) bytes that a window holds of each block.

        Blocks that are held until their rows can be placed are held whole.
        """
        return _allocated_bytes(self.output_bytes)

    @cached_property
    def output_bytes(self) -> NDArray[np.float64]:
        """(blocks,) the same without rounding of allocations: the bytes that cross between nodes."""
        blocks = self.job.source.blocks
        packed = blocks.packed_bytes if self.packs else None
        return self._shared_bytes(blocks.memory_bytes if packed is None else packed)

    @property
    def unpacked_bytes(self) -> NDArray[np.int64]:
        """(blocks,) bytes that a window would hold if no values were packed."""
        return _allocated_bytes(self._shared_bytes(self.job.source.blocks.memory_bytes))

    def _shared_bytes(self, values: NDArray[np.int64]) -> NDArray[np.float64]:
        """(blocks,) bytes for the shards, given the bytes of all values per block."""
        share = 1.0 if self.job.holds_blocks else self.share
        rows = values + _extra_row_bytes(self.job) * self.rows
        return (rows * share).astype(np.float64)


def _allocated_bytes(output_bytes: NDArray[np.float64]) -> NDArray[np.int64]:
    """(blocks,) bytes of map outputs as they are allocated, given those of their rows."""
    return (output_bytes * _ROUNDING).astype(np.int64) + _BLOCK_BYTES


def _extra_row_bytes(job: Job) -> int:
    """Bytes per row of a map output besides values: its position, 1 byte per column with nulls, and its keys."""
    source, sort = job.source, job.sort
    flags = sum(source.null_counts.get(name) != 0 for name in source.schema.names)
    sorting = 0 if sort is None else SORTED_ROW_BYTES + KEY_COPIES * _KEY_BYTES * len(sort.keys)
    return _PLACE_BYTES + flags + sorting

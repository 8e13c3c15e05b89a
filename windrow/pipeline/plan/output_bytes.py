"""Estimates the bytes of map outputs beside the values of their rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windrow.pipeline.plan.job import Job
from windrow.pipeline.tasks.key_columns import KEY_COPIES, SORTED_ROW_BYTES

# A map output also holds each row's position, its buffers are rounded up by 6 % on average,
# and every block has a few small arrays.
_PLACE_BYTES = 4
_ROUNDING = 1.07
# of a key to sort by; those of text can take more
_KEY_BYTES = 8
_BLOCK_BYTES = 2**14


def estimate_held_bytes(output_bytes: NDArray[np.float64]) -> NDArray[np.int64]:
    """(blocks,) bytes of map outputs as they are allocated, given those of their rows."""
    held: NDArray[np.int64] = (output_bytes * _ROUNDING).astype(np.int64) + _BLOCK_BYTES
    return held


def extra_row_bytes(job: Job) -> int:
    """Bytes per row of a map output besides values: its position, 1 byte per column with nulls, and its keys."""
    source, sort = job.source, job.sort
    flags = sum(source.null_counts.get(name) != 0 for name in source.schema.names)
    sorting = 0 if sort is None else SORTED_ROW_BYTES + KEY_COPIES * _KEY_BYTES * len(sort.keys)
    return _PLACE_BYTES + flags + sorting

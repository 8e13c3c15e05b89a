"""Decodes columns that are given by their chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.frame_of_reference import Packing
from windrow.core.source import Scattered
from windrow.io.parquet.chunk_decoder import decode
from windrow.io.parquet.chunks import Chunk, chunk_table


def decode_columns(
    file: Any,
    chunks: Sequence[Sequence[Chunk]],
    packings: Sequence[Packing],
    targets: NDArray[np.uint32],
    outs: ColumnMemory,
    pool: BufferPool,
) -> Scattered:
    """Decode columns, of which each has a chunk a row group, or none."""
    groups = max(map(len, chunks))
    tables = [chunk_table(of_column or [None] * groups) for of_column in chunks]
    return decode(file, np.array(tables), np.array(packings), targets, outs, pool)


def decode_column(
    file: Any,
    chunks: Sequence[Chunk],
    packing: Packing,
    targets: NDArray[np.uint32],
    out: NDArray[np.uint8],
    pool: BufferPool,
) -> NDArray[np.uint8] | None:
    """Decode one column; returns which rows are valid, (rows,), or None if it is declined."""
    done, valid = decode_columns(
        file, [chunks], [packing], targets, ColumnMemory(out, np.zeros(1, np.int64)), pool
    )
    return valid.get(0, np.ones(len(targets), np.uint8)) if done[0] else None

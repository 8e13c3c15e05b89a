"""A source of consecutive integers, generated when they are read."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.core.source import BlockAddress, BlockTable
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader

__all__ = ["NumbersReader", "count_up"]

_BYTES = 8


@dataclass(frozen=True)
class NumbersReader(WholeBlockReader):
    """Generates blocks of integers; a block's locator is (start, stop)."""

    column: str

    def read(self, address: BlockAddress) -> pa.Table:
        """Generate the integers of a block."""
        return pa.table({self.column: pa.array(np.arange(*address.locator, dtype=np.int64))})


def count_up(stop: int, block_rows: int, column: str = "id") -> ListedSource:
    """Create a source of the integers 0 to ``stop`` - 1, in blocks of ``block_rows``; the last can be shorter."""
    starts = np.arange(0, stop, block_rows, dtype=np.int64)
    rows = np.minimum(stop - starts, block_rows)
    return ListedSource(
        name=f"range({stop})",
        schema=pa.schema([pa.field(column, pa.int64())]),
        blocks=BlockTable(rows, rows * _BYTES, rows * _BYTES, rows_known=True, bytes_exact=True),
        block_addresses=tuple(
            BlockAddress(f"range, rows {start}-{start + count - 1}", (start, start + count))
            for start, count in zip(starts.tolist(), rows.tolist(), strict=True)
        ),
        reader=NumbersReader(column),
        fingerprint=hashlib.sha256(f"range {column} {stop}".encode()).hexdigest(),
        null_counts={column: 0},
        block_bytes=block_rows * _BYTES,
        fragments=1,
    )

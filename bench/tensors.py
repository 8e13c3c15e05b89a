"""Converts Arrow tables to tensors, for systems that deliver Arrow."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

__all__ = ["TableToTensors"]


class TableToTensors:
    """A collate function that converts the named columns to tensors, timestamps to int64.

    Fixed-width columns with one chunk are not copied.
    """

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = tuple(columns)

    def __call__(self, table: pa.Table | pa.RecordBatch) -> dict[str, Any]:
        """Convert one table or batch."""
        return {name: _to_tensor(table.column(name)) for name in self._columns}


def _to_tensor(column: pa.ChunkedArray | pa.Array) -> Any:
    import torch

    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind == "M":
        values = values.view(np.int64)
    with warnings.catch_warnings():
        # Arrow's memory is read-only, and nothing here writes to the tensors
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)

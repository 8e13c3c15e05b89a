"""Tables of tensors: made from Arrow, and cut into batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa


def to_tensors(table: pa.Table | pa.RecordBatch) -> dict[str, Any]:
    """Columns of numbers as tensors; those with one chunk are not copied."""
    return {name: _to_tensor(table.column(name)) for name in table.schema.names}


def _to_tensor(column: pa.ChunkedArray | pa.Array) -> Any:
    import torch

    if isinstance(column, pa.ChunkedArray):
        column = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    values = column.to_numpy(zero_copy_only=False)
    with warnings.catch_warnings():
        # Arrow's memory is read-only, and nothing here writes to the tensors
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(values)


Tensors = dict[str, Any]


def cut_batches(tables: Iterable[Tensors], size: int) -> Iterator[Tensors]:
    """Batches of ``size`` rows, the last one shorter; views if a batch lies within one table."""
    parts: list[Tensors] = []
    missing = size
    for tensors in tables:
        start, rows = 0, len(next(iter(tensors.values())))
        while start < rows:
            stop = min(rows, start + missing)
            parts.append({name: values[start:stop] for name, values in tensors.items()})
            missing -= stop - start
            start = stop
            if not missing:
                yield _join(parts)
                parts, missing = [], size
    if parts:
        yield _join(parts)


def _join(parts: Sequence[Tensors]) -> Tensors:
    import torch

    first, *others = parts
    return {name: torch.cat([part[name] for part in parts]) for name in first} if others else first

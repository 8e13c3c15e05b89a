"""Tables of tensors: made from Arrow, and cut into batches."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
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
    rest: Tensors | None = None
    for tensors in tables:
        rows = _count(tensors)
        start = 0
        if rest is not None:
            start = min(rows, size - _count(rest))
            rest = _join(rest, _cut(tensors, 0, start))
            if _count(rest) < size:
                continue
            yield rest
            rest = None
        whole = start + (rows - start) // size * size
        for first in range(start, whole, size):
            yield _cut(tensors, first, first + size)
        rest = _cut(tensors, whole, rows) if whole < rows else None
    if rest is not None:
        yield rest


def _count(tensors: Tensors) -> int:
    return len(next(iter(tensors.values())))


def _cut(tensors: Tensors, start: int, stop: int) -> Tensors:
    return {name: values[start:stop] for name, values in tensors.items()}


def _join(one: Tensors, other: Tensors) -> Tensors:
    import torch

    return {name: torch.cat([values, other[name]]) for name, values in one.items()}

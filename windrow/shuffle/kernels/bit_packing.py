"""Computes value ranges, and packs and unpacks frame-of-reference encoded values; mostly the NumPy twins of C."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.frame_of_reference import Packing, join_ranges
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.fixed_width import PlainRows, rows_view, validity_of, values_of


def find_range(values: NDArray[Any]) -> tuple[int, int]:
    """Minimum and maximum of one or more values of 2, 4 or 8 bytes, as signed integers.

    >>> find_range(np.array([7, -3, 200]).view(np.uint64))
    (-3, 200)
    """
    if native.LIBRARY is not None:
        return native.find_range(values)
    numbers = values.view(f"i{values.itemsize}")
    return int(numbers.min()), int(numbers.max())


def find_ranges(columns: Sequence[pa.ChunkedArray]) -> tuple[int, int] | None:
    """Minimum and maximum over all values of several columns, 0 and 0 if all are null; None if there are no rows.

    >>> find_ranges([pa.chunked_array([[5, None], [2, 9]])])
    (2, 9)
    """
    chunks = [chunk for column in columns for chunk in column.chunks if len(chunk)]
    filled = [chunk for chunk in chunks if chunk.null_count < len(chunk)]
    return (
        join_ranges(find_range(_valid_values(chunk)) for chunk in filled) if filled or not chunks else (0, 0)
    )


def _valid_values(array: pa.Array) -> NDArray[Any]:
    """The values that are not null: what lies below nulls is arbitrary."""
    values, valid = values_of(array), validity_of(array)
    return values if valid is None else values[valid.astype(np.bool_)]


def pack_values(values: NDArray[Any], packing: Packing, out: NDArray[np.uint8]) -> bool:
    """Write values in a packing narrower than their width; False, and invalid output, if one does not fit.

    >>> out = np.empty(2, np.uint8)
    >>> pack_values(np.array([-3, 200]).view(np.uint64), Packing(1, -3), out), out.tolist()
    (True, [0, 203])
    >>> pack_values(np.array([-4, 200]).view(np.uint64), Packing(1, -3), out)
    False
    """
    offsets = values - np.array(packing.base, np.int64).astype(values.dtype)
    if packing.bytes:
        np.copyto(rows_view(out, packing.bytes), offsets, casting="unsafe")
    return int(offsets.max(initial=0)).bit_length() <= 8 * packing.bytes


def unpack_values(memory: NDArray[np.uint8], rows: int, width: int, packing: Packing) -> PlainRows:
    """Decode packed values; a view without a copy if they have their full width.

    >>> unpack_values(np.array([0, 203], np.uint8), 2, 8, Packing(1, -3)).view(np.int64)
    array([ -3, 200])
    """
    if packing.bytes == width:
        return rows_view(memory, width)
    base = np.array(packing.base, np.int64).astype(f"u{width}")
    if not packing.bytes:
        return np.full(rows, base)
    return rows_view(memory, packing.bytes).astype(base.dtype) + base

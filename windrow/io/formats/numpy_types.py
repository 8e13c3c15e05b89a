"""Convert NumPy types and arrays to Arrow, without a copy where possible.

==================================  =============================================
NumPy                               Arrow
==================================  =============================================
bool, integers, floats              the same
``datetime64`` of s, ms, us, ns     ``timestamp``, NaT as null
``datetime64[D]``                   ``date32``, NaT as null
``timedelta64`` of s, ms, us, ns    ``duration``, NaT as null
``U`` and ``S``                     ``string`` and ``binary``
(rows, k)                           ``fixed_size_list`` of k
(rows, i, j, ...) of numbers        ``fixed_shape_tensor`` of i, j, ...
==================================  =============================================
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.text_types import preserve_embedded_nuls
from windrow.io.catalog.value_sizes import storage_type

_UNITS = ("s", "ms", "us", "ns")
# the widths of Arrow's floats in bytes
_FLOATS = (2, 4, 8)


def column_type(dtype: np.dtype[Any], shape: tuple[int, ...]) -> pa.DataType:
    """The Arrow type of a column whose rows have this dtype and shape; a ValueError if there is none."""
    leaf = _leaf_type(dtype)
    if len(shape) > 1 and dtype.kind in "iuf" and 0 not in shape:
        return pa.fixed_shape_tensor(leaf, shape)
    for width in reversed(shape):
        leaf = pa.list_(leaf, width)
    return leaf


def row_memory_bytes(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    """Estimate the bytes of a row as an Arrow column."""
    if dtype.kind == "U":
        # most text is ASCII: 1 byte per character in Arrow, 4 in NumPy
        return prod(shape) * (4 + dtype.itemsize // 4)
    return prod(shape) * (dtype.itemsize + (4 if dtype.kind == "S" else 0))


def to_column(array: NDArray[Any]) -> pa.Array:
    """Convert (rows, ...) values to a column, without a copy if they are aligned numbers in C order."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    kind = column_type(array.dtype, array.shape[1:])
    flat = np.ascontiguousarray(array).reshape(-1)
    values = _leaf_column(flat if flat.flags.aligned else flat.copy())
    storage = storage_type(kind)
    column = wrap_lists(values, storage, len(array))
    return column if storage is kind else kind.wrap_array(column)


def _leaf_type(dtype: np.dtype[Any]) -> pa.DataType:
    kind = dtype.kind
    unit = np.datetime_data(dtype) if kind in "mM" else ("", 1)
    if kind in "biu" or (kind == "f" and dtype.itemsize in _FLOATS):
        return pa.from_numpy_dtype(dtype.newbyteorder("="))
    if kind in "US":
        return pa.string() if kind == "U" else pa.binary()
    if kind in "mM" and unit[0] in _UNITS and unit[1] == 1:
        return pa.timestamp(unit[0]) if kind == "M" else pa.duration(unit[0])
    if kind == "M" and unit == ("D", 1):
        return pa.date32()
    raise ValueError(f"is of {dtype}, {_fix(dtype)}")


def _fix(dtype: np.dtype[Any]) -> str:
    if dtype.kind == "O":
        return "which is stored as pickles, which windrow never loads: save it with a plain dtype"
    if dtype.kind == "c":
        return "which Arrow does not have: save .real and .imag"
    if dtype.kind in "mM":
        return f"which Arrow does not have: save .astype('{dtype.str[1:3]}[s]')"
    return "which Arrow does not have: save it with another dtype"


def _leaf_column(flat: NDArray[Any]) -> pa.Array:
    kind, dtype = _leaf_type(flat.dtype), flat.dtype
    if dtype.kind in "US":
        return pa.array(preserve_embedded_nuls(flat), kind)
    if dtype.kind == "b":
        return _plain(kind, np.packbits(flat, bitorder="little"), len(flat))
    if dtype.kind not in "mM":
        return _plain(kind, flat, len(flat))
    missing = np.isnat(flat)
    numbers = flat.view(np.int64)
    if pa.types.is_date32(kind):
        numbers = np.where(missing, 0, numbers)
        if len(numbers) and not -(2**31) <= numbers.min() <= numbers.max() < 2**31:
            raise ValueError("a date is outside the range of date32: save it with .astype('M8[s]')")
        numbers = numbers.astype(np.int32)
    return _plain(kind, numbers, len(flat), ~missing if missing.any() else None)


def _plain(
    kind: pa.DataType, values: NDArray[Any], length: int, valid: NDArray[np.bool_] | None = None
) -> pa.Array:
    # pa.array() would import pandas if installed
    mask = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    nulls = 0 if valid is None else length - int(np.count_nonzero(valid))
    return pa.Array.from_buffers(kind, length, [mask, pa.py_buffer(values)], null_count=nulls)


def wrap_lists(values: pa.Array, kind: pa.DataType, rows: int) -> pa.Array:
    """Wrap the flat values of rows in the lists of fixed size that ``kind`` has around them."""
    if not pa.types.is_fixed_size_list(kind):
        return values
    children = wrap_lists(values, kind.value_type, rows * kind.list_size)
    return pa.Array.from_buffers(kind, rows, [None], null_count=0, children=[children])

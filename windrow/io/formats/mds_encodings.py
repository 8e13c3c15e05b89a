"""The encodings of MDS columns: their Arrow types, and columns from the bytes of values.

==============================================  ==============================================
encoding                                        Arrow
==============================================  ==============================================
``int``, ``int8`` ... ``float64``               the same; ``int`` is ``int64``
``str``, ``json``                               ``string``; JSON as its text
``str_int``, ``str_float``, ``str_decimal``     ``int64``, ``double``, ``string``
``bytes``, ``jpeg``, ``png``, ``pil``           ``binary``, as stored
``jpeg_array``, ``list[jpeg]`` and the like     ``list`` of ``binary``
``ndarray:dtype:shape``                         ``fixed_size_list`` or ``fixed_shape_tensor``
``ndarray:dtype``, ``ndarray``                  ``list`` or ``arrow.variable_shape_tensor``
==============================================  ==============================================
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.variable_tensors import to_tensor_column, variable_tensor
from windrow.io.catalog.schemas import unify_types
from windrow.io.formats.numpy_types import column_type, to_column

_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_SCALARS = {"int": "int64", **{name: name for name in _DTYPES.values()}}
_STORED = ("bytes", "jpeg", "png", "pil")
_TEXTS = ("str", "json")
_NUMBERS_AS_TEXT = {"str_int": pa.int64(), "str_float": pa.float64(), "str_decimal": pa.string()}
# lists, and the bytes before the number of elements
_LISTS = {"jpeg_array": 0, "jpegarray": 0, "list[pil]": 4, "list[jpeg]": 4, "list[png]": 4}
_ARRAY = "ndarray"
_SIZES = struct.Struct("<I")


class MdsValueError(Exception):
    """Intact values do not fit the type of their column; the text continues "it is", and ``fix`` says what to do."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


def find_unreadable(encoding: str) -> tuple[str, str] | None:
    """Why a column of an encoding cannot be read: its type in a word, and a text that continues "it is".

    >>> find_unreadable("pkl")[0], find_unreadable("int")
    ('pickle', None)
    """
    if encoding == "pkl":
        return "pickle", "stored as pickles, which can run code and which windrow never loads"
    known = (*_SCALARS, *_STORED, *_TEXTS, *_NUMBERS_AS_TEXT, *_LISTS)
    if encoding in known or (encoding.split(":")[0] == _ARRAY and _is_array(encoding)):
        return None
    return "unknown", f"of the encoding {encoding!r}, which is unknown"


def _is_array(encoding: str) -> bool:
    dtype, shape = _parse_array(encoding)
    return (dtype is None or dtype in _DTYPES.values()) and (shape is None or min(shape) > 0)


def _parse_array(encoding: str) -> tuple[str | None, tuple[int, ...] | None]:
    """The dtype and the shape that an encoding states.

    >>> _parse_array("ndarray:int8:2,3"), _parse_array("ndarray:int8"), _parse_array("ndarray")
    (('int8', (2, 3)), ('int8', None), (None, None))
    """
    _, dtype, shape = (*encoding.split(":"), "", "")[:3]
    sizes = tuple(int(size) if size.isdigit() else 0 for size in shape.split(",")) if shape else None
    return dtype or None, sizes


def infer_type(encoding: str) -> pa.DataType:
    """The type of a column as far as its encoding states it: arrays of any shape are lists, and of any dtype null."""
    if encoding in _SCALARS:
        return pa.from_numpy_dtype(np.dtype(_SCALARS[encoding]))
    if encoding in _STORED:
        return pa.binary()
    if encoding in _TEXTS:
        return pa.string()
    if encoding in _NUMBERS_AS_TEXT:
        return _NUMBERS_AS_TEXT[encoding]
    if encoding in _LISTS:
        return pa.list_(pa.binary())
    dtype, shape = _parse_array(encoding)
    if dtype is not None and shape is not None:
        return column_type(np.dtype(dtype), shape)
    return pa.null() if dtype is None else pa.list_(pa.from_numpy_dtype(np.dtype(dtype)))


def measure_column(encoding: str, cells: pa.Array) -> tuple[pa.DataType, int]:
    """The type of a column by some of its values, and their bytes in memory; raises as `decode_column` does."""
    # other values can need another type
    kind = pa.string() if encoding in _NUMBERS_AS_TEXT else None
    column = decode_column(encoding, cells, kind)
    return infer_type(encoding) if kind is not None else column.type, column.nbytes


def decode_column(encoding: str, cells: pa.Array, kind: pa.DataType | None) -> pa.Array:
    """Decode the values of a column, given as their bytes.

    ``kind`` is the type that is requested, into which text of numbers is parsed, or None for that of the encoding.

    Raises
    ------
    MdsValueError
        If a value does not fit the column's type, or arrays have none in common.
    ValueError
        If the bytes of a value contradict themselves.
    """
    if encoding in _STORED:
        return cells
    if encoding in _TEXTS:
        return cells.cast(pa.string())
    if encoding in _NUMBERS_AS_TEXT:
        return _parse_numbers(encoding, cells.cast(pa.string()), kind or _NUMBERS_AS_TEXT[encoding])
    if encoding in _SCALARS:
        return to_column(_fixed(cells, _SCALARS[encoding], ()))
    if encoding in _LISTS:
        return pa.array(
            [_split_list(cell.as_py(), _LISTS[encoding]) for cell in cells], pa.list_(pa.binary())
        )
    dtype, shape = _parse_array(encoding)
    if dtype is not None and shape is not None:
        return to_column(_fixed(cells, dtype, shape))
    return _join_arrays([_parse_values(cell.as_py(), dtype, shape) for cell in cells])


def _parse_numbers(encoding: str, texts: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        return texts.cast(kind)
    except pa.ArrowInvalid as error:
        raise MdsValueError(
            f"of the encoding {encoding!r}, and holds what cannot be read as {kind} ({error})",
            "give another type with schema=, such as pa.string()",
        ) from error


def _fixed(cells: pa.Array, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """(values, ...) the numbers of values of one size."""
    _, bounds, data = cells.buffers()
    kind = np.dtype(dtype).newbyteorder("<")
    sizes = np.diff(np.frombuffer(bounds, np.int32, len(cells) + 1))
    if (sizes != prod(shape) * kind.itemsize).any():
        raise ValueError(f"is corrupt: a value of {dtype} has another number of bytes")
    values = np.frombuffer(data, kind, len(cells) * prod(shape))
    return values.reshape(len(cells), *shape)


def _split_list(data: bytes, skipped: int) -> list[bytes]:
    """The elements of a list: their number, their sizes, and they themselves."""
    if len(data) < skipped + _SIZES.size:
        raise ValueError("is corrupt: a list ends before its number of elements")
    (count,) = _SIZES.unpack_from(data, skipped)
    begin = skipped + _SIZES.size * (count + 1)
    if begin > len(data):
        raise ValueError(f"is corrupt: the sizes of {count:,} elements do not fit into their list")
    sizes = np.frombuffer(data, "<u4", count, skipped + _SIZES.size)
    ends = begin + np.cumsum(sizes, dtype=np.int64)
    if (int(ends[-1]) if count else begin) != len(data):
        raise ValueError("is corrupt: the elements of a list do not fill it")
    return [data[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


def _parse_values(data: bytes, dtype: str | None, shape: tuple[int, ...] | None) -> NDArray[Any]:
    """An array behind its dtype and shape, as far as the encoding does not state them."""
    at = 0
    if dtype is None:
        dtype, at = _DTYPES.get(data[0], ""), 1
        if not dtype:
            raise ValueError(f"is corrupt: an array states the dtype {data[0]}, which does not exist")
    if shape is None:
        dims, width = data[at] >> 2, 1 << (data[at] & 3)
        stated = np.frombuffer(data, f"<u{width}", dims, at + 1)
        shape, at = tuple(stated.tolist()), at + 1 + dims * width
    kind = np.dtype(dtype).newbyteorder("<")
    if prod(shape) * kind.itemsize != len(data) - at:
        raise ValueError(f"is corrupt: an array of the shape {shape} does not fill its value")
    return np.frombuffer(data, kind, offset=at).reshape(shape).astype(dtype, copy=False)


def _join_arrays(arrays: Sequence[NDArray[Any]]) -> pa.Array:
    """Arrays of one dimension as lists, others as tensors of several shapes."""
    dims = sorted({array.ndim for array in arrays})
    kinds = [pa.from_numpy_dtype(dtype) for dtype in dict.fromkeys(array.dtype for array in arrays)]
    kind = reduce(lambda left, right: None if left is None else unify_types(left, right), kinds)
    if len(dims) > 1 or kind is None:
        what = f"{dims[0]} and {dims[-1]} dimensions" if len(dims) > 1 else f"{kinds[0]} and {kinds[1]}"
        raise MdsValueError(f"of arrays of {what}, which have no type in common", "exclude it with columns=")
    dtype = kind.to_pandas_dtype()
    if dims == [1]:
        ends = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        values = np.concatenate([array.astype(dtype, copy=False) for array in arrays])
        offsets = pa.array(ends, pa.int64()).cast(pa.int32())
        return pa.ListArray.from_arrays(offsets, to_column(values))
    tensors = [array.astype(dtype, copy=False) for array in arrays]
    return to_tensor_column(tensors, variable_tensor(kind, dims[0]))

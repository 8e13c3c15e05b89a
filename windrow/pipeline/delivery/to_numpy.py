"""Converts one Arrow column to a NumPy array, by this table.

==============================  ==================================================
Arrow                           NumPy
==============================  ==================================================
integers, floats                the same type; no copy where there are no nulls
floats with nulls               NaN in place of null
integers, booleans with nulls   objects: Python values and None, never rounded
boolean                         bool
timestamp, date, duration       datetime64 / timedelta64, NaT in place of null; a
                                time zone is dropped (values are UTC)
time of day                     timedelta64 since midnight, NaT in place of null
decimal                         objects: decimal.Decimal and None
string, binary                  objects: str / bytes and None
dictionary                      as the type of its values
fixed_size_list                 (rows, k, ...); objects where a list is null
fixed_shape_tensor              (rows, *shape), its permutation applied
variable_shape_tensor           objects: one array per row, None where null
list                            objects: one array per row, None where null
struct, map, union, others      objects: what ``to_pylist`` returns
null                            objects: None
==============================  ==================================================

Nothing here imports pandas, unlike ``pyarrow.compute`` and ``Array.to_numpy``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.variable_tensors import is_variable_tensor, tensor_rows

# keyed by type id, since comparing ids is faster than comparing types
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_FIXED_DTYPES: dict[int, np.dtype[Any]] = {
    **{pa.type_for_alias(name).id: np.dtype(name) for name in (*_INTEGERS, "float16", "float32", "float64")},
    pa.bool_().id: np.dtype(np.bool_),
    pa.date32().id: np.dtype("datetime64[D]"),
    pa.date64().id: np.dtype("datetime64[ms]"),
}


def fixed_dtype(arrow_type: pa.DataType) -> np.dtype[Any] | None:
    """Return the NumPy dtype of a fixed-width column without nulls; None for other types."""
    known = _FIXED_DTYPES.get(arrow_type.id)
    if known is not None:
        return known
    if pa.types.is_timestamp(arrow_type):
        return np.dtype(f"datetime64[{arrow_type.unit}]")
    if pa.types.is_duration(arrow_type) or pa.types.is_time(arrow_type):
        return np.dtype(f"timedelta64[{arrow_type.unit}]")
    return None


def permutation_of(tensor_type: pa.FixedShapeTensorType) -> list[int]:
    """Return, for each dimension of the shape that users see, the index of the stored dimension."""
    return list(tensor_type.permutation or range(len(tensor_type.shape)))


def column_to_numpy(array: pa.Array, *, writable: bool) -> NDArray[Any]:
    """Convert one column by the table above.

    The result is read-only unless ``writable``. A writable result is a view where Arrow marks the array's
    memory as mutable, and a copy otherwise.
    """
    result = _convert(array, writable)
    if result.flags.writeable != writable:
        result = result.copy() if writable else result.view()
        result.flags.writeable = writable
    return result


def writable_view(array: pa.Array) -> NDArray[Any] | None:
    """Return a writable view of the column's memory; None where conversion would need more than a view."""
    kind = array.type
    dtype = _FIXED_DTYPES.get(kind.id)
    if dtype is not None:
        return _own_memory(array, dtype)
    if isinstance(kind, pa.FixedShapeTensorType):
        whole = not array.storage.null_count and writable_view(fixed_list_values(array.storage)) is not None
        return _tensors(array, True) if whole else None
    if pa.types.is_fixed_size_list(kind):
        whole = not array.null_count and writable_view(fixed_list_values(array)) is not None
        return _fixed_lists(array, True) if whole else None
    if isinstance(kind, pa.BaseExtensionType):
        return writable_view(array.storage)
    dtype = fixed_dtype(kind)
    return None if dtype is None else _own_memory(array, dtype)


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is one of lists, of any lengths or of one."""
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def list_offsets(array: pa.ListArray | pa.LargeListArray) -> NDArray[np.int64]:
    """(rows + 1,) offsets of a list column into ``array.values``."""
    if not len(array):
        return np.zeros(1, np.int64)
    dtype: np.dtype[Any] = np.dtype(np.int64 if pa.types.is_large_list(array.type) else np.int32)
    return _raw(array.offsets, dtype).astype(np.int64)


def _own_memory(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    if dtype.kind == "b" or array.null_count or array.type.bit_width != 8 * dtype.itemsize:
        return None
    values = _raw(array, dtype)
    return values if values.flags.writeable else None


def _convert(array: pa.Array, writable: bool) -> NDArray[Any]:
    kind = array.type
    dtype = fixed_dtype(kind)
    if dtype is not None:
        return _fixed(array, dtype, writable)
    if isinstance(kind, pa.FixedShapeTensorType):
        return _tensors(array, writable)
    if is_variable_tensor(kind):
        # one array per row; all are views of the column's values
        return _objects(tensor_rows(array, lambda values: column_to_numpy(values, writable=writable)))
    if isinstance(kind, pa.BaseExtensionType):
        return _convert(array.storage, writable)
    if pa.types.is_dictionary(kind):
        return _decoded(array)
    if pa.types.is_fixed_size_list(kind):
        return _fixed_lists(array, writable)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _ragged(array, writable)
    return _objects(array.to_pylist())


def _objects(values: Iterable[Any]) -> NDArray[Any]:
    # fromiter keeps each value as one object; np.array would stack sequences of equal length
    return np.fromiter(values, dtype=object)


def _fixed(array: pa.Array, dtype: np.dtype[Any], writable: bool) -> NDArray[Any]:
    if array.null_count and dtype.kind in "iub":
        return _objects(array.to_pylist())
    if dtype.kind == "b":
        return _bits(array.buffers()[1], array)
    if array.type.bit_width == 32 and dtype.kind in "mM":  # date32, time32
        values = _raw(array, np.dtype(np.int32)).astype(np.int64).view(dtype)
    else:
        values = _raw(array, dtype)
    if array.null_count:
        values = values.copy()
        values[_null_mask(array)] = np.nan if dtype.kind == "f" else np.array("NaT", dtype)
    return values


def _raw(array: pa.Array, dtype: np.dtype[Any]) -> NDArray[Any]:
    """View the values of a fixed-width array; writable if its memory is mutable."""
    buffer = array.buffers()[1]
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array), dtype)
    return np.frombuffer(buffer, dtype, count=len(array), offset=array.offset * dtype.itemsize)


def _null_mask(array: pa.Array) -> NDArray[np.bool_]:
    validity = array.buffers()[0]
    return np.zeros(len(array), np.bool_) if validity is None else ~_bits(validity, array)


def _bits(buffer: pa.Buffer | None, array: pa.Array) -> NDArray[np.bool_]:
    if len(array) == 0 or buffer is None:
        return np.zeros(len(array), np.bool_)
    first, skipped = divmod(array.offset, 8)
    packed = np.frombuffer(buffer, np.uint8)[first : (array.offset + len(array) + 7) // 8]
    bits = np.unpackbits(packed, count=skipped + len(array), bitorder="little")
    return bits[skipped:].view(np.bool_)


def _decoded(array: pa.DictionaryArray) -> NDArray[Any]:
    values = _convert(array.dictionary, False)
    index_dtype = _FIXED_DTYPES[array.type.index_type.id]
    if not array.null_count:
        return np.asarray(values[_raw(array.indices, index_dtype)])
    missing = _null_mask(array)
    # the index of a null is arbitrary
    codes = np.where(missing, 0, _raw(array.indices, index_dtype))
    if values.dtype.kind in "iub":
        values = values.astype(object)
    result = values[codes] if len(values) else np.empty(len(array), values.dtype)
    fillers: dict[str, Any] = {"f": np.nan, "M": np.datetime64("NaT"), "m": np.timedelta64("NaT")}
    result[missing] = fillers.get(values.dtype.kind)
    return np.asarray(result)


def fixed_list_values(array: pa.FixedSizeListArray) -> pa.Array:
    """The values of all lists of one length, those of null lists included."""
    width = array.type.list_size
    return array.values.slice(array.offset * width, len(array) * width)


def _fixed_lists(array: pa.FixedSizeListArray, writable: bool) -> NDArray[Any]:
    values = column_to_numpy(fixed_list_values(array), writable=writable)
    values = values.reshape(len(array), array.type.list_size, *values.shape[1:])
    return _with_nulls(array, values)


def _tensors(array: pa.FixedShapeTensorArray, writable: bool) -> NDArray[Any]:
    values = column_to_numpy(fixed_list_values(array.storage), writable=writable)
    values = values.reshape(len(array), *array.type.shape)
    values = values.transpose(0, *(1 + dimension for dimension in permutation_of(array.type)))
    return _with_nulls(array.storage, values)


def _with_nulls(array: pa.Array, values: NDArray[Any]) -> NDArray[Any]:
    if not array.null_count:
        return values
    rows = zip(values, _null_mask(array), strict=True)
    return _objects(None if missing else value for value, missing in rows)


def _ragged(array: pa.ListArray | pa.LargeListArray, writable: bool) -> NDArray[Any]:
    offsets = list_offsets(array)
    first, last = int(offsets[0]), int(offsets[-1])
    values = column_to_numpy(array.values.slice(first, last - first), writable=writable)
    starts, stops = (offsets[:-1] - first).tolist(), (offsets[1:] - first).tolist()
    bounds = zip(starts, stops, _null_mask(array), strict=True)
    return _objects(None if missing else values[start:stop] for start, stop, missing in bounds)

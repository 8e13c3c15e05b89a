"""Converts one column of a user's values to Arrow; the inverse of :mod:`windrow.pipeline.delivery.to_numpy`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.text_types import preserve_embedded_nuls
from windrow.core.variable_tensors import (
    is_variable_tensor,
    tensor_ndim,
    tensor_value_type,
    to_tensor_column,
    variable_tensor,
)
from windrow.pipeline.delivery.to_numpy import fixed_dtype, permutation_of

_KINDS: tuple[tuple[str, Callable[[pa.DataType], bool]], ...] = (
    ("integer", pa.types.is_integer),
    ("floating", pa.types.is_floating),
    ("boolean", pa.types.is_boolean),
    ("null", pa.types.is_null),
    ("text", lambda t: pa.types.is_string(t) or pa.types.is_large_string(t) or pa.types.is_string_view(t)),
    ("binary", lambda t: pa.types.is_binary(t) or pa.types.is_large_binary(t)),
    ("binary", lambda t: pa.types.is_fixed_size_binary(t) or pa.types.is_binary_view(t)),
    ("decimal", pa.types.is_decimal),
    ("timestamp", pa.types.is_timestamp),
    ("date", pa.types.is_date),
    ("time", pa.types.is_time),
    ("duration", pa.types.is_duration),
    ("list", lambda t: pa.types.is_list(t) or pa.types.is_large_list(t) or pa.types.is_fixed_size_list(t)),
    ("list", lambda t: pa.types.is_map(t) or pa.types.is_list_view(t) or pa.types.is_large_list_view(t)),
    ("struct", pa.types.is_struct),
)
_TIMES = ("timestamp", "date", "time", "duration")


def to_arrow(values: Any, preferred: pa.DataType | None, *, nan_is_null: bool = False) -> pa.ChunkedArray:
    """Convert an array, a list or tuple, a pandas Series, or what NumPy can view (a tensor).

    ``preferred`` is the type to use if the values are of its kind; None infers the type. ``nan_is_null``:
    NaN means null, as in pandas.
    """
    if preferred is not None and is_variable_tensor(preferred):
        tensors = _variable_column(values, preferred)
        if tensors is None:
            return to_arrow(values, None, nan_is_null=nan_is_null)
        return pa.chunked_array([tensors])
    if isinstance(preferred, pa.BaseExtensionType) and not isinstance(preferred, pa.FixedShapeTensorType):
        column = to_arrow(values, preferred.storage_type, nan_is_null=nan_is_null)
        return column.cast(preferred) if column.type == preferred.storage_type else column
    array = _numpy_view(values)
    if array is None or (array.ndim == 1 and array.dtype.kind in "OUST"):
        column = _from_objects(values if array is None else array, preferred, nan_is_null)
    elif array.ndim == 1:
        column = _from_plain(array, preferred, nan_is_null)
    else:
        column = _from_tensors(array, preferred)
    return column if isinstance(column, pa.ChunkedArray) else pa.chunked_array([column])


def _variable_column(values: Any, preferred: pa.DataType | None) -> pa.Array | None:
    """Convert arrays of several shapes, of two dimensions or more unless ``preferred`` has one; None for other values.

    With ``preferred``, arrays of one shape are converted too, so that the type depends on no single value.
    """
    if not isinstance(values, (list, tuple, np.ndarray)) and not hasattr(values, "iloc"):
        values = np.asanyarray(values)
    arrays = list(values)
    present = [array for array in arrays if array is not None]
    if not present or not all(isinstance(array, np.ndarray) for array in present):
        all_missing = bool(arrays) and not present
        return to_tensor_column(arrays, preferred) if all_missing and preferred is not None else None
    dims, dtypes = {array.ndim for array in present}, {array.dtype for array in present}
    ndim, dtype = dims.pop(), np.result_type(*dtypes)
    least = 2 if preferred is None else min(2, tensor_ndim(preferred))
    if dims or ndim < least or dtype.kind not in "biuf":
        return None
    kind = variable_tensor(pa.from_numpy_dtype(dtype), ndim)
    alike = preferred is not None and tensor_ndim(preferred) == ndim
    if alike and tensor_value_type(preferred) == tensor_value_type(kind):
        kind = preferred
    return to_tensor_column(arrays, kind)


def _numpy_view(values: Any) -> NDArray[Any] | None:
    """View an array as NumPy; None for lists, and for Series of objects or with nulls."""
    if isinstance(values, (list, tuple)):
        return _stacked(values)
    if not isinstance(values, np.ndarray):
        dtype = getattr(values, "dtype", None)
        if hasattr(values, "iloc") and not (isinstance(dtype, np.dtype) and dtype.kind in "biufmM"):
            return _stacked(values)
    array: NDArray[Any] = np.asanyarray(values)
    if array.dtype.kind == "O" and array.ndim == 1:
        stacked = _stacked(array)
        return array if stacked is None else stacked
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _stacked(values: Any) -> NDArray[Any] | None:
    """Stack matrices of equal shape, one per row; None for other values. Arrow accepts vectors only."""
    shapes = {value.shape if isinstance(value, np.ndarray) else None for value in values}
    shape = shapes.pop() if len(shapes) == 1 else None
    return np.stack(list(values)) if shape is not None and len(shape) >= 2 else None


def _from_plain(array: NDArray[Any], preferred: pa.DataType | None, nan_is_null: bool) -> pa.Array:
    if preferred is not None and pa.types.is_time(preferred) and array.dtype == fixed_dtype(preferred):
        return _from_times(array, preferred)
    plain = pa.array(array, from_pandas=nan_is_null)
    if preferred is None:
        return plain
    value_type = preferred.value_type if pa.types.is_dictionary(preferred) else preferred
    if array.dtype == fixed_dtype(value_type):
        return _cast(plain, preferred)
    if pa.types.is_timestamp(plain.type) and pa.types.is_timestamp(preferred):
        return plain.cast(pa.timestamp(plain.type.unit, preferred.tz))
    return plain


def _from_times(array: NDArray[Any], preferred: pa.DataType) -> pa.Array:
    integer = np.int32 if preferred.bit_width == 32 else np.int64
    missing = np.isnat(array)
    numbers = np.where(missing, 0, array.view(np.int64)).astype(integer)
    return pa.array(numbers, mask=missing).cast(preferred)


def _from_objects(values: Any, preferred: pa.DataType | None, nan_is_null: bool) -> pa.Array:
    if isinstance(preferred, pa.FixedShapeTensorType):
        return _from_some_tensors(values, preferred, nan_is_null)
    first = next((value for value in values if value is not None), None)
    if isinstance(first, np.ndarray) and first.ndim > 1:
        tensors = _variable_column(values, None)
        if tensors is not None:
            return tensors
    if isinstance(values, np.ndarray):
        # Arrow does not support NumPy's StringDType
        values = values.astype(object) if values.dtype.kind == "T" else preserve_embedded_nuls(values)
    try:
        plain = pa.array(values, from_pandas=nan_is_null)
    except (pa.ArrowException, TypeError, ValueError):
        if preferred is None:
            raise
        return pa.array(values, type=preferred, from_pandas=nan_is_null)
    if preferred is None or _kind(plain.type) not in (_kind(preferred), "null"):
        return plain
    if _kind(preferred) == "floating" and _kind(plain.type) == "floating":
        return plain  # a narrower float would round
    if _kind(preferred) in _TIMES:
        return _cast(plain, preferred)  # building from objects truncates silently
    try:
        return pa.array(values, type=preferred, from_pandas=nan_is_null)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        # older versions of pyarrow make only string and binary of NumPy's text
        return _cast(plain, preferred) if _kind(preferred) in ("text", "binary") else plain


def _kind(arrow_type: pa.DataType) -> str:
    value_type = arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type
    return next((kind for kind, is_kind in _KINDS if is_kind(value_type)), str(value_type))


def _cast(plain: pa.Array, preferred: pa.DataType) -> pa.Array:
    try:
        return (plain.dictionary_encode() if pa.types.is_dictionary(preferred) else plain).cast(preferred)
    except pa.ArrowException:
        return plain


def _from_tensors(array: NDArray[Any], preferred: pa.DataType | None) -> pa.Array:
    if isinstance(preferred, pa.FixedShapeTensorType) and array.dtype == fixed_dtype(preferred.value_type):
        back = np.argsort(permutation_of(preferred))
        if array.ndim == 1 + len(back):
            stored = array.transpose(0, *(1 + back))
            if stored.shape[1:] == tuple(preferred.shape):
                return _tensor_column(stored, preferred)
    leaf_type, widths = preferred, []
    while leaf_type is not None and pa.types.is_fixed_size_list(leaf_type):
        widths.append(leaf_type.list_size)
        leaf_type = leaf_type.value_type
    if widths and tuple(widths) == array.shape[1:]:
        return _nested(_leaf(array, leaf_type), array.shape, preferred)
    if array.dtype.kind in "biuf" and all(array.shape[1:]):
        value_type = pa.from_numpy_dtype(array.dtype)
        return _tensor_column(array, pa.fixed_shape_tensor(value_type, array.shape[1:]))
    return _nested(_leaf(array, None), array.shape, None)


def _leaf(array: NDArray[Any], preferred: pa.DataType | None) -> pa.Array:
    column = to_arrow(np.ascontiguousarray(array).reshape(-1), preferred)
    # combine_chunks copies a single chunk too, which would hold images twice
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _tensor_column(stored: NDArray[Any], preferred: pa.FixedShapeTensorType) -> pa.Array:
    shape = (len(stored), math.prod(stored.shape[1:]))
    storage = _nested(_leaf(stored, preferred.value_type), shape, preferred.storage_type)
    return pa.ExtensionArray.from_storage(preferred, storage)


def _from_some_tensors(values: Any, preferred: pa.FixedShapeTensorType, nan_is_null: bool) -> pa.Array:
    """Convert tensors, some of them None."""
    shape = tuple(preferred.shape[dimension] for dimension in permutation_of(preferred))
    arrays = [value for value in values if value is not None]
    if not all(isinstance(value, np.ndarray) and value.shape == shape for value in arrays):
        return _from_objects(values, None, nan_is_null)
    back = np.argsort(permutation_of(preferred))
    flat = [None if value is None else value.transpose(back).reshape(-1) for value in values]
    return pa.ExtensionArray.from_storage(preferred, pa.array(flat, type=preferred.storage_type))


def _nested(leaf: pa.Array, shape: tuple[int, ...], preferred: pa.DataType | None) -> pa.Array:
    """Wrap values in fixed-size lists, innermost first; sizes can be 0."""
    types = [preferred]
    for _ in shape[2:]:
        types.append(None if types[-1] is None else types[-1].value_type)
    for depth in range(len(shape) - 1, 0, -1):
        list_type = types[depth - 1] or pa.list_(leaf.type, shape[depth])
        if list_type.value_type != leaf.type:
            list_type = pa.list_(leaf.type, shape[depth])
        leaf = pa.Array.from_buffers(list_type, math.prod(shape[:depth]), [None], children=[leaf])
    return leaf

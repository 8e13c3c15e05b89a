"""Decode the members of WebDataset samples to columns, by file extension."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.optional_dependencies import require
from windrow.core.variable_tensors import is_variable_tensor, to_tensor_column, variable_tensor
from windrow.io.formats.image_limit import describe_limit, is_too_large

__all__ = ["IMAGES", "DecodeError", "UnsupportedMemberError", "decode_column", "infer_column"]

IMAGES = ("bmp", "gif", "jpeg", "jpg", "png", "ppm", "tif", "tiff", "webp")
_TEXTS = ("text", "transcript", "txt")
_INTEGERS = ("cls", "cls2", "id", "index", "inx")
_JSON = ("json", "jsn")
_ARRAYS = ("npy",)

Contents = Sequence["pa.Buffer | None"]


class DecodeError(ValueError):
    """A member does not match its extension or its column's type."""


class UnsupportedMemberError(DecodeError):
    """A member is intact, but too large, of a kind that is not supported, or of no column."""


def infer_column(extension: str, contents: Contents, mode: str | None) -> pa.DataType:
    """Infer the column type of an extension from the members of some samples."""
    kind = extension.rpartition(".")[2]
    if kind in _TEXTS:
        return pa.string()
    if kind in _INTEGERS:
        return pa.int64()
    if kind in _JSON:
        return _from_objects(extension, _decode_all(_json, extension, contents), None).type
    decode = _array_decoder(kind, mode)
    if decode is None:
        return pa.binary()
    arrays = _decode_all(decode, extension, contents)
    return _array_type(extension, [array for array in arrays if array is not None])


def decode_column(
    extension: str, contents: Contents, column_type: pa.DataType, mode: str | None, *, requested: bool
) -> pa.Array:
    """Decode the members of one extension to a column; None becomes null.

    ``requested`` means that the user requested the type: text and binary types then keep the raw member.
    """
    kind = extension.rpartition(".")[2]
    decode = _array_decoder(kind, mode)
    as_stored = _is_bytes(column_type) and (requested or kind not in _JSON)
    if as_stored or (decode is None and kind not in (*_TEXTS, *_INTEGERS, *_JSON)):
        stored = [None if raw is None else raw.to_pybytes() for raw in contents]
        return pa.array(stored, pa.binary()).cast(column_type)
    if decode is not None:
        return _from_arrays(extension, _decode_all(decode, extension, contents), column_type)
    if kind in _JSON:
        return _from_objects(extension, _decode_all(_json, extension, contents), column_type)
    return pa.array(_decode_all(_integer, extension, contents), column_type)


def _array_decoder(kind: str, mode: str | None) -> Callable[[Any], Any] | None:
    if kind in _ARRAYS:
        return _npy
    if mode is None or kind not in IMAGES:
        return None
    pillow = require("PIL.Image", "images", "decode=")

    def decode(raw: Any) -> Any:
        try:
            return np.asarray(pillow.open(io.BytesIO(raw)).convert(mode))
        except Exception as error:
            if is_too_large(pillow, error):
                raise UnsupportedMemberError(f"an image {describe_limit(pillow, error)}") from error
            raise

    return decode


def _decode_all(decode: Callable[[Any], Any], extension: str, contents: Contents) -> list[Any]:
    try:
        return [None if raw is None else decode(raw) for raw in contents]
    except (UnsupportedMemberError, MemoryError):
        raise
    except Exception as error:  # Pillow, NumPy and json raise many types
        raise DecodeError(f"a member {extension!r} cannot be decoded: {error}") from error


def _json(raw: pa.Buffer) -> Any:
    return json.loads(bytes(raw))


def _integer(raw: pa.Buffer) -> int:
    return int(bytes(raw))


def _npy(raw: pa.Buffer) -> Any:
    array = np.load(io.BytesIO(raw), allow_pickle=False)
    return np.asarray(array, array.dtype.newbyteorder("="), order="C")


def _array_type(extension: str, arrays: Sequence[Any]) -> pa.DataType:
    value = pa.from_numpy_dtype(np.result_type(*{array.dtype for array in arrays}))
    shapes = {array.shape for array in arrays}
    if shapes == {()}:
        return value
    if len(shapes) == 1:
        return pa.fixed_shape_tensor(value, shapes.pop())
    if {len(shape) for shape in shapes} == {1}:
        return pa.list_(value)
    if len(dims := {len(shape) for shape in shapes}) == 1:
        return variable_tensor(value, dims.pop())
    raise DecodeError(
        f"members {extension!r} have shapes {sorted(shapes)[0]} and {sorted(shapes)[-1]}, which no column type "
        f"can hold: keep their bytes with dtypes={{{extension!r}: pa.binary()}}"
    )


def _from_arrays(extension: str, arrays: Sequence[Any], column_type: pa.DataType) -> pa.Array:
    if is_variable_tensor(column_type):
        return to_tensor_column(arrays, column_type)
    if not isinstance(column_type, pa.FixedShapeTensorType):
        values = [None if array is None else array.tolist() for array in arrays]
        return pa.array(values, column_type)
    shape, value = tuple(column_type.shape), column_type.value_type
    for array in arrays:
        if array is not None and array.shape != shape:
            raise DecodeError(
                f"a member {extension!r} has the shape {array.shape}, but the column has {shape}: give "
                f"dtypes={{{extension!r}: windrow.VariableShapeTensorType(pa.{_type_name(value)}(), {len(shape)})}}"
            )
    present = [array.ravel() for array in arrays if array is not None]
    flat = pa.array(np.concatenate(present) if present else np.zeros(0)).cast(value)
    stored = pa.FixedSizeListArray.from_arrays(flat, type=column_type.storage_type)
    if len(present) < len(arrays):
        here = np.array([array is not None for array in arrays])
        stored = stored.take(pa.array(np.cumsum(here) - 1, mask=~here))
    return pa.ExtensionArray.from_storage(column_type, stored)


def _type_name(value: pa.DataType) -> str:
    """The function of pyarrow that makes a type of numbers."""
    name = np.dtype(value.to_pandas_dtype()).name
    return "bool_" if name == "bool" else name


def _from_objects(extension: str, values: Sequence[Any], column_type: pa.DataType | None) -> pa.Array:
    try:
        array = pa.array(values, column_type)
    except pa.ArrowException as error:
        raise DecodeError(
            f"members {extension!r} do not fit one type: {error}; keep their text with "
            f"dtypes={{{extension!r}: pa.string()}}"
        ) from error
    if column_type is not None:
        for value in values:
            _check_keys(extension, value, column_type)
    return array


def _check_keys(extension: str, value: Any, kind: pa.DataType) -> None:
    """Reject keys that the struct type lacks: Arrow would drop them silently."""
    if pt.is_struct(kind) and isinstance(value, dict):
        fields = {kind.field(at).name: kind.field(at).type for at in range(kind.num_fields)}
        for key, inner in value.items():
            if key not in fields:
                raise DecodeError(
                    f"a member {extension!r} has the key {key!r}, which is missing from every archive's first "
                    f"samples: give dtypes=, or keep the text with dtypes={{{extension!r}: pa.string()}}"
                )
            _check_keys(extension, inner, fields[key])
    elif (pt.is_list(kind) or pt.is_large_list(kind)) and isinstance(value, list):
        for inner in value:
            _check_keys(extension, inner, kind.value_type)


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())

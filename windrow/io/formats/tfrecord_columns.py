"""Convert features of ``tf.train.Example`` to columns: one value per row, or a list."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.io.formats.tfrecord_features import KINDS, Feature, FeatureError

__all__ = ["infer_type", "list_kind", "to_array"]


def list_kind(column_type: pa.DataType) -> str | None:
    """The kind of list in a feature that stores a column type; None if there is none.

    Examples
    --------
    >>> import pyarrow as pa
    >>> kinds = (pa.int8(), pa.list_(pa.float32(), 3), pa.string(), pa.date32())
    >>> tuple(map(list_kind, kinds))
    ('int64_list', 'float_list', 'bytes_list', None)
    """
    value = _value_type(column_type)
    if pt.is_null(value):
        return ""
    if pt.is_floating(value):
        return "float_list"
    if pt.is_integer(value) or pt.is_boolean(value):
        return "int64_list"
    return "bytes_list" if _is_bytes(value) else None


def infer_type(feature: Feature) -> pa.DataType:
    """Infer a scalar type if every present feature has exactly one value, else a list type."""
    if not feature.kind:
        return pa.null()
    lengths, values = feature.decode()
    single = (np.delete(lengths, feature.absent) == 1).all()
    return values.type if single else pa.list_(values.type)


def to_array(feature: Feature, column_type: pa.DataType) -> pa.Array:
    """Convert a feature to a column.

    Raises
    ------
    FeatureError
        If an example has more or fewer values than the type requires.
    ArrowInvalid
        If a value does not fit the type.
    """
    if pt.is_null(column_type) or not feature.kind:
        return pa.nulls(len(feature.values), column_type)
    lengths, values = feature.decode()
    values = values.cast(_value_type(column_type))
    if isinstance(column_type, pa.FixedShapeTensorType):
        stored = _fixed_lists(feature, lengths, values, column_type.storage_type)
        return pa.ExtensionArray.from_storage(column_type, stored)
    if pt.is_fixed_size_list(column_type):
        return _fixed_lists(feature, lengths, values, column_type)
    if _is_list(column_type):
        return _lists(feature, lengths, values, pt.is_large_list(column_type)).cast(column_type)
    return _single(feature, lengths, values)


def _single(feature: Feature, lengths: NDArray[np.int64], values: pa.Array) -> pa.Array:
    if (lengths == 1).all():
        return values
    _check_lengths(feature, np.flatnonzero(lengths > 1), lengths, "one value", "pa.list_(...)")
    places = np.cumsum(lengths) - 1
    return values.take(pa.array(places, mask=lengths == 0))


def _lists(feature: Feature, lengths: NDArray[np.int64], values: pa.Array, large: bool) -> pa.Array:
    kind: Any = pa.LargeListArray if large else pa.ListArray
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64 if large else np.int32)
    absent = np.zeros(len(lengths), np.bool_)
    absent[feature.absent] = True
    return kind.from_arrays(pa.array(offsets), values, mask=pa.array(absent) if absent.any() else None)


def _fixed_lists(feature: Feature, lengths: NDArray[np.int64], values: pa.Array, kind: Any) -> pa.Array:
    wrong = lengths != kind.list_size
    wrong[feature.absent] = False
    size = kind.list_size
    _check_lengths(feature, np.flatnonzero(wrong), lengths, f"{size} values", "pa.list_(...)")
    if feature.absent:
        return _lists(feature, lengths, values, large=False).cast(kind)
    return pa.FixedSizeListArray.from_arrays(values, type=kind)


def _check_lengths(
    feature: Feature, rows: NDArray[Any], lengths: NDArray[np.int64], expected: str, fix: str
) -> None:
    if len(rows):
        raise FeatureError(
            f"feature {feature.name!r} has {lengths[rows[0]]} values in record {rows[0]}, where its column has "
            f"{expected}: give features={{{feature.name!r}: {fix}}}"
        )


def _value_type(column_type: pa.DataType) -> pa.DataType:
    if isinstance(column_type, pa.FixedShapeTensorType):
        return column_type.value_type
    return column_type.value_type if _is_list(column_type) else column_type


def _is_list(kind: pa.DataType) -> bool:
    return pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return kind in (
        pa.string(),
        pa.large_string(),
        pa.large_binary(),
        *KINDS.values(),
    ) and not pt.is_floating(kind)

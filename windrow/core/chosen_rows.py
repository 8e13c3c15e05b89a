"""Rows of tables by place or by mask, also of columns whose rows Arrow confuses."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt


def take_rows(rows: pa.Table, places: Any) -> pa.Table:
    """The rows at some places, an array or a sequence of integers.

    >>> take_rows(pa.table({"x": [5, 6, 7]}), [2, 0])["x"].to_pylist()
    [7, 5]
    """
    return without_offsets(rows).take(pa.array(places))


def filter_rows(rows: pa.Table, mask: Any) -> pa.Table:
    """The rows for which a mask, or an expression, is true.

    >>> filter_rows(pa.table({"x": [5, 6, 7]}), pa.array([True, False, True]))["x"].to_pylist()
    [5, 7]
    """
    return without_offsets(rows).filter(mask)


def without_offsets(rows: pa.Table) -> pa.Table:
    """Copy the columns that hold fixed-size lists of fixed-size lists, so that they are no slices.

    Arrow 26 ignores the offsets of the inner lists in ``take`` and ``filter``, and gives the values of other rows.
    """
    for at, field in enumerate(rows.schema):
        if has_fixed_lists_in_fixed_lists(field.type):
            chunks = [copy_slice(chunk) for chunk in rows.column(at).chunks]
            rows = rows.set_column(at, field, pa.chunked_array(chunks, field.type))
    return rows


def copy_slice(array: pa.Array) -> pa.Array:
    """A copy of an array without offsets."""
    return pa.concat_arrays([array, array.slice(0, 0)])


def has_fixed_lists_in_fixed_lists(kind: pa.DataType) -> bool:
    """Whether a type holds fixed-size lists of fixed-size lists, also as tensors.

    >>> has_fixed_lists_in_fixed_lists(pa.list_(pa.list_(pa.list_(pa.int8(), 2), 3)))
    True
    """
    kind = _stored(kind)
    inner = [] if pt.is_dictionary(kind) else [_stored(kind.field(at).type) for at in range(kind.num_fields)]
    is_fixed = pt.is_fixed_size_list(kind)
    return any(
        (is_fixed and pt.is_fixed_size_list(each)) or has_fixed_lists_in_fixed_lists(each) for each in inner
    )


def _stored(kind: Any) -> Any:
    return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind

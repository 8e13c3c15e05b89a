"""Casts columns without ever changing a value: to the types of a schema, and from extension types of other libraries.

Arrow's casts are checked too, but with gaps: they take no integer beyond 2**53 as ``double``, even one that it
holds; they make infinities of large numbers; and not every version matches the fields of structs by name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError
from windrow.core.variable_tensors import is_variable_tensor

Locate = Callable[[int], str]
"""Names the place of a row in errors: its file and row group."""

_SHOWN_CHARACTERS = 60
_INTEGER_DIGITS = 20
_MAX_SCALE = 76 - _INTEGER_DIGITS


def cast_table(table: pa.Table, schema: pa.Schema, locate: Locate) -> pa.Table:
    """Select the columns of ``schema`` and cast them; those that the table lacks are null."""
    names = set(table.column_names)
    columns = [
        cast_column(table.column(field.name), field, locate)
        if field.name in names
        else pa.chunked_array([pa.nulls(table.num_rows, field.type)])
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def cast_column(column: pa.ChunkedArray[Any], field: pa.Field[Any], locate: Locate) -> pa.ChunkedArray[Any]:
    """Cast a column to the type of ``field``; a SourceError names the first value that it cannot hold."""
    if column.type == field.type:
        return column
    cast, first = [], 0
    for chunk in column.chunks:
        try:
            cast.append(cast_array(chunk, field.type))
        except pa.ArrowException as error:
            raise _make_error(chunk, first, field, locate, error) from error
        first += len(chunk)
    return pa.chunked_array(cast, field.type)


def has_cast(stored: pa.DataType, kind: pa.DataType) -> bool:
    """Whether values of a type can be cast to another at all.

    >>> has_cast(pa.int64(), pa.string()), has_cast(pa.int64(), pa.list_(pa.int64()))
    (True, False)
    """
    try:
        cast_array(pa.nulls(0, stored), kind)
    except pa.ArrowException:
        return False
    return True


def _make_error(
    chunk: pa.Array, first: int, field: pa.Field[Any], locate: Locate, error: Exception
) -> SourceError:
    row = _find_failing_row(chunk, field.type)
    if row is None:
        return SourceError(
            f"{locate(first)}: column {field.name!r} is {chunk.type}, which cannot be read as {field.type} ({error}): "
            "give it another type with schema=, or exclude it with columns="
        )
    shown = _show(chunk[row])
    return SourceError(
        f"{locate(first + row)}: column {field.name!r} is {chunk.type} and is read as {field.type}, which cannot hold "
        f"the value {shown} ({error}): give a type that holds it with schema=, or exclude the column with columns="
    )


def _show(value: Any) -> str:
    try:
        shown = repr(value.as_py())
    except (ValueError, OverflowError):
        # such as a timestamp of a year that Python does not have
        shown = str(value.value)
    return shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}..."


def _find_failing_row(chunk: pa.Array, kind: pa.DataType) -> int | None:
    """The first row that cannot be cast, by bisection; None if no row can."""

    def fails(rows: int) -> bool:
        try:
            cast_array(chunk.slice(0, rows), kind)
        except pa.ArrowException:
            return True
        return False

    if fails(0):
        return None
    # as many rows as can be cast; all of them cannot
    return bisect_left(range(1, len(chunk)), True, key=fails)


def cast_array(array: Any, kind: Any) -> Any:
    """Cast an array; an ``ArrowException`` if the type cannot hold a value.

    >>> cast_array(pa.array([{"a": 1}, None]), pa.struct([("b", pa.int8()), ("a", pa.float64())])).to_pylist()
    [{'b': None, 'a': 1.0}, None]
    """
    stored = array.type
    if stored == kind:
        return array
    if pt.is_null(stored):
        return pa.nulls(len(array), kind)
    if isinstance(stored, pa.BaseExtensionType):
        return cast_array(array.storage, kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, cast_array(array, kind.storage_type))
    if pt.is_dictionary(kind):
        return _to_dictionary(array, kind)
    if pt.is_dictionary(stored):
        return cast_array(array.dictionary_decode(), kind)
    if pt.is_struct(stored) and pt.is_struct(kind) and kind.num_fields:
        return _cast_struct(array, kind)
    if _has_offsets(stored) and _has_offsets(kind):
        return _cast_lists(array, kind)
    if pt.is_fixed_size_list(stored) and pt.is_fixed_size_list(kind) and stored.list_size == kind.list_size:
        size = stored.list_size
        values = cast_array(array.values.slice(array.offset * size, len(array) * size), kind.value_type)
        return pa.FixedSizeListArray.from_arrays(values, type=kind, mask=_nulls(array))
    if pt.is_floating(kind) and (pt.is_integer(stored) or pt.is_floating(stored)):
        return _to_floats(array, kind)
    if pt.is_integer(stored) and pt.is_decimal(kind) and 0 <= kind.scale <= _MAX_SCALE:
        # Arrow wants room for all values of the integer type, not only for those that there are
        array = array.cast(pa.decimal256(_INTEGER_DIGITS + kind.scale, kind.scale))
    return array.cast(kind)


def _has_offsets(kind: pa.DataType) -> bool:
    return bool(pt.is_list(kind) or pt.is_large_list(kind))


def _nulls(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _to_dictionary(array: Any, kind: Any) -> pa.Array:
    if not pt.is_dictionary(array.type):
        array = cast_array(array, kind.value_type).dictionary_encode()
    codes, values = array.indices.cast(kind.index_type), cast_array(array.dictionary, kind.value_type)
    return pa.DictionaryArray.from_arrays(codes, values, ordered=kind.ordered)


def _cast_struct(array: Any, kind: Any) -> pa.Array:
    """Match fields by name: those that the array lacks are null, those that the type lacks are dropped."""
    # flatten, since what null structs hold does not matter
    stored = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    children = [
        cast_array(stored[field.name], field.type)
        if field.name in stored
        else pa.nulls(len(array), field.type)
        for field in kind
    ]
    return pa.StructArray.from_arrays(children, fields=list(kind), mask=_nulls(array))


def _cast_lists(array: Any, kind: Any) -> pa.Array:
    import pyarrow.compute as pc

    if not len(array):
        cast_array(array.values.slice(0, 0), kind.value_type)
        return pa.nulls(0, kind)
    begin, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
    values = cast_array(array.values.slice(begin, end - begin), kind.value_type)
    large = pt.is_large_list(kind)
    offsets = pc.subtract(array.offsets, begin).cast(pa.int64() if large else pa.int32())
    make = pa.LargeListArray if large else pa.ListArray
    return make.from_arrays(offsets, values, type=kind, mask=_nulls(array))


def _to_floats(array: Any, kind: Any) -> pa.Array:
    import pyarrow.compute as pc

    cast = array.cast(kind, safe=False)
    if pt.is_integer(array.type):
        try:
            exact = pc.all(pc.equal(cast.cast(array.type), array)).as_py() is not False
        except pa.ArrowInvalid:
            exact = False
        if not exact:
            raise pa.ArrowInvalid(f"it has more digits than {kind}")
    elif (
        kind.bit_width < array.type.bit_width
        and pc.any(pc.and_(pc.is_inf(cast), pc.invert(pc.is_inf(array)))).as_py()
    ):
        raise pa.ArrowInvalid(f"it is larger than the largest {kind}")
    return cast


def conform_table(table: pa.Table, schema: pa.Schema | None, origin: str, fix: str) -> pa.Table:
    """Cast a table to a schema, if there is one; a SourceError if that would change columns or values.

    ``origin`` is the name of the table in the error, and ``fix`` what to do about it.
    """
    if schema is None or table.schema.equals(schema):
        return table
    if sorted(table.column_names) != sorted(schema.names):
        raise SourceError(f"{origin}: has columns {table.column_names} and not {schema.names}; {fix}")
    columns = []
    for field in schema:
        column = _tensors_to_lists(table.column(field.name), field.type)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise SourceError(
                f"{origin}: column {field.name!r} is {column.type} and not {field.type} ({error}); {fix}"
            ) from error
    return pa.table(columns, schema=schema)


def _tensors_to_lists(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert fixed-shape tensors of one dimension to lists where the schema has lists of variable length."""
    lists = pt.is_list(kind) or pt.is_large_list(kind)
    if not lists or not isinstance(column.type, pa.FixedShapeTensorType) or len(column.type.shape) > 1:
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of blocks: arrays of fixed shape as tensors, other extension types as storage."""
    return pa.schema([pa.field(field.name, _plain_type(field.type)) for field in schema])


def plain_table(table: pa.Table) -> pa.Table:
    """Convert a table to `plain_schema`."""
    schema = plain_schema(table.schema)
    columns = [
        pa.chunked_array([_plain(chunk, kind) for chunk in column.chunks], kind)
        for column, kind in zip(table.columns, schema.types, strict=True)
    ]
    return pa.table(columns, schema=schema)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if not isinstance(kind, pa.BaseExtensionType) or isinstance(kind, pa.FixedShapeTensorType):
        return kind
    if is_variable_tensor(kind):
        return kind
    shape, inner = getattr(kind, "shape", None), kind.storage_type
    if not shape or not all(isinstance(width, int) for width in shape):
        return inner
    while pt.is_list(inner) or pt.is_large_list(inner):
        inner = inner.value_type
    return pa.fixed_shape_tensor(inner, shape)


def _plain(array: pa.Array, kind: pa.DataType) -> pa.Array:
    if array.type == kind:
        return array
    storage = array.storage
    if not isinstance(kind, pa.FixedShapeTensorType):
        return storage
    if storage.null_count:
        rows = [None if row is None else np.ravel(row) for row in storage.to_pylist()]
        return pa.ExtensionArray.from_storage(kind, pa.array(rows, kind.storage_type))
    while pt.is_list(storage.type) or pt.is_large_list(storage.type):
        storage = storage.flatten()
    lists = pa.FixedSizeListArray.from_arrays(storage, type=kind.storage_type)
    return pa.ExtensionArray.from_storage(kind, lists)

"""What Arrow does not do for every type: empty tables, run-end encoded columns, nested types with other fields."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError


def check_supported(schema: pa.Schema, where: str) -> None:
    """Raise a SourceError for a column that pyarrow cannot read, such as intervals of months.

    Arrow has three types of intervals, and pyarrow arrays of only one: ``month_day_nano_interval``.
    """
    for field in schema:
        kind = _find_unsupported(field.type)
        if kind is not None:
            inside = "" if kind.equals(field.type) else f", in {field.type}"
            raise SourceError(
                f"{where}: column {field.name!r} is {kind}{inside}, and pyarrow has no arrays of this type: leave the "
                "column out, or write it again as integers or as month_day_nano_interval"
            )


def _find_unsupported(kind: pa.DataType) -> pa.DataType | None:
    """The first type without arrays in a type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _find_unsupported(kind.storage_type)
    inner = [kind.field(place).type for place in range(kind.num_fields)]
    if pa.types.is_dictionary(kind):
        inner = [kind.value_type]
    if inner:
        return next((found for each in inner if (found := _find_unsupported(each)) is not None), None)
    try:
        pa.nulls(0, kind)
    except KeyError:
        # pyarrow looks up the class of an array by the number of its type
        return kind
    return None


def holds_runs(kind: pa.DataType) -> bool:
    """Whether a type is run-end encoded at a level that `decode_runs` decodes."""
    if pt.is_run_end_encoded(kind):
        return True
    return _is_rebuilt(kind) and any(holds_runs(kind.field(place).type) for place in range(kind.num_fields))


def decoded_type(kind: pa.DataType) -> pa.DataType:
    """Return the type with plain values in place of runs.

    >>> decoded_type(pa.list_(pa.run_end_encoded(pa.int32(), pa.string())))
    ListType(list<item: string>)
    """
    if pt.is_run_end_encoded(kind):
        return decoded_type(kind.value_type)
    if not holds_runs(kind):
        return kind
    return rebuild_type(kind, [_decoded_field(kind.field(place)) for place in range(kind.num_fields)])


def rebuild_type(kind: pa.DataType, fields: Sequence[pa.Field[Any]]) -> pa.DataType:
    """The type of a struct, a map or lists, with other fields in it.

    >>> rebuild_type(pa.large_list(pa.int8()), [pa.field("item", pa.string())])
    LargeListType(large_list<item: string>)
    """
    if pt.is_struct(kind):
        return pa.struct(fields)
    if pt.is_map(kind):
        key, item = fields[0].type
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pt.is_fixed_size_list(kind):
        return pa.list_(fields[0], kind.list_size)
    if pt.is_list_view(kind):
        return pa.list_view(fields[0])
    if pt.is_large_list_view(kind):
        return pa.large_list_view(fields[0])
    return pa.large_list(fields[0]) if pt.is_large_list(kind) else pa.list_(fields[0])


def convert_children(array: Any, kind: Any, convert: Callable[[Any, Any], Any]) -> Any:
    """Convert the children of a struct, a map or lists to those of ``kind``; the array's own buffers are shared.

    ``convert`` gets each child and its new type.
    """
    if pt.is_struct(kind):
        # fields have no offset, in contrast to children of lists
        fields = [convert(array.field(at), kind.field(at).type) for at in range(kind.num_fields)]
        return pa.Array.from_buffers(kind, len(array), [validity_bitmap(array)], children=fields)
    if pt.is_map(kind):
        pairs = pa.StructArray.from_arrays([array.keys, array.items], fields=list(array.type.field(0).type))
        children = [convert(pairs, kind.field(0).type)]
    else:
        children = [convert(array.values, kind.value_type)]
    own = array.buffers()[: 1 if pt.is_fixed_size_list(kind) else 2]
    return pa.Array.from_buffers(kind, len(array), own, array.null_count, array.offset, children)


def validity_bitmap(array: Any) -> pa.Buffer | None:
    """The validity of an array's rows as a bitmap without the array's offset; None without nulls."""
    return array.is_valid().buffers()[1] if array.null_count else None


def decoded_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema of `decode_runs` of a table."""
    return pa.schema([_decoded_field(field) for field in schema], schema.metadata)


def decode_runs(table: pa.Table) -> pa.Table:
    """Decode all run-end encoded columns of a table, whose layout must have been validated.

    >>> runs = pa.RunEndEncodedArray.from_arrays([2, 3], ["x", None])
    >>> decode_runs(pa.table({"s": runs})).column("s").to_pylist()
    ['x', 'x', None]
    """
    if not any(map(holds_runs, table.schema.types)):
        return table
    schema = decoded_schema(table.schema)
    columns = [
        pa.chunked_array([_decode(chunk) for chunk in column.chunks], type=field.type)
        for column, field in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _is_rebuilt(kind: pa.DataType) -> bool:
    lists = pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind)
    return lists or pt.is_struct(kind) or pt.is_map(kind)


def _decoded_field(field: pa.Field[Any]) -> pa.Field[Any]:
    return field.with_type(decoded_type(field.type))


def _decode(array: Any) -> Any:
    if not holds_runs(array.type):
        return array
    if pt.is_run_end_encoded(array.type):
        return _repeat_values(array)
    return convert_children(array, decoded_type(array.type), lambda child, _: _decode(child))


def _repeat_values(array: Any) -> Any:
    """Repeat the value of each run; `pyarrow.compute.run_end_decode` lacks dictionaries, views and extensions."""
    first, count = array.find_physical_offset(), array.find_physical_length()
    values = _decode(array.values.slice(first, count))
    ends = np.asarray(array.run_ends.slice(first, count)).astype(np.int64) - array.offset
    lengths = np.diff(np.minimum(ends, len(array)), prepend=0)
    places = pa.array(np.repeat(np.arange(count), lengths))
    views = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
    if values.type in views:
        # Arrow has no `take` for them
        return values.cast(views[values.type]).take(places).cast(values.type)
    return values.take(places)


def concat_rows(tables: Sequence[pa.Table]) -> pa.Table:
    """Join tables of the same columns; a column can hold nulls if it can in one of them."""
    first = tables[0].schema
    # names and types take a Python object for each column
    if all(table.schema.equals(first) for table in tables) or not all(
        table.schema.names == first.names and table.schema.types == first.types for table in tables
    ):
        return pa.concat_tables(tables)
    can_be_null = [any(table.schema.field(at).nullable for table in tables) for at in range(len(first))]
    fields = [field.with_nullable(can) for field, can in zip(first, can_be_null, strict=True)]
    schema = pa.schema(fields, metadata=first.metadata)
    return pa.concat_tables([pa.Table.from_arrays(table.columns, schema=schema) for table in tables])


def empty_table(schema: pa.Schema) -> pa.Table:
    """Make a table without rows; ``schema.empty_table()`` fails on tensors with a permutation, and on unions.

    >>> import numpy as np
    >>> kind = pa.FixedShapeTensorArray.from_numpy_ndarray(np.zeros((4, 2, 3))).type
    >>> empty_table(pa.schema([("t", kind)])).num_rows
    0
    """
    columns = [_empty_array(field.type) for field in schema]
    return pa.Table.from_arrays(columns, schema=schema)


def _empty_array(kind: pa.DataType) -> pa.Array:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, _empty_array(kind.storage_type))
    # pa.array() cannot make unions
    return pa.nulls(0, kind)

"""Casts a table to the common schema where that is lossless."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError

__all__ = ["conform_table"]


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

"""From what a table has to what the others have, where nothing is lost."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import SourceError

__all__ = ["conform_table"]


def conform_table(table: pa.Table, schema: pa.Schema, origin: str, fix: str) -> pa.Table:
    """A table with the columns and types of a schema.

    Parameters
    ----------
    origin
        What the table is, for the error.
    remedy
        What helps, for the error.

    Raises
    ------
    SourceError
        If a column is not there, there are others, or values would not be the same.
    """
    if table.schema.equals(schema):
        return table
    if sorted(table.column_names) != sorted(schema.names):
        raise SourceError(f"{origin}: has columns {table.column_names} and not {schema.names}; {fix}")
    columns = []
    for field in schema:
        column = _unshaped(table.column(field.name), field.type)
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except pa.ArrowException as error:
            raise SourceError(
                f"{origin}: column {field.name!r} is {column.type} and not {field.type} ({error}); {fix}"
            ) from error
    return pa.table(columns, schema=schema)


def _unshaped(column: pa.ChunkedArray, wanted: pa.DataType) -> pa.ChunkedArray:
    """Vectors that happen to be of one length, where those of others differ, as lists."""
    lists = pt.is_list(wanted) or pt.is_large_list(wanted)
    if not lists or not isinstance(column.type, pa.FixedShapeTensorType) or len(column.type.shape) > 1:
        return column
    return pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)

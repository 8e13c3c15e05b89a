"""Conforms a file's table to the block schema: casts columns, and adds partition columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from windrow.io.catalog.hive_partitions import Partitions

__all__ = ["conform"]


def conform(table: pa.Table, schema: pa.Schema, partitions: Partitions, path: str) -> pa.Table:
    """Cast the table of the file at ``path`` to ``schema``, and add its partition columns."""
    values = dict(zip(partitions.schema.names, partitions.values(path), strict=True))
    columns = [
        _constant(values[field.name], field.type, table.num_rows)
        if field.name in values
        else _cast(table.column(field.name), field)
        for field in schema
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _constant(value: Any, kind: pa.DataType, rows: int) -> pa.ChunkedArray[Any]:
    return pa.chunked_array([pa.repeat(pa.scalar(value, kind), rows)])


def _cast(column: pa.ChunkedArray[Any], field: pa.Field[Any]) -> pa.ChunkedArray[Any]:
    if column.type == field.type:
        return column
    if pa.types.is_null(column.type):
        return pa.chunked_array([pa.nulls(len(column), field.type)])
    try:
        return column.cast(field.type)
    except pa.ArrowException as error:
        raise type(error)(f"column {field.name!r} from {column.type} to {field.type}: {error}") from error

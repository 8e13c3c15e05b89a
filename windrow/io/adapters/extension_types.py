"""Converts other libraries' Arrow extension types to fixed-shape tensors or to their storage types."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.variable_tensors import is_variable_tensor

__all__ = ["plain_schema", "plain_table"]


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

"""Builds empty tables for any schema."""

from __future__ import annotations

import pyarrow as pa

__all__ = ["empty_table"]


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

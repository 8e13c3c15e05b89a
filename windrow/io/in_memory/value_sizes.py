"""Sizes of columns in memory by their values alone, independent of chunks and padding."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.source import BlockTable
from windrow.io.catalog.value_widths import fixed_bits, offset_bytes
from windrow.io.in_memory.content_digest import child_range

__all__ = ["count_nulls", "cut_rows", "weigh_table", "weigh_tables"]


def cut_rows(rows: int, size_bytes: int, target_bytes: int) -> NDArray[np.int64]:
    """Block boundaries: the fewest blocks of equal rows, give or take one, whose mean size stays within the target.

    Examples
    --------
    >>> cut_rows(10, 80, 32).tolist()
    [0, 3, 6, 10]
    """
    blocks = min(rows, max(1, -(-size_bytes // target_bytes)))
    return np.arange(blocks + 1, dtype=np.int64) * rows // max(blocks, 1)


def weigh_table(table: pa.Table) -> int:
    """Bytes of a table's values."""
    return sum(_weigh_column(column) for column in table.columns)


def weigh_tables(tables: list[pa.Table], schema: pa.Schema) -> BlockTable:
    """The rows and bytes of blocks given as tables."""
    rows = np.array([table.num_rows for table in tables], np.int64)
    sizes = np.array([weigh_table(table) for table in tables], np.int64)
    exact = all(fixed_bits(kind) is not None for kind in schema.types)
    return BlockTable(rows, sizes, sizes, rows_known=True, bytes_exact=exact)


def count_nulls(table: pa.Table) -> dict[str, int]:
    """Nulls by column, including those within fixed-size lists."""
    return {
        name: sum(_nulls(chunk) for chunk in column.chunks)
        for name, column in zip(table.schema.names, table.columns, strict=True)
    }


def _nulls(array: pa.Array) -> int:
    if isinstance(array.type, pa.BaseExtensionType):
        return _nulls(array.storage)
    if pt.is_run_end_encoded(array.type):
        # Arrow reports null_count 0 for run-end encoded arrays
        import pyarrow.compute as pc

        return int(pc.run_end_decode(array).null_count)
    if pt.is_fixed_size_list(array.type):
        return int(array.null_count) + _nulls(array.values.slice(*child_range(array)))
    return int(array.null_count)


def _weigh_column(column: pa.ChunkedArray) -> int:
    bits = fixed_bits(column.type)
    if bits is not None:
        return (len(column) * bits + 7) // 8
    return sum(_weigh(chunk) for chunk in column.chunks)


def _weigh(array: pa.Array) -> int:
    if isinstance(array.type, pa.BaseExtensionType):
        array = array.storage
    kind, rows = array.type, len(array)
    bits = fixed_bits(kind)
    if bits is not None:
        return (rows * bits + 7) // 8
    if pt.is_struct(kind):
        return sum(map(_weigh, array.flatten()))
    if pt.is_string(kind) or pt.is_binary(kind) or pt.is_large_string(kind) or pt.is_large_binary(kind):
        return rows * offset_bytes(kind) + child_range(array)[1]
    if pt.is_map(kind):
        start, count = child_range(array)
        return rows * offset_bytes(kind) + sum(
            _weigh(child.slice(start, count)) for child in (array.keys, array.items)
        )
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return rows * offset_bytes(kind) + _weigh(array.values.slice(*child_range(array)))
    # dictionaries count their indices only; other types count their buffers
    return rows * offset_bytes(kind) if pt.is_dictionary(kind) else arrow_bytes(array)

"""Sizes of values in memory: widths by type, and the bytes of columns by their values alone, whatever the chunks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.source import BlockTable
from windrow.core.text_types import offset_width
from windrow.io.catalog.content_digest import child_range

Ints = NDArray[np.int64]


def storage_type(kind: pa.DataType) -> pa.DataType:
    """The type in which values are stored: of an extension type, the one that is none."""
    return storage_type(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def child_types(kind: pa.DataType) -> list[pa.DataType]:
    """The types within a nested type, and none within others."""
    return [kind.field(place).type for place in range(kind.num_fields)]


def is_list(kind: pa.DataType) -> bool:
    """Whether a type is a list of several or of one length; maps and views are not."""
    return bool(pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind))


def fixed_bits(kind: pa.DataType) -> int | None:
    """Bits of a value of a fixed-width type, without validity; None for variable-width types."""
    kind = storage_type(kind)
    if pt.is_null(kind):
        return 0
    if pt.is_fixed_size_list(kind):
        bits = fixed_bits(kind.value_type)
        return None if bits is None else bits * kind.list_size
    if pt.is_struct(kind):
        widths = list(map(fixed_bits, child_types(kind)))
        return None if None in widths else sum(bits or 0 for bits in widths)
    if pt.is_primitive(kind) or pt.is_decimal(kind) or pt.is_fixed_size_binary(kind):
        return int(kind.bit_width)
    return None


def offset_bytes(kind: pa.DataType) -> int:
    """Bytes that a value takes in addition to its content: an offset, a view, or a dictionary index."""
    kind = storage_type(kind)
    if pt.is_dictionary(kind):
        return int(kind.index_type.bit_width) // 8
    if pt.is_string_view(kind) or pt.is_binary_view(kind) or pt.is_large_list_view(kind):
        return 16
    if pt.is_large_list(kind) or pt.is_list_view(kind):
        return 8
    return 4 if pt.is_list(kind) or pt.is_map(kind) else offset_width(kind)


def leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    """The types of a column's leaves, in Parquet's order."""
    kind = storage_type(kind)
    if pt.is_struct(kind):
        return [leaf for child in child_types(kind) for leaf in leaf_types(child)]
    if pt.is_map(kind):
        return [*leaf_types(kind.key_type), *leaf_types(kind.item_type)]
    if is_list(kind) or pt.is_list_view(kind) or pt.is_large_list_view(kind):
        return leaf_types(kind.value_type)
    return [kind]


def leaf_indices(schema: pa.Schema) -> list[range]:
    """The indices of each column's leaves in Parquet."""
    indices, start = [], 0
    for field in schema:
        stop = start + len(leaf_types(field.type))
        indices.append(range(start, stop))
        start = stop
    return indices


def cut_rows(rows: int, size_bytes: int, target_bytes: int) -> Ints:
    """Block boundaries: the fewest blocks of equal rows, give or take one, whose mean size stays within the target.

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
    return make_block_table(rows, sizes, schema)


def make_block_table(
    rows: Ints, size_bytes: Ints, schema: pa.Schema, *, rows_known: bool = True, rows_bounded: bool = True
) -> BlockTable:
    """(blocks,) rows and bytes, which are exact if every column has a fixed width; flags as of `BlockTable`."""
    exact = rows_bounded and all(fixed_bits(kind) is not None for kind in schema.types)
    return BlockTable(rows, size_bytes, size_bytes, rows_known, exact, rows_bounded)


def estimate_blocks(
    rows: Ints, value_bytes: Mapping[str, float], schema: pa.Schema, *, rows_known: bool = True
) -> BlockTable:
    """Blocks of some rows, given the mean bytes of a value of each column."""
    columns = (np.ceil(rows * value_bytes[name]).astype(np.int64) for name in schema.names)
    return make_block_table(rows, sum(columns, np.zeros_like(rows)), schema, rows_known=rows_known)


def measure_values(name: str, kind: pa.DataType, sample: pa.Table | None) -> float:
    """The bytes in memory of a column's values: exact, or the mean of sampled rows, at least those of an offset.

    >>> measure_values("x", pa.bool_(), None), measure_values("s", pa.string(), pa.table({"s": ["abcd", "efgh"]}))
    (0.125, 8.0)
    """
    bits = fixed_bits(kind)
    if bits is not None:
        return bits / 8
    least = max(1, offset_bytes(kind))
    if sample is None or not sample.num_rows:
        return least
    return max(arrow_bytes(sample[name]) / sample.num_rows, least)


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
    if width := offset_width(kind):
        return rows * width + child_range(array)[1]
    if pt.is_map(kind):
        start, count = child_range(array)
        return rows * offset_bytes(kind) + sum(
            _weigh(child.slice(start, count)) for child in (array.keys, array.items)
        )
    if is_list(kind):
        return rows * offset_bytes(kind) + _weigh(array.values.slice(*child_range(array)))
    # dictionaries count their indices only; other types count their buffers
    return rows * offset_bytes(kind) if pt.is_dictionary(kind) else arrow_bytes(array)

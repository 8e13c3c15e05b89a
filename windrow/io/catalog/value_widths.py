"""Widths of values in memory by type, and the leaf columns that a type has in Parquet."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.types as pt

__all__ = ["fixed_bits", "leaf_indices", "leaf_types", "offset_bytes"]


def fixed_bits(kind: pa.DataType) -> int | None:
    """Bits of a value of a fixed-width type, without validity; None for variable-width types."""
    if isinstance(kind, pa.BaseExtensionType):
        return fixed_bits(kind.storage_type)
    if pt.is_null(kind):
        return 0
    if pt.is_fixed_size_list(kind):
        bits = fixed_bits(kind.value_type)
        return None if bits is None else bits * kind.list_size
    if pt.is_struct(kind):
        widths = [fixed_bits(child.type) for child in kind]
        return None if None in widths else sum(bits or 0 for bits in widths)
    if pt.is_primitive(kind) or pt.is_decimal(kind) or pt.is_fixed_size_binary(kind):
        return int(kind.bit_width)
    return None


def offset_bytes(kind: pa.DataType) -> int:
    """Bytes that a value takes in addition to its content: an offset, a view, or a dictionary index."""
    if isinstance(kind, pa.BaseExtensionType):
        return offset_bytes(kind.storage_type)
    if pt.is_dictionary(kind):
        return int(kind.index_type.bit_width) // 8
    if pt.is_large_string(kind) or pt.is_large_binary(kind) or pt.is_large_list(kind):
        return 8
    if pt.is_string_view(kind) or pt.is_binary_view(kind) or pt.is_large_list_view(kind):
        return 16
    if pt.is_list_view(kind):
        return 8
    return 4 if pt.is_string(kind) or pt.is_binary(kind) or pt.is_list(kind) or pt.is_map(kind) else 0


def leaf_types(kind: pa.DataType) -> list[pa.DataType]:
    """The types of a column's leaves, in Parquet's order."""
    if isinstance(kind, pa.BaseExtensionType):
        return leaf_types(kind.storage_type)
    if pt.is_struct(kind):
        return [leaf for child in kind for leaf in leaf_types(child.type)]
    if pt.is_map(kind):
        return [*leaf_types(kind.key_type), *leaf_types(kind.item_type)]
    lists = (pt.is_list, pt.is_large_list, pt.is_fixed_size_list, pt.is_list_view, pt.is_large_list_view)
    if any(is_list(kind) for is_list in lists):
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

"""Counts the bytes that Arrow data references."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.types as pt

_UNION_CODE_BYTES, _UNION_OFFSET_BYTES = 1, 4


def arrow_bytes(data: pa.Table | pa.RecordBatch | pa.ChunkedArray | pa.Array) -> int:
    """Return ``data.nbytes``, the bytes of the rows that are referenced, for every type and pyarrow.

    Arrow reads a union without values from a file as an array without buffers, and ``nbytes`` of it ends the
    process, at any level of nesting. Unions are therefore counted here. Before pyarrow 24, ``nbytes`` does not
    support views (``string_view``, ``list_view``). There the buffers of such a column are counted whole, as
    newer versions count the text that its views point to.

    >>> arrow_bytes(pa.table({"n": [1, 2, 3]}).slice(1))
    16
    """
    if isinstance(data, (pa.Table, pa.RecordBatch)):
        if any(_holds_unions(kind) for kind in data.schema.types):
            return sum(map(arrow_bytes, data.columns))
    elif _holds_unions(data.type):
        chunks = data.chunks if isinstance(data, pa.ChunkedArray) else [data]
        return sum(map(_count_bytes, chunks))
    return _referenced_bytes(data)


def _referenced_bytes(data: Any) -> int:
    """The bytes of data without unions, or of a union of others that has values."""
    try:
        return int(data.nbytes)
    except pa.ArrowTypeError:
        if isinstance(data, (pa.Table, pa.RecordBatch)):
            return sum(map(arrow_bytes, data.columns))
        return int(data.get_total_buffer_size())


def _holds_unions(kind: pa.DataType) -> bool:
    if isinstance(kind, pa.BaseExtensionType):
        return _holds_unions(kind.storage_type)
    if not pt.is_nested(kind):
        return False
    return pt.is_union(kind) or any(_holds_unions(kind.field(place).type) for place in range(kind.num_fields))


def _count_bytes(array: Any) -> int:
    """The bytes of an array that can hold unions, and of its children for its rows."""
    if not len(array):
        return 0
    if isinstance(array.type, pa.BaseExtensionType):
        return _count_bytes(array.storage)
    kind = array.type
    if not any(_holds_unions(kind.field(place).type) for place in range(kind.num_fields)):
        # no array in it can be a union without values
        return _referenced_bytes(array)
    own, children = _split_nested(array)
    return own + sum(map(_count_bytes, children))


def _split_nested(array: Any) -> tuple[int, list[Any]]:
    """The bytes of a nested array itself, and its children as far as its rows reference them."""
    kind, rows = array.type, len(array)
    validity = (rows + 7) // 8 if array.null_count else 0
    if pt.is_union(kind):
        # slices of a dense union share its children, which are counted whole
        own = _UNION_CODE_BYTES + (_UNION_OFFSET_BYTES if kind.mode == "dense" else 0)
        return rows * own, [array.field(place) for place in range(kind.num_fields)]
    if pt.is_struct(kind):
        return validity, [array.field(place) for place in range(kind.num_fields)]
    if pt.is_fixed_size_list(kind):
        return validity, [array.values.slice(array.offset * kind.list_size, rows * kind.list_size)]
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_map(kind):
        start, stop = (array.offsets[place].as_py() for place in (0, rows))
        values = [array.keys, array.items] if pt.is_map(kind) else [array.values]
        width = 8 if pt.is_large_list(kind) else 4
        return validity + rows * width, [child.slice(start, stop - start) for child in values]
    # views of lists, and dictionaries
    return int(array.get_total_buffer_size()), []

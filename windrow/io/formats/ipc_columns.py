"""Locate and size the columns of a record batch from its IPC header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.types as pt

from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.catalog.value_widths import fixed_bits
from windrow.io.formats.ipc_messages import BatchHeader

__all__ = ["StoredColumn", "find_columns", "summarise_batches"]

# estimated ratio of compression: the actual one is unknown before decoding
_GROWTH = 3


@dataclass(frozen=True)
class StoredColumn:
    """A column of a batch: its null count (None if unknown), and (offset, bytes) of its buffers in the body."""

    nulls: int | None
    buffers: list[tuple[int, int]]

    @property
    def stored_bytes(self) -> int:
        """Total bytes of its buffers."""
        return sum(size for _, size in self.buffers)


def find_columns(schema: pa.Schema, header: BatchHeader) -> list[StoredColumn]:
    """Locate the columns of a batch.

    Raises
    ------
    ValueError
        If the header does not fit the schema.
    """
    views = iter(header.views)
    node = buffer = 0
    columns = []
    for field in schema:
        nodes, buffers, viewed = _count(field.type)
        buffers += sum(next(views, 0) for _ in range(viewed))
        if node >= len(header.nulls):
            break
        nulls = header.nulls[node] if _has_null_count(field.type) and header.nulls[node] >= 0 else None
        columns.append(StoredColumn(nulls, header.buffers[buffer : buffer + buffers]))
        node, buffer = node + nodes, buffer + buffers
    if len(columns) != len(schema) or node != len(header.nulls) or buffer != len(header.buffers):
        raise ValueError("has a batch that does not fit its schema: it is corrupt, or of Arrow before 1.0")
    return columns


def summarise_batches(schema: pa.Schema, headers: Sequence[BatchHeader]) -> FragmentFacts:
    """Summarise the record batches of a file.

    Raises
    ------
    ValueError
        If a header does not fit the schema.
    """
    found = [find_columns(schema, header) for header in headers]
    growth = [_GROWTH if header.compressed else 1 for header in headers]
    rows = [header.rows for header in headers]
    encoded = [0] * len(rows)
    variable, nulls = {}, {}
    for number, field in enumerate(schema):
        columns = [batch[number] for batch in found]
        bits = fixed_bits(field.type)
        if bits is None:
            sizes = [column.stored_bytes * factor for column, factor in zip(columns, growth, strict=True)]
            variable[field.name] = (sizes, sizes)
        else:
            sizes = [(count * bits + 7) // 8 for count in rows]
        encoded = [before + size for before, size in zip(encoded, sizes, strict=True)]
        counts = [column.nulls for column in columns if column.nulls is not None]
        nulls[field.name] = sum(counts) if len(counts) == len(columns) else None
    return FragmentFacts(schema, rows, encoded, variable, nulls)


def _storage(kind: pa.DataType) -> pa.DataType:
    return _storage(kind.storage_type) if isinstance(kind, pa.BaseExtensionType) else kind


def _has_null_count(kind: pa.DataType) -> bool:
    """Whether a column's nulls are those of its outermost array."""
    kind = _storage(kind)
    return not (pt.is_dictionary(kind) or pt.is_union(kind) or pt.is_run_end_encoded(kind))


def _count(kind: pa.DataType) -> tuple[int, int, int]:
    """A column's numbers of arrays, of buffers, and of view arrays; the latter have additional buffers."""
    kind = _storage(kind)
    if pt.is_dictionary(kind):
        return 1, 2, 0
    viewed = pt.is_string_view(kind) or pt.is_binary_view(kind)
    own = (1, _own_buffers(kind), int(viewed))
    children = [_count(kind.field(place).type) for place in range(kind.num_fields)]
    arrays, buffers, views = zip(own, *children, strict=True)
    return sum(arrays), sum(buffers), sum(views)


def _own_buffers(kind: pa.DataType) -> int:
    if pt.is_null(kind) or pt.is_run_end_encoded(kind):
        return 0
    if pt.is_struct(kind) or pt.is_fixed_size_list(kind):
        return 1
    if pt.is_union(kind):
        return 1 if kind.mode == "sparse" else 2
    texts = (pt.is_string, pt.is_binary, pt.is_large_string, pt.is_large_binary)
    views = (pt.is_list_view, pt.is_large_list_view)
    return 3 if any(is_kind(kind) for is_kind in (*texts, *views)) else 2

"""What a footer says of column chunks: where they are, and whether the C decoder supports them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.core.frame_of_reference import bounds_table, is_packable
from windrow.core.text_types import offset_width
from windrow.io.catalog.column_selection import restrict_type
from windrow.io.catalog.value_sizes import is_list, leaf_indices, leaf_types
from windrow.io.parquet.chunks import BOOLEANS, DECIMALS, NUMBERS, TEXT, Chunk, chunk_table
from windrow.io.parquet.decoder_library import CODECS
from windrow.io.parquet.footers import find_arrow_schema, integer_bounds
from windrow.io.parquet.leaf_files import FooterStructs
from windrow.io.parquet.page_index import ChunkPages, StoredChunk

_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
# datasets of the same file whose chunks are remembered
_KNOWN_FIELDS = 4
_DECIMAL_BYTES = 16
# chunks whose pages are remembered, about 80 bytes for each 16 KiB or more of them
_KNOWN_PAGES = 2**13


class NestedLeaf(NamedTuple):
    """A column chunk below a list or struct that the C decoder accepts, or some rows of one."""

    number: int  # of the leaf among those of the file
    start: int  # offset of its pages in the file
    size_bytes: int  # compressed
    rows: int
    values: int  # of its levels; null and empty lists have one too
    width: int  # bytes of a value
    codec: str
    list_level: int  # the definition level of a list that is not null; -1: it is below no list
    max_level: int  # the definition level of a value
    # of some rows alone: pages that lie apart ahead of the others, and which of the rows of all pages to keep
    ahead: pa.Buffer | None = None
    kept: slice | None = None

    def moved(self, start: int, size_bytes: int) -> NestedLeaf | None:
        """The chunk where its file of so many bytes begins at ``start``; None if it ends behind the file."""
        is_within = self.size_bytes >= 0 and 0 <= self.start <= size_bytes - self.size_bytes
        return self._replace(start=start + self.start) if is_within else None


Fields = Sequence[tuple[str, pa.DataType] | None]
"""Name and type of columns; None for those of partitions."""


class StoredFooter:
    """A parsed footer with memoized lookups of chunks and bounds."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        self._stored: dict[tuple[int, int], _StoredColumns] = {}
        self._nested: dict[tuple[int, str], tuple[pa.DataType, tuple[NestedLeaf, ...] | None]] = {}
        self._pages: dict[tuple[int, int], ChunkPages] = {}

    @cached_property
    def as_file(self) -> pa.Buffer:
        """A file of the footer alone, for Arrow's datasets, which would read the footer from storage again."""
        out = pa.BufferOutputStream()
        self.metadata.write_metadata_file(out)
        return out.getvalue()

    @property
    def serialized_size(self) -> int:
        return int(self.metadata.serialized_size)

    @cached_property
    def group_bytes(self) -> list[int]:
        """(row groups,) the encoded bytes of each."""
        groups = map(self.metadata.row_group, range(self.metadata.num_row_groups))
        return [int(group.total_byte_size) for group in groups]

    def stored_columns(self, group: int, fields: Fields) -> _StoredColumns:
        """What is known of some columns in a row group; remembered for the ``fields`` that came last."""
        # Tasks share one object, and another dataset can read the same columns as other types. The entry keeps its
        # fields alive, so that no others can have their id.
        found = self._stored.get((group, id(fields)))
        if found is None or found.fields is not fields:
            if len(self._stored) >= _KNOWN_FIELDS * self.metadata.num_row_groups:
                self._stored.clear()
            found = self._stored[group, id(fields)] = _StoredColumns(self, group, fields)
        return found

    def nested(self, group: int, name: str, kind: pa.DataType) -> tuple[NestedLeaf, ...] | None:
        """The leaf chunks of a nested column that Arrow would read as ``kind``; None if C does not support them."""
        found = self._nested.get((group, name))
        if found is None or found[0] != kind:
            known, leaves = self._columns.get(name, (None, range(0)))
            same = known is not None and (known == kind or restrict_type(known, kind) == kind)
            needed = _needed_leaves(known, kind, leaves) if same else ()
            nested = self._find_nested(group, name, kind, needed) if same else None
            found = self._nested[group, name] = (kind, nested)
        return found[1]

    def _find_nested(
        self, group: int, name: str, kind: pa.DataType, leaves: Sequence[int]
    ) -> tuple[NestedLeaf, ...] | None:
        """The ``leaves`` of a list of numbers or structs, or of a struct, of which ``kind`` can lack fields."""
        field, row_group = self._arrow_schema.field(name), self.metadata.row_group(group)
        list_level, levels, inner = -1, int(field.nullable), kind
        if is_list(inner):
            list_level, inner = levels, inner.value_field
            levels, inner = levels + 1 + inner.nullable, inner.type
        children = list(inner.fields) if pt.is_struct(inner) else None
        kinds = [inner] if children is None else [child.type for child in children]
        if len(kinds) != len(leaves) or (children is None and list_level < 0):
            return None
        found = []
        for at, (number, kind) in enumerate(zip(leaves, kinds, strict=True)):
            column, leaf = row_group.column(number), self.metadata.schema.column(number)
            stored = _find_stored(column, leaf, kind)
            below = levels + (children[at].nullable if children is not None else 0)
            fits = (leaf.max_repetition_level, leaf.max_definition_level) == (int(list_level >= 0), below)
            if stored is None or stored[0] != NUMBERS or column.compression not in CODECS or not fits:
                return None
            start = _first_page(column)
            if start <= 0 or column.num_values < row_group.num_rows:
                return None
            found.append(
                NestedLeaf(
                    number=number,
                    start=start,
                    size_bytes=column.total_compressed_size,
                    rows=row_group.num_rows,
                    values=column.num_values,
                    width=stored[1],
                    codec=column.compression,
                    list_level=list_level,
                    max_level=below,
                )
            )
        return tuple(found)

    def bounds(self, group: int, name: str, kind: pa.DataType) -> tuple[int, int] | None:
        """Minimum and maximum of an integer column, from the footer's statistics."""
        known, leaves = self._columns.get(name, (None, range(0)))
        if known != kind or len(leaves) != 1:
            return None
        return integer_bounds(self.metadata.row_group(group).column(leaves.start).statistics)

    @cached_property
    def structs(self) -> FooterStructs:
        return FooterStructs(self.metadata)

    def pages(self, group: int, leaf: int, *, is_mapped: bool) -> ChunkPages | None:
        """The pages of a leaf's chunk, remembered as far as they are known; None if the footer contradicts itself."""
        found = self._pages.get((group, leaf))
        if found is None:
            # not counted page by page: other threads find pages meanwhile
            if len(self._pages) >= _KNOWN_PAGES:
                self._pages.clear()
            chunk = self._find_stored_chunk(group, leaf)
            if chunk is None:
                return None
            found = ChunkPages(chunk) if not is_mapped else ChunkPages(chunk, piece_bytes=None)
            # of two threads, the first one's is kept
            found = self._pages.setdefault((group, leaf), found)
        return found

    def _find_stored_chunk(self, group: int, leaf: int) -> StoredChunk | None:
        row_group = self.metadata.row_group(group)
        column, repetition = row_group.column(leaf), self.metadata.schema.column(leaf).max_repetition_level
        start, size_bytes = _first_page(column), column.total_compressed_size
        if start <= 0 or size_bytes <= 0 or (not repetition and column.num_values != row_group.num_rows):
            return None
        index = self.structs.column(group, leaf).offset_index if column.has_offset_index else None
        return StoredChunk(
            start, start + size_bytes, row_group.num_rows, repetition, column.compression, index
        )

    def leaves(self, name: str) -> tuple[pa.DataType, range] | None:
        """The Arrow type of a column, and the indices of its leaves; None if there is no such column."""
        return self._columns.get(name)

    def ranges(self, groups: Iterable[int], paths: Sequence[str]) -> list[tuple[int, int]]:
        """Byte ranges of the chunks of some leaves."""
        wanted = frozenset(paths)
        numbers = [number for number, path in enumerate(self._paths) if path in wanted]
        chunks = (self.metadata.row_group(group).column(number) for group in groups for number in numbers)
        starts = ((_first_page(chunk), chunk.total_compressed_size) for chunk in chunks)
        return [(start, start + size) for start, size in starts]

    @cached_property
    def _leaves(self) -> dict[str, tuple[int, bool]]:
        """The index of each flat column, and whether it is optional."""
        schema = self.metadata.schema
        leaves = ((number, schema.column(number)) for number in range(len(schema)))
        return {
            leaf.path: (number, leaf.max_definition_level == 1)
            for number, leaf in leaves
            # a dot can be part of the name or separate a path, so such columns are excluded
            if "." not in leaf.path and leaf.max_repetition_level == 0 and leaf.max_definition_level <= 1
        }

    @cached_property
    def _columns(self) -> dict[str, tuple[pa.DataType, range]]:
        """The Arrow type of each column, and the indices of its leaves."""
        schema = self._arrow_schema
        return dict(zip(schema.names, zip(schema.types, leaf_indices(schema), strict=True), strict=True))

    @cached_property
    def _arrow_schema(self) -> pa.Schema:
        return find_arrow_schema(self.metadata)

    @cached_property
    def _paths(self) -> list[str]:
        schema = self.metadata.schema
        return [schema.column(number).path for number in range(len(schema))]

    def stored_type(self, name: str) -> pa.DataType | None:
        """The type that Arrow reads a column as; None if the file lacks it."""
        known = self._columns.get(name)
        return None if known is None else known[0]

    def leaf_paths(self, fields: Iterable[pa.Field[Any]]) -> list[str]:
        """The paths of the leaves that columns of these types need; of columns that the file lacks, none."""
        found: list[str] = []
        for field in fields:
            known, leaves = self._columns.get(field.name, (None, range(0)))
            if known is not None:
                found += [self._paths[number] for number in _needed_leaves(known, field.type, leaves)]
        return found

    def has_int96(self, name: str) -> bool:
        """Whether a column holds timestamps of Impala and old versions of Spark, which state no unit."""
        schema, (_, leaves) = self.metadata.schema, self._columns.get(name, (None, range(0)))
        return any(schema.column(number).physical_type == "INT96" for number in leaves)

    def chunk(self, group: int, name: str, kind: pa.DataType) -> Chunk | None:
        """The chunk of a column that Arrow would read as ``kind``; None if the C decoder does not support it."""
        if name not in self._leaves or self._columns.get(name, (None,))[0] != kind:
            return None
        number, optional = self._leaves[name]
        row_group = self.metadata.row_group(group)
        column = row_group.column(number)
        stored = _find_stored(column, self.metadata.schema.column(number), kind)
        codec = CODECS.get(column.compression)
        if stored is None or codec is None:
            return None
        if not column.num_values or column.num_values != row_group.num_rows:
            return None
        start, size_bytes = _first_page(column), column.total_compressed_size
        if start <= 0:
            return None
        raw_bytes = column.total_uncompressed_size
        # memory for text is allocated by this size before any page is read; small pages have larger headers than text
        if stored[0] == TEXT and not 0 <= raw_bytes <= codec.max_ratio * size_bytes:
            return None
        return Chunk(
            start=start,
            size_bytes=size_bytes,
            rows=row_group.num_rows,
            kind=stored[0],
            width=stored[1],
            codec=column.compression,
            optional=optional,
            has_nulls=optional and _may_have_nulls(column),
            raw_bytes=raw_bytes,
        )


class _StoredColumns:
    """What a footer says of some columns in a row group, computed once; columns that are not stored have nothing."""

    def __init__(self, footer: StoredFooter, group: int, fields: Fields) -> None:
        self._footer, self._group, self.fields = footer, group, fields

    @property
    def chunks(self) -> list[Chunk | None]:
        """`StoredFooter.chunk` of each column."""
        has_text = any(field is not None and offset_width(field[1]) for field in self.fields)
        return self._kept_chunks if has_text else self._find_chunks()

    @cached_property
    def _kept_chunks(self) -> list[Chunk | None]:
        """Kept where text is among the columns: each part asks for its chunks.

        Otherwise the table suffices. It is one object to the garbage collector, and chunks are tens of thousands.
        """
        return self._find_chunks()

    def _find_chunks(self) -> list[Chunk | None]:
        found = self._footer.chunk
        return [None if field is None else found(self._group, *field) for field in self.fields]

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """The same as a `chunk_table`."""
        return chunk_table(self.chunks)

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """`StoredFooter.bounds` of each column that can be packed, as a `bounds_table`."""
        found = self._footer.bounds
        return bounds_table(
            [
                None if field is None or not is_packable(field[1]) else found(self._group, *field)
                for field in self.fields
            ]
        )


def _needed_leaves(stored: pa.DataType, kind: pa.DataType, leaves: Sequence[int]) -> Sequence[int]:
    """The leaves of a stored column that ``kind`` needs: those of the fields that both have, at least one."""
    if stored == kind or len(leaves) == 1:
        return leaves
    needed = [leaf for leaf, is_needed in zip(leaves, _mark_leaves(stored, kind), strict=True) if is_needed]
    # the levels of any leaf tell which structs and lists are null
    return needed or leaves[:1]


def _mark_leaves(stored: Any, kind: Any) -> list[bool]:
    """(leaves,) whether a leaf of a stored type belongs to a field that ``kind`` has."""
    if pt.is_struct(stored) and pt.is_struct(kind):
        marks: list[bool] = []
        for field in stored:
            place = kind.get_field_index(field.name)
            own = leaf_types(field.type)
            if place < 0:
                marks += [False] * len(own)
            else:
                below = _mark_leaves(field.type, kind.field(place).type)
                # without a common field below, one leaf tells which of its structs are null
                marks += below if any(below) else [True] + [False] * (len(own) - 1)
        return marks
    if is_list(stored) and is_list(kind):
        return _mark_leaves(stored.value_type, kind.value_type)
    return [True] * len(leaf_types(stored))


def _first_page(column: Any) -> int:
    """The offset at which Arrow starts to read, also for corrupt footers."""
    data, dictionary = int(column.data_page_offset), int(column.dictionary_page_offset or 0)
    return dictionary if 0 < dictionary < data else data


def _find_stored(column: Any, leaf: Any, kind: pa.DataType) -> tuple[int, int] | None:
    """What a chunk holds and the bytes of a stored value, if C can decode it; None if Arrow converts values."""
    stored = column.physical_type
    if stored == "BYTE_ARRAY":
        return (TEXT, 0) if offset_width(kind) else None
    if stored == "BOOLEAN":
        return (BOOLEANS, 0) if pt.is_boolean(kind) else None
    if stored == "FIXED_LEN_BYTE_ARRAY":
        width = int(leaf.length)
        return (DECIMALS, width) if pt.is_decimal128(kind) and 0 < width <= _DECIMAL_BYTES else None
    width = _WIDTHS.get(stored, 0)
    return (NUMBERS, width) if width and _is_unconverted(kind) and width * 8 == kind.bit_width else None


def _is_unconverted(kind: pa.DataType) -> bool:
    """Whether Arrow copies the stored values of this type unchanged."""
    if pt.is_timestamp(kind):
        return bool(kind.unit != "s")
    return any(
        check(kind) for check in (pt.is_integer, pt.is_float32, pt.is_float64, pt.is_date32, pt.is_time64)
    )


def _may_have_nulls(column: Any) -> bool:
    statistics = column.statistics
    return statistics is None or not statistics.has_null_count or statistics.null_count > 0

"""Small Parquet files of some pages of one leaf column, for Arrow to read: Arrow itself reads chunks as a whole.

The file has the schema of the original one, but of each nested column only the path to the leaf: pages of different
leaves hold different rows, so each leaf is read alone and `assemble` puts the leaves together. The leaf's type follows
from the same Arrow schema, in which a list of fixed size or a map becomes a list (`prune`).
"""

from __future__ import annotations

import base64
import io
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from windrow.core.cached_properties import cached_property
from windrow.io.catalog.value_sizes import leaf_types, storage_type
from windrow.io.parquet.thrift_compact import (
    BINARY,
    I32,
    I64,
    LIST,
    STRUCT,
    Reader,
    Struct,
    ThriftError,
    dump,
)

_MAGIC = b"PAR1"
# rows that are decoded at a time
_BATCH_ROWS = 2**16
# row groups whose structs are kept
_KNOWN_GROUPS = 4
# an index of a million pages is smaller
_MAX_INDEX_BYTES = 2**26
_ARROW_SCHEMA = b"ARROW:schema"
# of FileMetaData, SchemaElement, RowGroup, ColumnChunk and ColumnMetaData
_VERSION, _SCHEMA, _FILE_ROWS, _ROW_GROUPS, _KEY_VALUES, _CREATED_BY = range(1, 7)
_TYPE, _TYPE_BYTES, _REPETITION, _NAME, _CHILDREN, _CONVERTED, _LOGICAL = 1, 2, 3, 4, 5, 6, 10
_COLUMNS, _GROUP_BYTES, _GROUP_ROWS = 1, 2, 3
_FILE_OFFSET, _META, _INDEX_OFFSET, _INDEX_BYTES = 2, 3, 4, 5
_VALUES, _RAW_BYTES, _STORED_BYTES, _DATA_OFFSET, _DICTIONARY_OFFSET = 5, 6, 7, 9, 11
# what of a chunk's metadata holds for any of its pages: type, encodings, path, codec
_KEPT = (1, 2, 3, 4)
_MAPS, _AS_LIST, _REPEATED = (1, 2), (I32, 3), 2
# a repeated group of this name is a struct, even if it has one field
_STRUCT_NAME = b"array"
# bytes of a value by physical type; those of text are its length, those of fixed length are stated in the schema
_WIDTHS = (1, 4, 8, 12, 4, 8, 4)


class _ColumnStruct(NamedTuple):
    """What is kept of the struct of a column chunk."""

    kept: Struct  # what of its metadata holds for any of its pages
    offset_index: tuple[int, int] | None  # its offset and bytes

    @classmethod
    def of(cls, column: Struct) -> _ColumnStruct:
        metadata = column[_META][1]
        offset, size_bytes = (column.get(number, (I64, 0))[1] for number in (_INDEX_OFFSET, _INDEX_BYTES))
        is_stated = offset > 0 and 0 < size_bytes <= _MAX_INDEX_BYTES
        kept = {number: metadata[number] for number in _KEPT if number in metadata}
        return cls(kept, (offset, size_bytes) if is_stated else None)


class FooterStructs:
    """The structs of a footer that Arrow does not expose, from what it parsed."""

    def __init__(self, metadata: Any) -> None:
        self._metadata = metadata
        self._lock = threading.Lock()
        # where the row groups begin that have been passed, and the next one
        self._starts: list[int] = []
        self._groups: OrderedDict[int, list[_ColumnStruct]] = OrderedDict()

    def column(self, group: int, leaf: int) -> _ColumnStruct:
        """A column chunk of a row group."""
        with self._lock:
            if group not in self._groups:
                self._read_group(group)
                if len(self._groups) > _KNOWN_GROUPS:
                    self._groups.popitem(last=False)
            return self._groups[group][leaf]

    def _read_group(self, group: int) -> None:
        """Parse a row group, and skip those before it that have not been passed yet."""
        if not self._starts:
            self._starts.append(self._find_first_group())
        for number in range(min(group, len(self._starts) - 1), group + 1):
            reader = Reader(self._raw, self._starts[number])
            struct = reader.struct()
            if number + 1 == len(self._starts):
                self._starts.append(reader.at)
        self._groups[group] = [_ColumnStruct.of(column) for column in struct[_COLUMNS][1][1]]

    def _find_first_group(self) -> int:
        reader = Reader(self._raw)
        for number, kind in reader.fields():
            if number == _ROW_GROUPS:
                reader.list_header()
                return reader.at
            reader.value(kind)
        raise ThriftError("the footer has no row groups")

    @property
    def has_arrow_schema(self) -> bool:
        return _ARROW_SCHEMA in (self._metadata.metadata or {})

    @property
    def created_by(self) -> bytes:
        return str(self._metadata.created_by or "").encode()

    @cached_property
    def paths(self) -> list[list[Struct]]:
        """By leaf, the schema elements from its column to itself, each with a single child."""
        reader = Reader(self._raw)
        for number, kind in reader.fields():
            if number == _SCHEMA:
                _, elements = reader.value(kind)
                remaining = iter(elements)
                root = next(remaining)
                return [path for _ in range(_count_children(root)) for path in _find_paths(remaining)]
            reader.value(kind)
        return []

    @cached_property
    def _raw(self) -> bytes:
        sink = io.BytesIO()
        self._metadata.write_metadata_file(sink)
        return sink.getvalue()[len(_MAGIC) : -8]


def _count_children(element: Struct) -> int:
    return int(element.get(_CHILDREN, (I32, 0))[1])


def _find_paths(elements: Iterator[Struct]) -> list[list[Struct]]:
    """The paths to the leaves of the next element."""
    element = next(elements)
    count = _count_children(element)
    if not count:
        return [[element]]
    below = [path for _ in range(count) for path in _find_paths(elements)]
    alone = {**element, _CHILDREN: (I32, 1)}
    is_map = element.get(_CONVERTED, (I32, None))[1] in _MAPS or 2 in element.get(_LOGICAL, (STRUCT, {}))[1]
    if is_map:
        alone[_CONVERTED] = _AS_LIST
        alone.pop(_LOGICAL, None)
    found = [[alone, *path] for path in below]
    if is_map or count == 1:
        return [_rename_pairs(path) for path in found] if is_map else found
    if element.get(_REPETITION, (I32, 0))[1] == _REPEATED:
        alone[_NAME] = BINARY, _STRUCT_NAME
    return found


def _rename_pairs(path: list[Struct]) -> list[Struct]:
    """The path below a map, whose repeated group is no struct."""
    first, pairs, *rest = path
    return [first, {**pairs, _NAME: (BINARY, b"list")}, *rest]


def read_leaf(
    structs: FooterStructs,
    group: int,
    leaf: int,
    kind: pa.DataType,
    pages: Sequence[bytes | pa.Buffer],
    *,
    rows: int,
    values: int,
    dictionary_bytes: int,
    kept: range,
    **options: Any,
) -> pa.ChunkedArray:
    """Read the ``kept`` ones of a leaf's rows from its pages; the first is the dictionary if ``dictionary_bytes`` > 0.

    ``kind`` is what `prune` returns for it; ``options`` are of ``pyarrow.parquet.ParquetFile``.
    Raises what Arrow raises for corrupt pages.
    """
    import pyarrow.parquet as pq

    path, stored_bytes = structs.paths[leaf], sum(map(len, pages))
    start = len(_MAGIC)
    metadata = dict(structs.column(group, leaf).kept)
    metadata[3] = LIST, (BINARY, [element[_NAME][1] for element in path])
    sizes = {_VALUES: values, _RAW_BYTES: stored_bytes, _STORED_BYTES: stored_bytes}
    sizes[_DATA_OFFSET] = start + dictionary_bytes
    if dictionary_bytes:
        sizes[_DICTIONARY_OFFSET] = start
    metadata |= {number: (I64, size) for number, size in sizes.items()}
    chunk: Struct = {_FILE_OFFSET: (I64, 0), _META: (STRUCT, metadata)}
    # one row more than there should be, so that more rows than stated are noticed too
    row_group: Struct = {
        _COLUMNS: (LIST, (STRUCT, [chunk])),
        _GROUP_BYTES: (I64, stored_bytes),
        _GROUP_ROWS: (I64, rows + 1),
    }
    root: Struct = {_NAME: (BINARY, b"schema"), _CHILDREN: (I32, 1)}
    file: Struct = {
        _VERSION: (I32, 2),
        _SCHEMA: (LIST, (STRUCT, [root, *path])),
        _FILE_ROWS: (I64, rows + 1),
        _ROW_GROUPS: (LIST, (STRUCT, [row_group])),
        _CREATED_BY: (BINARY, structs.created_by),
    }
    if structs.has_arrow_schema:
        schema = pa.schema([pa.field(path[0][_NAME][1].decode(), kind)])
        stored = base64.b64encode(schema.serialize())
        file[_KEY_VALUES] = LIST, (STRUCT, [{1: (BINARY, _ARROW_SCHEMA), 2: (BINARY, stored)}])
    footer = dump(file)
    content = b"".join([_MAGIC, *pages, footer, len(footer).to_bytes(4, "little"), _MAGIC])
    stored = pq.ParquetFile(pa.BufferReader(content), page_checksum_verification=True, **options)
    # some rows at a time: pages can hold many times those that are kept
    found, at = [], 0
    for batch in stored.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
        column = batch.column(0)
        first, stop = max(kept.start - at, 0), min(kept.stop - at, len(column))
        if first < stop:
            some = column.slice(first, stop - first)
            # a slice would keep the others alive
            found.append(some if len(some) == len(column) else pa.concat_arrays([some, column.slice(0, 0)]))
        at += len(column)
    if at != rows:
        raise pa.ArrowInvalid(f"pages hold {at} rows where {rows} are stated")
    whole = pa.chunked_array(found, stored.schema_arrow.field(0).type)
    if whole.type != kind:
        raise pa.ArrowInvalid(f"pages hold {whole.type} where {kind} is expected")
    return whole


def page_of_one_value(structs: FooterStructs, leaf: int, definition: int, repetition: int) -> bytes:
    """A page with one row that has one value, for a page that begins within a row: its first values join that row."""
    element = structs.paths[leaf][-1]
    kind = element[_TYPE][1]
    value = bytes(element[_TYPE_BYTES][1] if kind == len(_WIDTHS) else _WIDTHS[kind])
    repetitions = b"\x02\x00" if repetition else b""
    definitions = b"\x02" + bytes([definition]) if definition else b""
    body = repetitions + definitions + value
    header: Struct = {5: (I32, len(definitions)), 6: (I32, len(repetitions)), 7: (2, False)}
    # a value, no null, a row, plain
    header |= {number: (I32, count) for number, count in ((1, 1), (2, 0), (3, 1), (4, 0))}
    page: Struct = {1: (I32, 3), 2: (I32, len(body)), 3: (I32, len(body)), 8: (STRUCT, header)}
    return dump(page) + body


def prune(kind: pa.DataType, leaf: int) -> pa.DataType:
    """The type of a column of which one leaf alone is stored.

    >>> kind = pa.struct([("a", pa.int8()), ("b", pa.map_(pa.string(), pa.int64()))])
    >>> prune(kind, 0), prune(kind, 2)
    (StructType(struct<a: int8>), StructType(struct<b: list<value: int64>>))
    """
    if isinstance(kind, pa.BaseExtensionType):
        is_plain = len(leaf_types(kind)) == 1 and not pt.is_nested(storage_type(kind))
        return kind if is_plain else prune(kind.storage_type, leaf)
    if pt.is_struct(kind):
        for field in kind:
            count = len(leaf_types(field.type))
            if leaf < count:
                return pa.struct([field.with_type(prune(field.type, leaf))])
            leaf -= count
    if pt.is_map(kind):
        keys = len(leaf_types(kind.key_type))
        field = kind.key_field if leaf < keys else kind.item_field
        return pa.list_(field.with_type(prune(field.type, leaf if leaf < keys else leaf - keys)))
    if pt.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(prune(kind.value_type, leaf)))
    if pt.is_list(kind) or pt.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(prune(kind.value_type, leaf)))
    return kind


def coarsen(kind: pa.DataType) -> pa.DataType:
    """The type in which timestamps of 96 bits, which Arrow reads as nanoseconds, are microseconds.

    >>> coarsen(pa.list_(pa.timestamp("ns")))
    ListType(list<item: timestamp[us]>)
    """
    if pt.is_timestamp(kind):
        return pa.timestamp("us", kind.tz)
    if pt.is_struct(kind):
        return pa.struct([field.with_type(coarsen(field.type)) for field in kind])
    if pt.is_map(kind):
        return pa.map_(
            kind.key_field.with_type(coarsen(kind.key_type)),
            kind.item_field.with_type(coarsen(kind.item_type)),
        )
    if pt.is_list(kind):
        return pa.list_(kind.value_field.with_type(coarsen(kind.value_type)))
    return kind


def assemble(kind: pa.DataType, leaves: Sequence[pa.Array]) -> pa.Array:
    """Put the leaves of a column together; each has the type that `prune` returns, and all have the same rows."""
    if leaves[0].type == kind and len(leaves) == 1:
        return leaves[0]
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, assemble(kind.storage_type, leaves))
    if pt.is_struct(kind):
        remaining = iter([leaf.field(0) for leaf in leaves])
        fields = [[next(remaining) for _ in leaf_types(field.type)] for field in kind]
        children = [assemble(field.type, some) for field, some in zip(kind, fields, strict=True)]
        return _wrap(kind, leaves[0], [], children)
    offsets = _offsets_of(leaves[0])
    if any(not np.array_equal(offsets, _offsets_of(leaf)) for leaf in leaves[1:]):
        raise pa.ArrowInvalid("the leaves of a list hold lists of different lengths")
    values = [leaf.values.slice(leaf.offsets[0].as_py(), int(offsets[-1])) for leaf in leaves]
    if pt.is_map(kind):
        keys = len(leaf_types(kind.key_type))
        pairs = [assemble(kind.key_type, values[:keys]), assemble(kind.item_type, values[keys:])]
        entries = pa.StructArray.from_arrays(pairs, fields=[kind.key_field, kind.item_field])
        return _wrap(kind, leaves[0], [pa.py_buffer(offsets.astype(np.int32))], [entries])
    items = assemble(kind.value_type, values)
    is_large = pt.is_large_list(kind)
    plain = pa.large_list(kind.value_field) if is_large else pa.list_(kind.value_field)
    stored = pa.py_buffer(offsets.astype(np.int64 if is_large else np.int32))
    lists = _wrap(plain, leaves[0], [stored], [items])
    return lists if plain == kind else lists.cast(kind)


def _offsets_of(lists: pa.Array) -> Any:
    """The offsets of lists, as if they were the first ones: those of a slice begin elsewhere."""
    offsets = lists.offsets.to_numpy()
    return offsets - offsets[0]


def _wrap(kind: pa.DataType, like: pa.Array, buffers: list[Any], children: list[pa.Array]) -> pa.Array:
    """An array with the same nulls as another."""
    nulls, valid = like.null_count, None
    if nulls:
        bits = np.packbits(like.is_valid().to_numpy(zero_copy_only=False), bitorder="little")
        valid = pa.py_buffer(bits)
    return pa.Array.from_buffers(kind, len(like), [valid, *buffers], nulls, children=children)

"""Parquet footers: reads them with one read, digests them, and summarises them for planning."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.errors import SourceError
from windrow.core.frame_of_reference import is_packable, join_ranges
from windrow.core.system.files import open_file, pread
from windrow.io.catalog.manifest import HASH_BYTES, FragmentFacts
from windrow.io.catalog.value_sizes import fixed_bits, leaf_indices, leaf_types, offset_bytes, storage_type
from windrow.io.parquet.footer_validation import check_footer
from windrow.io.storage.file_versions import Version, version_from_stat
from windrow.io.storage.filesystems import Files

_TAIL_BYTES = 64 * 1024
_TRAILER_BYTES = 8
# files of a dataset mostly have one schema, and each is remembered with a footer that has it
_REMEMBERED_SCHEMAS = 16
_ARROW_SCHEMA = b"ARROW:schema"
_UNKNOWN = -1
_INTEGERS = ("INT32", "INT64")
# for this encoding, Arrow's text byte count leaves out values that repeat the previous one
_DELTA_BYTE_ARRAY = "DELTA_BYTE_ARRAY"
_FIX = "name only Parquet files, or write this one again"
# what files of other formats begin with, and what reads them
_OTHER_FORMATS = {
    b"SQLite format 3\0": "an SQLite database, which windrow.read_sql() reads",
    b"\x89HDF\r\n": "an HDF5 file, which windrow.read_hdf5() reads",
    b"Obj\x01": "an Avro file, which windrow.read_avro() reads",
    b"ORC": "an ORC file, which windrow.read_orc() reads",
    b"ARROW1": "an Arrow file, which windrow.read_arrow() reads",
}
_HEAD_BYTES = 16


@dataclass(frozen=True)
class Footer:
    """A file's footer, and the file's version before it was read."""

    version: Version
    digest: bytes  # of the raw footer
    metadata: Any  # the parsed footer
    texts: NDArray[np.int64]  # (row groups, columns) text bytes of each chunk; -1 where none are stated


def read_footer(files: Files, path: str, name: str) -> Footer:
    """Read a footer, usually with a single read of the file's last 64 KiB.

    ``name`` names the file, or the block that is being read, in errors.
    """
    with files.mapped_errors(name):
        if not files.local:
            version = files.look(path)
            return parse_footer(files.open_remote(path, version.size_bytes).read_range, version, name)
        # not a memory map, which costs more than the read
        descriptor = open_file(files.path(path), os.O_RDONLY)
        try:
            version = version_from_stat(os.fstat(descriptor))
            return parse_footer(lambda start, stop: pread(descriptor, stop - start, start), version, name)
        finally:
            os.close(descriptor)


def parse_footer(read: Callable[[int, int], Any], version: Version, name: str) -> Footer:
    """Parse the footer of a file version, given a function that reads its ranges; errors begin with ``name``."""
    raw = _footer_bytes(read, version.size_bytes, name)
    metadata, texts = _parse(raw, name)
    return Footer(version, hashlib.sha256(raw).digest()[:HASH_BYTES], metadata, texts)


def _footer_bytes(read: Callable[[int, int], Any], size: int, name: str) -> bytes:
    tail = bytes(read(max(0, size - _TAIL_BYTES), size)) if size else b""
    if tail[-4:] == b"PARE":
        raise SourceError(
            f"{name} has an encrypted footer, which windrow does not support: write it unencrypted"
        )
    if len(tail) < _TRAILER_BYTES or tail[-4:] != b"PAR1":
        what = f"{name} is not a Parquet file, or is truncated ({size} bytes, not ending in 'PAR1')"
        head = bytes(read(0, min(size, _HEAD_BYTES))) if size else b""
        found = next((text for magic, text in _OTHER_FORMATS.items() if head.startswith(magic)), None)
        raise SourceError(f"{what}: {_FIX}" if found is None else f"{what}: it begins like {found}")
    needed = int.from_bytes(tail[-8:-4], "little") + _TRAILER_BYTES
    if needed > size:
        raise SourceError(
            f"{name} is truncated: its footer has {needed} bytes, the file {size}; write it again"
        )
    return tail[-needed:] if needed <= len(tail) else bytes(read(size - needed, size))


def _parse(raw: bytes, name: str) -> tuple[Any, NDArray[np.int64]]:
    import pyarrow.parquet as pq

    # half the time of read_metadata(), which looks up the nested fields of every column
    reader = pq.ParquetReader()
    try:
        reader.open(pa.BufferReader(raw))
        metadata = reader.metadata
    except (pa.ArrowException, OSError) as error:
        raise SourceError(f"{name} has no readable Parquet footer: {error}; {_FIX}") from error
    texts = np.full((metadata.num_row_groups, metadata.num_columns), _UNKNOWN, np.int64)
    problem = check_footer(raw[:-_TRAILER_BYTES], texts)
    if problem:
        raise SourceError(f"{name} has a corrupt Parquet footer: {problem}; {_FIX}")
    return metadata, texts


class _SchemaKey:
    """The part of a footer that determines its Arrow schema, as a key that takes microseconds."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        # ParquetSchema.equals() compares leaves only: it takes a map for a list of structs
        tree = repr(metadata.schema).partition("\n")[2]
        self._key = (tree, (metadata.metadata or {}).get(_ARROW_SCHEMA))

    def __hash__(self) -> int:
        return hash(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _SchemaKey) and self._key == other._key


class _Columns(NamedTuple):
    """What planning needs to know of a schema; one object for all files that have it."""

    schema: pa.Schema
    # the leaves of each column, and whether its values can be packed and have a fixed width
    fields: list[tuple[pa.Field[Any], range, bool, bool]]
    leaves: int


@lru_cache(_REMEMBERED_SCHEMAS)
def _find_columns(key: _SchemaKey) -> _Columns:
    import pyarrow.parquet as pq

    schema = pq.ParquetFile(pa.BufferReader(b""), metadata=key.metadata).schema_arrow
    leaves = leaf_indices(schema)
    fields = [
        (field, places, is_packable(field.type), fixed_bits(field.type) is not None)
        for field, places in zip(schema, leaves, strict=True)
    ]
    return _Columns(schema, fields, sum(map(len, leaves)))


def summarise(metadata: Any, texts: NDArray[np.int64], name: str) -> FragmentFacts:
    """Summarise a parsed footer for planning; ``texts`` as in `Footer`."""
    try:
        columns = _find_columns(_SchemaKey(metadata))
    except pa.ArrowException as error:
        raise SourceError(f"{name} has a column that Arrow cannot read: {error}; write it again") from error
    if columns.leaves != metadata.num_columns:
        raise SourceError(f"{name}: the Arrow schema and the Parquet columns differ; write the file again")
    groups = [metadata.row_group(place) for place in range(metadata.num_row_groups)]
    all_chunks = [[group.column(place) for place in range(columns.leaves)] for group in groups]
    for place, (group, chunks) in enumerate(zip(groups, all_chunks, strict=True)):
        # positions of all rows that are stated are computed before any page is read
        if any(chunk.num_values < group.num_rows for chunk in chunks):
            raise _too_many_rows(name, place, group.num_rows, chunks)
    variable, nulls, ranges = {}, {}, {}
    for field, places, is_packed, is_fixed in columns.fields:
        chunks = [row_group[places.start : places.stop] for row_group in all_chunks]
        # statistics of an empty row group are meaningless
        filled = [row_group for row_group, group in zip(chunks, groups, strict=True) if group.num_rows]
        chunk_statistics = [chunk.statistics for row_group in filled for chunk in row_group]
        nulls[field.name] = (
            metadata.num_rows if pt.is_null(field.type) else _count_nulls(field.type, chunk_statistics)
        )
        found = join_ranges(map(integer_bounds, chunk_statistics)) if is_packed else None
        if found is not None:
            ranges[field.name] = found
        if not is_fixed:
            stated = texts[:, places.start : places.stop].tolist()
            variable[field.name] = _sizes(field.type, [group.num_rows for group in groups], chunks, stated)
    encoded = [max(group.total_byte_size, 0) for group in groups]
    rows = [group.num_rows for group in groups]
    return FragmentFacts(columns.schema, rows, encoded, variable, nulls, ranges, _count_codecs(all_chunks))


def _too_many_rows(name: str, place: int, rows: int, chunks: list[Any]) -> SourceError:
    least = min(chunks, key=lambda chunk: chunk.num_values)
    return SourceError(
        f"{name} has a corrupt Parquet footer: row group {place} states {rows} rows, but only {least.num_values} "
        f"values of column {least.path_in_schema}; write the file again"
    )


def _count_codecs(chunks: list[list[Any]]) -> dict[str, int]:
    """Stored bytes by codec, of the first row group: writers choose codecs by column, for the whole file."""
    codecs: Counter[str] = Counter()
    for chunk in chunks[0] if chunks else []:
        codecs[chunk.compression.lower()] += chunk.total_compressed_size
    return codecs


def _count_nulls(kind: pa.DataType, chunk_statistics: list[Any]) -> int | None:
    """Nulls of a column; for nested columns only 0 or None, since leaves count inner nulls too."""
    total = 0
    for statistics in chunk_statistics:
        if statistics is None or not statistics.has_null_count:
            return None
        total += statistics.null_count
    return None if total and pt.is_nested(storage_type(kind)) else total


def _sizes(
    kind: pa.DataType, rows: list[int], chunks: list[list[Any]], texts: list[list[int]]
) -> tuple[list[int], list[int]]:
    """Encoded bytes, and an estimate of decoded bytes, by row group."""
    kinds = leaf_types(kind)
    own = 0 if len(kinds) == 1 and kinds[0] == storage_type(kind) else offset_bytes(kind)
    encoded = [sum(max(chunk.total_uncompressed_size, 0) for chunk in group) for group in chunks]
    estimates = [
        count * own + sum(map(_estimate, kinds, group, stated))
        for count, group, stated in zip(rows, chunks, texts, strict=True)
    ]
    return encoded, [max(pair) for pair in zip(encoded, estimates, strict=True)]


def _estimate(leaf: pa.DataType, chunk: Any, text_bytes: int) -> int:
    bits = fixed_bits(leaf)
    if bits is not None:
        return int(chunk.num_values * bits // 8)
    codes = chunk.num_values * offset_bytes(leaf)
    if pt.is_dictionary(leaf):
        return int(codes + chunk.total_uncompressed_size)
    if text_bytes >= 0 and _DELTA_BYTE_ARRAY not in chunk.encodings:
        return int(codes + text_bytes)
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return int(codes + chunk.total_uncompressed_size)
    # minimum and maximum in sort order are a cheap sample of value lengths
    mean = (len(statistics.min_raw) + len(statistics.max_raw)) / 2
    return int(codes + statistics.num_values * mean)


def integer_bounds(statistics: Any) -> tuple[int, int] | None:
    """Minimum and maximum of a chunk of integers from its statistics; None for other types or missing statistics."""
    if statistics is None or statistics.physical_type not in _INTEGERS or not statistics.has_min_max:
        return None
    low, high = int(statistics.min_raw), int(statistics.max_raw)
    # statistics of unsigned columns are in unsigned order, so low can exceed high
    return (low, high) if low <= high else None


def find_arrow_schema(metadata: Any) -> pa.Schema:
    """Return the Arrow schema of a parsed footer, in which the C++ reader gives the columns.

    ``metadata.schema.to_arrow_schema()`` differs for logical types such as UUID and JSON that no Arrow schema in the
    footer describes: it does not make extension types of them.
    """
    return _find_columns(_SchemaKey(metadata)).schema

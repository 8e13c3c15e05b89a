"""Avro files: records in blocks between sync markers, decoded by fastavro to the Arrow types of the file's schema.

A row group is the Avro blocks that begin in a range of 8 MiB of the file. The range's reader finds the first of them
by the sync marker, as Hadoop does, and each block states its records and bytes, so that rows are counted undecoded.

fastavro gets a schema without logical types: Arrow reads the stored numbers as times, which is faster and holds
times that Python does not have.
"""

from __future__ import annotations

import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.optional_dependencies import require
from windrow.io.catalog.manifest import FragmentFacts, estimate_variable
from windrow.io.catalog.schemas import MergedSchema
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.io.formats.avro_types import (
    UnsupportedAvroError,
    arrow_field,
    make_column,
    plain_schema,
)
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.file_encodings import decompress, decompress_snappy
from windrow.io.formats.row_group_format import (
    HEAD_BYTES,
    RowGroupFormat,
    corruption_is_invalid,
    group_by_bytes,
)
from windrow.io.formats.unreadable_columns import merge_readable, unreadable_field
from windrow.io.formats.varints import parse_varint
from windrow.io.storage.footer_cache import FooterCache

# Saved manifests count row groups of this size: `AvroFormat.options` names it.
RANGE_BYTES = 8 * 2**20
# read beyond the end of a range of a remote file, where its last block ends
_BEYOND_BYTES = 64 * 1024
# requested at once of a remote file, to read the headers of smaller blocks
_WINDOW_BYTES = 2**20
_SAMPLE_RECORDS = 100
_MAGIC = b"Obj\x01"
_SYNC_BYTES = 16
# two integers of 64 bits, 7 bits a byte
_BLOCK_HEADER_BYTES = 20
_HEADER: Mapping[str, Any] = {
    "type": "record",
    "name": "Header",
    "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "Magic", "size": len(_MAGIC)}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "Sync", "size": _SYNC_BYTES}},
    ],
}
_CODECS = {
    "null": None,
    "deflate": "deflate",
    "snappy": "snappy",
    "zstandard": "zstd",
    "bzip2": "bz2",
    "xz": "xz",
}
# headers of files, so that the blocks of a file parse them once per process
_HEADERS = FooterCache(max_footers=64, max_bytes=16 * 2**20)


class _Block(NamedTuple):
    """A block of records: how many, where it begins, and the range of its stored records."""

    records: int
    start: int
    begin: int
    end: int


@dataclass(frozen=True, eq=False)
class _Header:
    """The header of a file: its schema as fastavro parses it, its named types, and where the first block begins."""

    record: Mapping[str, Any]
    named: Mapping[str, Any]
    codec: str | None
    sync: bytes
    start: int

    @property
    def serialized_size(self) -> int:
        return self.start

    def schema(self) -> pa.Schema:
        """The columns of the file; a column that Arrow cannot hold is unreadable."""
        return pa.schema([self._field(part["name"], part["type"]) for part in self.record["fields"]])

    def _field(self, name: str, schema: Any) -> pa.Field[Any]:
        try:
            return arrow_field(name, schema, self.named, (self.record["name"],))
        except UnsupportedAvroError as error:
            return unreadable_field(name, error.kind, str(error))

    def select(self, names: Sequence[str]) -> Mapping[str, Any]:
        """The record with some of its fields, to decode only these."""
        fields = [part for part in self.record["fields"] if part["name"] in names]
        return {**self.record, "fields": fields}


@dataclass(frozen=True)
class AvroFormat(RowGroupFormat):
    """Files of records; row groups are the Avro blocks of ranges of some MiB."""

    corruption = (
        ValueError,
        EOFError,
        LookupError,
        OverflowError,
        RecursionError,
        NotImplementedError,
    )
    head_bytes = HEAD_BYTES

    name: str = "Avro"
    options: str = f"ranges of {RANGE_BYTES} bytes"

    def unify(self, schemas: Sequence[tuple[str, pa.Schema]]) -> MergedSchema:
        return merge_readable(schemas)

    def summarise(self, file: OpenFile) -> FragmentFacts:
        """Read the header of a file, the headers of all blocks, and some records, for the sizes of columns."""
        header = _read_header(file)
        rows, stored, first = [0], [0], None
        for block in _iter_blocks(file, header, header.start, file.size_bytes):
            first = first or (block if block.records else None)
            group = block.start // RANGE_BYTES
            missing = [0] * (group + 1 - len(rows))
            rows, stored = rows + missing, stored + missing
            rows[group] += block.records
            stored[group] += block.end - block.begin
        schema = header.schema()
        nulls = {each.name: None if each.nullable else 0 for each in schema}
        if first is None:
            return FragmentFacts(schema, [], [], estimate_variable(schema, [], {}), nulls)
        payload = _read_records(file, header, first)
        readable = [each for each in schema if each.metadata is None]
        wanted = header.select([each.name for each in readable])
        sample = _decode_rows(header, [(first.records, payload)], wanted, limit=_SAMPLE_RECORDS)
        means = {each.name: _mean_bytes(each, sample) for each in readable if fixed_bits(each.type) is None}
        variable = estimate_variable(schema, rows, means)
        growth = len(payload) / max(first.end - first.begin, 1)
        return FragmentFacts(schema, rows, [round(size * growth) for size in stored], variable, nulls)

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        load_fastavro()
        with corruption_is_invalid(self.corruption):
            begin, end = start * RANGE_BYTES, min(stop * RANGE_BYTES, file.size_bytes)
            file.fetch([(max(begin - _SYNC_BYTES, 0), min(end + _BEYOND_BYTES, file.size_bytes))])
            header = file.remembered(_HEADERS, _read_header)
            blocks = _iter_blocks(file, header, _find_block(file, header, begin, end), end)
            records = ((block.records, _read_records(file, header, block)) for block in blocks)
            for part in group_by_bytes(records, lambda each: len(each[1])):
                yield _decode(file.name, header, part, schema.names)


def load_fastavro() -> Any:
    """Import the library that decodes records; a PlanError if it is not installed."""
    return require("fastavro", "avro", "read_avro()")


def _read_header(file: OpenFile) -> _Header:
    """Read the header of a file; a ValueError if it has none, or one that says what cannot be read."""
    fastavro, size = load_fastavro(), HEAD_BYTES
    while True:
        head = io.BytesIO(file.read_range(0, min(size, file.size_bytes)))
        if head.getvalue()[: len(_MAGIC)] != _MAGIC:
            raise ValueError("is not an Avro file: it does not begin like one")
        try:
            stored = fastavro.schemaless_reader(head, _HEADER, None)
            break
        except (EOFError, IndexError) as error:
            if size >= file.size_bytes:
                raise ValueError("is truncated: its header ends early") from error
        size *= 4
    codec = stored["meta"].get("avro.codec", b"null").decode()
    if codec not in _CODECS:
        raise NotImplementedError(f"blocks of the codec {codec!r}; supported are {', '.join(_CODECS)}")
    named: dict[str, Any] = {}
    try:
        schema = fastavro.parse_schema(json.loads(stored["meta"]["avro.schema"]), named)
    except Exception as error:  # fastavro's errors have no base class
        raise ValueError(f"has no valid schema ({type(error).__name__}: {error})") from error
    if not isinstance(schema, dict) or schema["type"] not in ("record", "error"):
        raise ValueError("holds single values, and no records with columns: write each value as a record")
    return _Header(schema, named, _CODECS[codec], stored["sync"], head.tell())


def _iter_blocks(file: OpenFile, header: _Header, at: int, stop: int) -> Iterator[_Block]:
    """Iterate over the blocks that begin from byte ``at``, the first one, up to ``stop``; decodes none."""
    window, ahead = _Window(file), 0
    while at < stop:
        head = window.read(at, at + _BLOCK_HEADER_BYTES, ahead)
        try:
            records, place = _parse_long(head, 0)
            length, place = _parse_long(head, place)
        except IndexError:
            raise ValueError(f"is truncated: the block from byte {at:,} on ends early") from None
        begin, end = at + place, at + place + length
        if records < 0 or length < 0:
            raise ValueError(
                f"is corrupt: the block from byte {at:,} on states {records:,} records in {length:,} bytes"
            )
        if end + _SYNC_BYTES > file.size_bytes:
            raise ValueError(f"is truncated: the block from byte {at:,} on ends after the file")
        # small blocks of a remote file share requests
        ahead = _WINDOW_BYTES if length < _WINDOW_BYTES else 0
        if (
            bytes(window.read(end, end + _SYNC_BYTES + _BLOCK_HEADER_BYTES, ahead)[:_SYNC_BYTES])
            != header.sync
        ):
            raise ValueError(f"is corrupt: no sync marker follows the block from byte {at:,} on")
        yield _Block(records, at, begin, end)
        at = end + _SYNC_BYTES


def _parse_long(data: memoryview, at: int) -> tuple[int, int]:
    """As `parse_varint`, of an integer whose lowest bit is its sign."""
    value, at = parse_varint(data, at)
    return (value >> 1) ^ -(value & 1), at


class _Window:
    """Reads short ranges of a file in ascending order, each from memory if an earlier request got it too."""

    def __init__(self, file: OpenFile) -> None:
        self._file = file
        self._start, self._data = 0, memoryview(b"")

    def read(self, start: int, stop: int, ahead: int) -> memoryview:
        """The bytes of a range, as far as the file has them; a request for a remote file gets ``ahead`` bytes."""
        size = self._file.size_bytes
        stop = min(stop, size)
        if stop > self._start + len(self._data):
            end = stop if self._file.path is not None else max(stop, min(start + ahead, size))
            self._start, self._data = start, memoryview(self._file.read_range(start, end)).cast("B")
        return self._data[start - self._start : stop - self._start]


def _find_block(file: OpenFile, header: _Header, start: int, stop: int) -> int:
    """Where the first block of a range of bytes begins; the range's end if none begins in it."""
    if start <= header.start:
        return header.start
    lead = start - _SYNC_BYTES
    data = memoryview(file.read_range(lead, stop))
    for found in re.finditer(re.escape(header.sync), data):
        place = lead + found.end()
        try:
            next(_iter_blocks(file, header, place, place + 1))
        except ValueError:
            # values of records can hold the marker too, in all likelihood only on purpose
            continue
        return place
    return stop


def _read_records(file: OpenFile, header: _Header, block: _Block) -> memoryview:
    """The records of a block, decompressed; a ValueError if they cannot be."""
    data = file.read_range(block.begin, block.end)
    try:
        if header.codec == "deflate":
            return memoryview(zlib.decompressobj(-zlib.MAX_WBITS).decompress(data))
        if header.codec != "snappy":
            return memoryview(decompress(header.codec, data))
        records = decompress_snappy(data[:-4])
        if zlib.crc32(records) != int.from_bytes(data[-4:], "big"):
            raise ValueError("its checksum differs")
        return memoryview(records)
    except (OSError, ValueError, zlib.error) as error:
        raise ValueError(
            f"is corrupt: the block from byte {block.start:,} on cannot be decompressed ({error})"
        ) from error


def _decode(
    file: str, header: _Header, blocks: Sequence[tuple[int, memoryview]], names: Sequence[str]
) -> pa.Table:
    """Decode some columns of blocks, given as numbers of records and their bytes.

    A column that the file lacks is left out. A SourceError if a type does not hold all values, since these are intact.
    """
    wanted = header.select(names)
    if not wanted["fields"]:
        return pa.table({"": pa.nulls(sum(records for records, _ in blocks))})
    rows = _decode_rows(header, blocks, wanted)
    schema = pa.schema([each for each in header.schema() if each.name in names])
    columns = []
    for each in schema:
        try:
            columns.append(make_column([row[each.name] for row in rows], each.type))
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise SourceError(
                f"{file}: column {each.name!r} is read as {each.type}, which does not hold all values ({error}): "
                "exclude it with columns="
            ) from error
    return pa.table(columns, schema=schema)


def _decode_rows(
    header: _Header,
    blocks: Sequence[tuple[int, memoryview]],
    wanted: Mapping[str, Any],
    limit: int | None = None,
) -> list[Any]:
    """Decode the columns of a part of the record; the first ``limit`` records of each block alone."""
    fastavro, record = load_fastavro(), header.record
    if not wanted["fields"]:
        return []
    some = (
        None if len(wanted["fields"]) == len(record["fields"]) else plain_schema(wanted, header.named, set())
    )
    rows: list[Any] = []
    for block in fastavro.block_reader(_splice(fastavro, header, blocks), some):
        rows += islice(block, limit)
        if limit is None and block.bytes_.read(1):
            raise ValueError(f"is corrupt: a block holds more than its {block.num_records:,} records")
    return rows


def _mean_bytes(field: pa.Field[Any], rows: Sequence[Any]) -> float:
    """The mean bytes of a column's values in memory; 1 if its type does not hold all of them."""
    try:
        return max(make_column([row[field.name] for row in rows], field.type).nbytes, 1) / len(rows)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return 1


def _splice(fastavro: Any, header: _Header, blocks: Sequence[tuple[int, memoryview]]) -> io.BytesIO:
    """A file of some blocks, uncompressed and without logical types."""
    schema = json.dumps(plain_schema(header.record, header.named, set())).encode()
    head = {"magic": _MAGIC, "meta": {"avro.schema": schema, "avro.codec": b"null"}, "sync": header.sync}
    spliced = io.BytesIO()
    fastavro.schemaless_writer(spliced, _HEADER, head)
    for records, data in blocks:
        for number in (records, len(data)):
            fastavro.schemaless_writer(spliced, "long", number)
        spliced.write(data)
        spliced.write(header.sync)
    spliced.seek(0)
    return spliced

"""ORC files: each stripe is a row group, decoded by pyarrow; rows, nulls and sizes are those of the footer.

pyarrow does not tell the rows of stripes, nor where the columns of a stripe are, so the messages of the footer that
do are parsed here; see "ORC Specification v1". Arrow decompresses the footer itself.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from windrow.core.errors import PlanError, SourceError
from windrow.io.catalog.manifest import FragmentFacts
from windrow.io.catalog.value_sizes import fixed_bits, offset_bytes
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.file_encodings import decompress, decompress_snappy
from windrow.io.formats.row_group_format import RowGroupFormat, corruption_is_invalid
from windrow.io.formats.varints import parse_varint
from windrow.io.storage.footer_cache import FooterCache

_MAGIC = b"ORC"
# the postscript's length is the last byte, and a footer rarely is longer
_TAIL_BYTES = 64 * 1024
# estimated ratio of encoding and compression, where statistics do not state sizes
_GROWTH = 3
# streams of a stripe with indices and Bloom filters, which are not read
_INDEX_STREAMS = (6, 7, 8)
# part of Arrow's message for timestamps that are intact
_OUT_OF_RANGE = "out of range for nanosecond"
_FOOTERS = FooterCache(max_footers=64, max_bytes=16 * 2**20)

# Fields of a message of Protocol Buffers, by their number.
_Message = dict[int, list[Any]]


def _parse(data: bytes | memoryview) -> _Message:
    """Parse a message: integers, 8 and 4 bytes as they are, and the bytes of strings and nested messages."""
    fields: _Message = {}
    view, at = memoryview(data), 0
    while at < len(view):
        key, at = parse_varint(view, at)
        number, wire = key >> 3, key & 7
        value: Any
        if wire == 0:
            value, at = parse_varint(view, at)
        elif wire in (1, 2, 5):
            size, at = parse_varint(view, at) if wire == 2 else (8 if wire == 1 else 4, at)
            value, at = view[at : at + size], at + size
            if at > len(view):
                raise ValueError(f"has a footer whose field {number} ends after its message")
        else:
            raise ValueError(f"has a footer with a field of the unknown type {wire}")
        fields.setdefault(number, []).append(value)
    return fields


def _parse_varints(data: memoryview) -> list[int]:
    values, at = [], 0
    while at < len(data):
        value, at = parse_varint(data, at)
        values.append(value)
    return values


@dataclass(frozen=True)
class _Stripe:
    """A stripe: its range in the file, where its footer begins, and its rows."""

    start: int
    footer: int
    stop: int
    rows: int


@dataclass(frozen=True, eq=False)
class _Footer:
    """The footer of a file: its columns, stripes and statistics.

    ``children`` and ``statistics`` have an entry for each column of ORC, depth-first; the first one is the row.
    """

    schema: pa.Schema
    codec: int
    stripes: Sequence[_Stripe]
    children: Sequence[Sequence[int]]
    statistics: Sequence[_Message]
    rows: int
    serialized_size: int

    def columns(self, names: Sequence[str]) -> set[int]:
        """The numbers of some columns of the file, with all that they contain."""
        chosen = {0}
        for name, number in zip(self.schema.names, self.children[0], strict=True):
            waiting = [number] if name in names else []
            while waiting:
                number = waiting.pop()
                chosen.add(number)
                waiting += self.children[number]
        return chosen


def load_orc() -> Any:
    """Import pyarrow's ORC; a PlanError if pyarrow was built without it."""
    try:
        import pyarrow.orc as orc
    except ImportError as error:
        raise PlanError(
            f"read_orc() needs pyarrow with ORC, and this build lacks it ({error}): pip install pyarrow"
        ) from error
    return orc


def _read_footer(file: OpenFile) -> _Footer:
    """Read the footer of a file; a ValueError if it is not an ORC file, or its footer is corrupt."""
    size = file.size_bytes
    file.fetch([(0, min(len(_MAGIC), size)), (max(size - _TAIL_BYTES, 0), size)])
    if bytes(file.read_range(0, min(len(_MAGIC), size))) != _MAGIC:
        raise ValueError("is not an ORC file: it does not begin like one")
    try:
        opened = load_orc().ORCFile(file.file)
        schema, tail = opened.schema, _parse(opened.reader.serialized_file_tail())
    except (pa.ArrowException, OSError) as error:
        if file.failed:
            raise
        raise ValueError(f"is truncated or corrupt: it has no footer that can be read ({error})") from error
    postscript, footer = (_parse(tail[number][0]) for number in (1, 2))
    stripes = [_find_stripe(_parse(stripe), size) for stripe in footer.get(3, [])]
    kinds = [_parse(kind) for kind in footer[4]]
    children = [[each for part in kind.get(2, []) for each in _numbers(part)] for kind in kinds]
    if len(children[0]) != len(schema) or any(
        not place < each < len(kinds) for place, some in enumerate(children) for each in some
    ):
        raise ValueError("is corrupt: its footer states columns that do not fit together")
    statistics = [_parse(each) for each in footer.get(7, [])]
    (rows,) = footer.get(6, [0])
    if sum(stripe.rows for stripe in stripes) != rows:
        raise ValueError(f"is corrupt: its footer states {rows:,} rows, and its stripes other numbers")
    return _Footer(
        schema.remove_metadata(),
        postscript.get(2, [0])[0],
        stripes,
        children,
        statistics if len(statistics) == len(kinds) else (),
        rows,
        opened.file_footer_length,
    )


def _numbers(part: Any) -> list[int]:
    """Repeated integers, packed or not."""
    return [part] if isinstance(part, int) else _parse_varints(part)


def _find_stripe(stripe: _Message, size_bytes: int) -> _Stripe:
    start, index, data, footer, rows = (stripe.get(number, [0])[0] for number in range(1, 6))
    begin = start + index + data
    if begin + footer > size_bytes:
        raise ValueError("is truncated or corrupt: its footer states a stripe that ends after the file")
    return _Stripe(start, begin, begin + footer, rows)


@dataclass(frozen=True)
class OrcFormat(RowGroupFormat):
    """Files of stripes, each of which is a row group."""

    corruption = (ValueError, LookupError, NotImplementedError, zlib.error)

    name: str = "ORC"
    options: str = ""

    def summarise(self, file: OpenFile) -> FragmentFacts:
        footer = _read_footer(file)
        rows = [stripe.rows for stripe in footer.stripes]
        sizes = {
            field.name: _share(_weigh(footer, field.type, number), footer)
            for field, number in zip(footer.schema, footer.children[0], strict=True)
        }
        variable = {
            field.name: (sizes[field.name], sizes[field.name])
            for field in footer.schema
            if fixed_bits(field.type) is None
        }
        encoded = [sum(column[place] for column in sizes.values()) for place in range(len(rows))]
        nulls = {
            name: footer.rows - footer.statistics[number].get(1, [0])[0] if footer.statistics else None
            for name, number in zip(footer.schema.names, footer.children[0], strict=True)
        }
        return FragmentFacts(footer.schema, rows, encoded, variable, nulls)

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        orc = load_orc()
        with corruption_is_invalid(self.corruption):
            footer = file.remembered(_FOOTERS, _read_footer)
            stripes = footer.stripes[start:stop]
            chosen = [field for field in schema if field.name in footer.schema.names]
            if not chosen:
                yield from (pa.table({"": pa.nulls(stripe.rows)}) for stripe in stripes)
                return
            _fetch(file, footer, stripes, [field.name for field in chosen])
            opened = orc.ORCFile(file.file)
            names = _name_fields(chosen, footer.schema)
            for number in range(start, stop):
                stripe = _read_stripe(file, opened, number, names)
                yield pa.Table.from_batches([stripe])


def _read_stripe(file: OpenFile, opened: Any, number: int, names: Sequence[str] | None) -> pa.RecordBatch:
    """Read a stripe; ``ArrowInvalid`` if it is corrupt."""
    try:
        return opened.read_stripe(number, columns=names)
    except pa.ArrowException as error:
        if _OUT_OF_RANGE in str(error):
            raise SourceError(
                f"{file.name}, stripe {number}: Arrow reads timestamps as nanoseconds, which hold the years 1677 to "
                f"2262 ({error}): exclude the column with columns=, or write it as dates or numbers"
            ) from error
        if type(error) is not pa.ArrowException:
            raise
        # exceptions of liborc are of no class of Arrow's
        raise pa.ArrowInvalid(str(error)) from error


def _name_fields(chosen: Sequence[pa.Field[Any]], stored: pa.Schema) -> list[str] | None:
    """The names by which liborc selects columns and fields of structs; None: all columns."""

    def walk(field: pa.Field[Any], kind: pa.DataType, path: str) -> Iterator[str]:
        known = {part.name: part.type for part in kind} if pt.is_struct(kind) else {}
        parts = [part for part in field.type if part.name in known] if pt.is_struct(field.type) else []
        if not parts or len(parts) == len(known):
            yield path
        for part in parts if len(parts) < len(known) else []:
            yield from walk(part, known[part.name], f"{path}.{part.name}")

    names = [name for field in chosen for name in walk(field, stored.field(field.name).type, field.name)]
    # liborc takes a point in a name for a path
    return None if any("." in name for name in stored.names) else names


def _weigh(footer: _Footer, kind: pa.DataType, number: int) -> int:
    """Estimate the bytes in memory of a column of a file."""
    if not footer.statistics:
        bits = fixed_bits(kind)
        stored = sum(stripe.stop - stripe.start for stripe in footer.stripes)
        return footer.rows * bits // 8 if bits is not None else _GROWTH * stored // len(footer.schema)

    def count(number: int) -> int:
        return int(footer.statistics[number].get(1, [0])[0])

    def weigh(kind: pa.DataType, number: int, slots: int) -> int:
        bits, children = fixed_bits(kind), footer.children[number]
        if bits is not None:
            return slots * bits // 8
        if pt.is_struct(kind):
            return sum(weigh(part.type, child, slots) for part, child in zip(kind, children, strict=True))
        own = slots * offset_bytes(kind)
        if pt.is_list(kind):
            return own + weigh(kind.value_type, children[0], count(children[0]))
        if pt.is_map(kind):
            parts = zip((kind.key_type, kind.item_type), children, strict=True)
            return own + sum(weigh(part, child, count(children[0])) for part, child in parts)
        return own + _count_text(footer.statistics[number])

    return weigh(kind, number, footer.rows)


def _count_text(statistics: _Message) -> int:
    """The bytes of all strings or bytes of a column."""
    for number, total in ((4, 3), (8, 1)):
        for each in statistics.get(number, []):
            encoded = _parse(each).get(total, [0])[0]
            return (encoded >> 1) ^ -(encoded & 1)
    return 0


def _share(size_bytes: int, footer: _Footer) -> list[int]:
    """Divide the bytes of a column among stripes, by their rows."""
    return [size_bytes * stripe.rows // max(footer.rows, 1) for stripe in footer.stripes]


def _fetch(file: OpenFile, footer: _Footer, stripes: Sequence[_Stripe], names: Sequence[str]) -> None:
    """Prefetch from object storage what some columns of stripes need; Arrow requests little at a time."""
    if file.path is not None:
        return
    spans = [(stripe.start, stripe.stop) for stripe in stripes]
    decompress_footer = _CODECS.get(footer.codec)
    if len(names) < len(footer.schema) and decompress_footer is not None:
        file.fetch([(stripe.footer, stripe.stop) for stripe in stripes])
        columns = footer.columns(names)
        spans = []
        for stripe in stripes:
            stored = memoryview(file.read_range(stripe.footer, stripe.stop)).cast("B")
            at = stripe.start
            for stream in _parse(decompress_footer(stored)).get(1, []):
                kind, column, length = (_parse(stream).get(number, [0])[0] for number in (1, 2, 3))
                if column in columns and kind not in _INDEX_STREAMS:
                    spans.append((at, at + length))
                at += length
    file.fetch(spans)


def _decompress_chunks(decompress_chunk: Callable[[Any], Any], stored: memoryview) -> bytes:
    """Decompress chunks, each of which begins with its length and whether it is stored as it is."""
    parts, at = [], 0
    while at < len(stored):
        header = int.from_bytes(stored[at : at + 3], "little")
        chunk = stored[at + 3 : at + 3 + (header >> 1)]
        parts.append(bytes(chunk) if header & 1 else bytes(decompress_chunk(chunk)))
        at += 3 + (header >> 1)
    return b"".join(parts)


def _inflate(chunk: memoryview) -> bytes:
    return zlib.decompress(chunk, -zlib.MAX_WBITS)


# by their numbers in postscripts; where a footer has another codec, whole stripes are fetched
_CODECS: dict[int, Callable[[memoryview], bytes]] = {
    0: bytes,
    1: partial(_decompress_chunks, _inflate),
    2: partial(_decompress_chunks, lambda chunk: decompress_snappy(pa.py_buffer(chunk))),
    5: partial(_decompress_chunks, lambda chunk: decompress("zstd", pa.py_buffer(chunk))),
}

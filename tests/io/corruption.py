"""Parquet files of many kinds, and functions that corrupt them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

__all__ = [
    "CORRUPTION",
    "GROUP_ROWS",
    "KINDS",
    "ROWS",
    "Corruption",
    "Kind",
    "Whole",
    "flip_in_checked_page",
    "move_chunk",
    "whole",
]

ROWS, GROUP_ROWS = 200, 50


@dataclass(frozen=True)
class Kind:
    """A kind of file: its columns and the writer's options."""

    columns: tuple[str, ...]
    options: tuple[tuple[str, Any], ...] = ()
    nullable: bool = True


_DRAWN: dict[str, Callable[[np.random.Generator], pa.Array]] = {
    "int": lambda rng: pa.array(rng.integers(-(2**62), 2**62, ROWS)),
    "few": lambda rng: pa.array(rng.integers(0, 9, ROWS).astype(np.int32)),
    "float": lambda rng: pa.array(rng.random(ROWS)),
    "bool": lambda rng: pa.array(rng.integers(0, 2, ROWS).astype(bool)),
    "time": lambda rng: pa.array(rng.integers(0, 2**40, ROWS), pa.timestamp("us")),
    "nulls": lambda rng: pa.array(rng.integers(0, 99, ROWS), mask=rng.random(ROWS) < 0.3),
    "text": lambda rng: pa.array([f"text {n}" * (n % 4) for n in rng.integers(0, 30, ROWS).tolist()]),
    "text nulls": lambda rng: pa.array(
        [f"{n}" if n % 3 else None for n in rng.integers(0, 30, ROWS).tolist()]
    ),
    "list": lambda rng: pa.array([list(range(n)) if n else None for n in rng.integers(0, 5, ROWS).tolist()]),
    "struct": lambda rng: pa.array([{"a": n, "b": f"{n}"} for n in rng.integers(0, 5, ROWS).tolist()]),
    # without floats, since NaN would make equal lists differ
    "numbers": lambda rng: pa.array([{"a": n, "b": 2 * n} for n in rng.integers(0, 99, ROWS).tolist()]),
    "pairs": lambda rng: pa.array(
        [[{"a": n, "b": -n}] * (n % 4) if n % 5 else None for n in rng.integers(0, 99, ROWS).tolist()]
    ),
    "vector": lambda rng: pa.FixedSizeListArray.from_arrays(
        rng.integers(0, 99, 4 * ROWS).astype(np.int32), 4
    ),
    "decimal": lambda rng: pa.array(rng.integers(0, 99, ROWS)).cast(pa.decimal128(21, 2)),
    "fixed": lambda rng: pa.array([rng.bytes(5) for _ in range(ROWS)], pa.binary(5)),
}
_PLAIN = ("int", "few", "float", "time")
_ALL = tuple(_DRAWN)
_NESTED = ("list", "numbers", "pairs", "vector")
_NULLABLE = ("bool", "nulls", "text nulls", "decimal")


def _kind(columns: tuple[str, ...], nullable: bool = True, **options: Any) -> Kind:
    return Kind(columns, tuple(options.items()), nullable)


KINDS = {
    "plain": _kind(_PLAIN, False, compression="none", use_dictionary=False),
    "plain snappy": _kind(_PLAIN, True, compression="snappy", use_dictionary=False),
    "dictionary": _kind(_PLAIN, True, compression="none"),
    "dictionary snappy": _kind(_PLAIN, False, compression="snappy", data_page_size=100, write_batch_size=10),
    "second version": _kind((*_PLAIN, "nulls", "text"), True, compression="snappy", data_page_version="2.0"),
    "all zstd": _kind(_ALL, True, compression="zstd"),
    "all plain": _kind(_ALL, True, compression="none", use_dictionary=False, data_page_version="2.0"),
    "page index": _kind(_ALL, True, compression="snappy", write_page_index=True, data_page_size=100),
    "nested": _kind(_NESTED, True, compression="snappy", data_page_size=100, write_batch_size=10),
    "nested plain": _kind(_NESTED, True, compression="none", use_dictionary=False, data_page_version="2.0"),
    "nullable zstd": _kind(_NULLABLE, True, compression="zstd", data_page_size=100, write_batch_size=10),
    "nullable lz4": _kind(
        _NULLABLE, True, compression="lz4", data_page_version="2.0", write_statistics=False
    ),
    "split": _kind(("float",), True, use_dictionary=False, column_encoding="BYTE_STREAM_SPLIT"),
    "delta": _kind(
        ("int", "few", "nulls"), True, use_dictionary=False, column_encoding="DELTA_BINARY_PACKED"
    ),
    "delta text": _kind(("text",), True, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY"),
    "checksums plain": _kind(
        _PLAIN,
        False,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
        write_statistics=False,
    ),
    "checksums": _kind(_ALL, True, compression="snappy", write_page_checksum=True, write_page_index=True),
}


@dataclass(frozen=True)
class Whole:
    """An intact file: bytes, rows, ranges of its column chunks, offset and numbers of its footer."""

    content: bytes
    table: pa.Table
    chunks: tuple[tuple[int, int], ...]
    footer: int
    numbers: tuple[int, ...]


@cache
def whole(name: str) -> Whole:
    """Write the file of a kind."""
    kind = KINDS[name]
    rng = np.random.Generator(np.random.PCG64(3))
    fields = [(column, _DRAWN[column](rng)) for column in kind.columns]
    schema = pa.schema([pa.field(column, array.type, kind.nullable) for column, array in fields])
    table = pa.table([array for _, array in fields], schema=schema)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=GROUP_ROWS, **dict(kind.options))
    content = sink.getvalue().to_pybytes()
    metadata = pq.read_metadata(pa.BufferReader(content))
    chunks, numbers = [], {metadata.num_rows, metadata.num_columns}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        numbers |= {row_group.num_rows, row_group.total_byte_size}
        for place in range(row_group.num_columns):
            column = row_group.column(place)
            start = column.dictionary_page_offset or column.data_page_offset
            chunks.append((start, start + column.total_compressed_size))
            numbers |= {start, column.data_page_offset, column.num_values}
            numbers |= {column.total_compressed_size, column.total_uncompressed_size}
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    found = pq.ParquetFile(pa.BufferReader(content)).read()
    return Whole(content, found, tuple(chunks), footer, tuple(sorted(numbers)))


# --- corruption: (bytes, whole, random numbers) -> bytes


def _flip(content: bytearray, rng: np.random.Generator, start: int, stop: int) -> bytes:
    for _ in range(int(rng.integers(1, 5))):
        content[int(rng.integers(start, stop))] ^= 1 << int(rng.integers(8))
    return bytes(content)


def flip_anywhere(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    return _flip(content, rng, 0, len(content))


def flip_in_chunk(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    return _flip(content, rng, *file.chunks[rng.integers(len(file.chunks))])


def flip_in_page_header(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    start, stop = file.chunks[rng.integers(len(file.chunks))]
    return _flip(content, rng, start, min(start + 30, stop))


def flip_in_footer(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    return _flip(content, rng, file.footer, len(content))


def overwrite(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content)))
    length = min(int(rng.integers(1, 200)), len(content) - start)
    fill = int(rng.integers(3))
    content[start : start + length] = rng.bytes(length) if fill == 2 else bytes([fill * 255]) * length
    return bytes(content)


def truncate(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    return bytes(content[: int(rng.integers(len(content)))])


def cut_out(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(file.footer))
    del content[start : start + int(rng.integers(1, 300))]
    return bytes(content)


def swap_chunks(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    (a, a_stop), (b, b_stop) = (file.chunks[rng.integers(len(file.chunks))] for _ in range(2))
    length = min(a_stop - a, b_stop - b)
    content[a : a + length], content[b : b + length] = content[b : b + length], content[a : a + length]
    return bytes(content)


def _varint(number: int) -> bytes:
    zigzag = ((number << 1) ^ (number >> 63)) & (2**64 - 1)
    out = bytearray()
    while zigzag > 127:
        out.append(zigzag & 127 | 128)
        zigzag >>= 7
    return bytes([*out, zigzag])


def lie(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    """Replace a count, size or offset in the footer with a wrong number."""
    footer = bytes(content[file.footer : -8])
    for _ in range(int(rng.integers(1, 3))):
        true = _varint(file.numbers[rng.integers(len(file.numbers))])
        places = [at for at in range(len(footer)) if footer.startswith(true, at)]
        if places:
            at = places[rng.integers(len(places))]
            lies = [
                0,
                -1,
                1,
                49,
                51,
                2**31 - 1,
                2**31,
                2**32,
                2**40,
                2**62,
                -(2**62),
                int(rng.integers(9_999)),
            ]
            footer = footer[:at] + _varint(lies[rng.integers(len(lies))]) + footer[at + len(true) :]
    return _with_footer(file, footer)


def move_chunk(file: Whole, group: int, column: int, offset: int) -> bytes:
    """Change the offset of a column chunk's pages in the footer."""
    metadata = pq.read_metadata(pa.BufferReader(file.content))
    true = _varint(metadata.row_group(group).column(column).data_page_offset)
    footer = file.content[file.footer : -8]
    assert footer.count(true) in (1, 2), "the offset, perhaps that of the row group too"
    return _with_footer(file, footer.replace(true, _varint(offset)))


def _with_footer(file: Whole, footer: bytes) -> bytes:
    return file.content[: file.footer] + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def lie_in_page_header(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    """Write random bytes or huge numbers into the beginning of a chunk."""
    start, _ = file.chunks[rng.integers(len(file.chunks))]
    at, length = start + int(rng.integers(20)), int(rng.integers(1, 6))
    content[at : at + length] = rng.bytes(length) if rng.integers(2) else b"\xff\xff\xff\xff\x0f"[-length:]
    return bytes(content)


def flip_in_checked_page(content: bytearray, file: Whole, rng: np.random.Generator) -> bytes:
    """Flip bits in the last bytes of a chunk, which the checksum of its last page covers."""
    start, stop = file.chunks[rng.integers(len(file.chunks))]
    return _flip(content, rng, max(stop - 8, start), stop)


Corruption = Callable[[bytearray, Whole, np.random.Generator], bytes]

CORRUPTION: tuple[Corruption, ...] = (
    flip_anywhere,
    flip_in_chunk,
    flip_in_page_header,
    flip_in_footer,
    overwrite,
    truncate,
    cut_out,
    swap_chunks,
    lie,
    lie_in_page_header,
    flip_in_checked_page,
)

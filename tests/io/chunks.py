"""Column chunks for tests of the decoder: as pyarrow writes them, and pages made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windrow.io import decoding

__all__ = [
    "BY_DICTIONARY",
    "DATA",
    "DICTIONARY",
    "INDEX",
    "PLAIN",
    "needs_library",
    "page",
    "varint",
    "write",
]

needs_library = pytest.mark.skipif(decoding.LIBRARY is None, reason="built without a C compiler")
DATA, INDEX, DICTIONARY = 0, 1, 2
PLAIN, BY_DICTIONARY = 0, 8


def write(path: Path, column: pa.Array, *, nullable: bool = True, **options: Any) -> pq.FileMetaData:
    schema = pa.schema([pa.field("x", column.type, nullable=nullable)])
    options.setdefault("store_schema", True)
    pq.write_table(pa.table([column], schema=schema), path, **options)
    return pq.read_metadata(path)


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def page(kind: int, values: int, encoding: int, body: bytes, raw_bytes: int | None = None) -> bytes:
    raw = len(body) if raw_bytes is None else raw_bytes
    numbers = [b"\x15" + varint(2 * number) for number in (kind, raw, len(body), values, encoding)]
    struct = bytes([{DATA: 2, INDEX: 3, DICTIONARY: 4}[kind] << 4 | 12])
    # both levels by runs, though there are none
    levels = b"\x15\x06\x15\x06" if kind == DATA else b""
    return b"".join([*numbers[:3], struct, *numbers[3:], levels, b"\0\0", body])

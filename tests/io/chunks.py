"""Column chunks for tests of the decoder: written by pyarrow, or with handmade pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from windrow.io.parquet import decoder_library

__all__ = [
    "BY_DICTIONARY",
    "DATA",
    "DICTIONARY",
    "INDEX",
    "PLAIN",
    "WRITING",
    "needs_library",
    "page",
    "varint",
    "write",
]

needs_library = pytest.mark.skipif(decoder_library.LIBRARY is None, reason="built without a C compiler")
DATA, INDEX, DICTIONARY = 0, 1, 2
PLAIN, BY_DICTIONARY = 0, 8
# options with which `write` writes chunks that the decoder supports
WRITING: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "nullable": st.booleans(),
        "compression": st.sampled_from(["none", "snappy"]),
        "use_dictionary": st.booleans(),
        "data_page_version": st.sampled_from(["1.0", "2.0"]),
        "data_page_size": st.sampled_from([64, 1_000, 2**20]),
        # beyond a small limit, a chunk that starts with a dictionary continues plain
        "dictionary_pagesize_limit": st.sampled_from([512, 2**20]),
        "write_batch_size": st.sampled_from([1, 7, 1_024]),
        "row_group_size": st.sampled_from([100, 1_000, 5_000]),
        "write_statistics": st.booleans(),
    }
)


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
    # run-length encoding for both levels, though there are none
    levels = b"\x15\x06\x15\x06" if kind == DATA else b""
    return b"".join([*numbers[:3], struct, *numbers[3:], levels, b"\0\0", body])

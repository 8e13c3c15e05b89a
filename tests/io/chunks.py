"""Column chunks for tests of the decoder: written by pyarrow, or with handmade pages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st

from windrow.io.parquet import decoder_library
from windrow.io.parquet.chunks import Chunk
from windrow.io.parquet.decoder_library import CODECS
from windrow.io.parquet.stored_chunks import NestedLeaf

__all__ = [
    "BIT_RUNS",
    "BY_DICTIONARY",
    "COMPRESSIONS",
    "DATA",
    "DELTA",
    "DICTIONARY",
    "INDEX",
    "PLAIN",
    "SPLIT",
    "WRITING",
    "lay_out",
    "needs_library",
    "page",
    "page_v2",
    "run_of",
    "runs",
    "sized",
    "varint",
    "words",
    "write",
]

T = TypeVar("T", Chunk, NestedLeaf)
needs_library = pytest.mark.skipif(decoder_library.LIBRARY is None, reason="built without a C compiler")
DATA, INDEX, DICTIONARY = 0, 1, 2
PLAIN, BIT_RUNS, DELTA, BY_DICTIONARY, SPLIT = 0, 3, 5, 8, 9
# what can be decompressed here, as pyarrow names it
COMPRESSIONS = ["none", "snappy", *(name for name in ("zstd", "lz4") if name.upper() in CODECS)]
# options with which `write` writes chunks that the decoder supports
WRITING: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "nullable": st.booleans(),
        "compression": st.sampled_from(COMPRESSIONS),
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


def page_v2(
    values: int, nulls: int, rows: int, rep: bytes, definition: bytes, body: bytes, **wrong: int
) -> bytes:
    """A plain, uncompressed data page of the second version; ``wrong`` are sizes of levels to state instead."""
    sizes = {"def_bytes": len(definition), "rep_bytes": len(rep)} | wrong
    stored = rep + definition + body
    head = b"".join(b"\x15" + varint(2 * number) for number in (3, len(stored), len(stored)))
    inner = (values, nulls, rows, PLAIN, sizes["def_bytes"], sizes["rep_bytes"])
    return head + b"\x5c" + b"".join(b"\x15" + varint(2 * number) for number in inner) + b"\x12\0\0" + stored


def run_of(value: int, count: int) -> bytes:
    """A run of one level or index of at most 8 bits."""
    return varint(count << 1) + bytes([value])


def runs(width: int, *values: int) -> bytes:
    """Bit-packed levels or indices."""
    groups = -(-len(values) // 8)
    bits = sum(value << width * at for at, value in enumerate(values))
    return varint(groups << 1 | 1) + bits.to_bytes(width * groups, "little")


def words(*numbers: int) -> bytes:
    """Plain numbers of eight bytes."""
    return np.array(numbers, np.int64).tobytes()


def lay_out(chunks: Sequence[tuple[T, bytes]], before: bytes = b"") -> tuple[list[T], bytes]:
    """Append the pages of chunks to a file; returns the chunks with their places, and the content of the file."""
    placed = []
    for chunk, pages in chunks:
        placed.append(chunk._replace(start=len(before), size_bytes=len(pages)))
        before += pages
    return placed, before


def sized(content: bytes) -> bytes:
    """Levels of a page of the first version, after their length."""
    return len(content).to_bytes(4, "little") + content

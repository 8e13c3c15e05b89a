"""Lists that go on in the next page, as some writers make them: pieces of a row group end with whole lists."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.io.files import cut_source, open_parquet
from windrow.core.buffer_pool import BufferPool
from windrow.io.parquet.thrift_compact import I32, I64, LIST, STRUCT, Reader, Struct, dump

ROWS, VALUES_IN_PAGE = 400, 4_000
# of FileMetaData, RowGroup, ColumnChunk and ColumnMetaData
_GROUPS, _COLUMNS, _META, _INDEX_OFFSET, _INDEX_BYTES = 4, 1, 3, 4, 5


def make_lists() -> pa.Table:
    draws = np.random.default_rng(0)
    offsets = np.append(0, np.cumsum(draws.integers(150, 350, ROWS))).astype(np.int32)
    values = draws.integers(0, 2**60, offsets[-1])
    return pa.table({"x": pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))})


def encode_varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def encode_page(levels: Any, values: Any, second: bool) -> bytes:
    """A page with one repetition level a value, uncompressed and plain."""
    bits = np.packbits(levels, bitorder="little").tobytes()
    repetitions = encode_varint(len(bits) << 1 | 1) + bits
    definitions = encode_varint(len(levels) << 1) + b"\x03"
    if second:
        body = repetitions + definitions + values.tobytes()
        counts = [len(levels), 0, int((levels == 0).sum()), 0, len(definitions), len(repetitions)]
        header: Struct = {number: (I32, count) for number, count in enumerate(counts, 1)}
        kind, place = 3, 8
        header[7] = (2, False)
    else:
        parts = [len(repetitions).to_bytes(4, "little"), repetitions, len(definitions).to_bytes(4, "little")]
        body = b"".join([*parts, definitions, values.tobytes()])
        header = {1: (I32, len(levels)), 2: (I32, 0), 3: (I32, 3), 4: (I32, 3)}
        kind, place = 0, 5
    page: Struct = {1: (I32, kind), 2: (I32, len(body)), 3: (I32, len(body)), place: (STRUCT, header)}
    return dump(page) + body


def write_split_lists(path: Path, table: pa.Table, *, second: bool, index: bool) -> None:
    """Write a file whose pages have so many values each, wherever lists end."""
    sink = io.BytesIO()
    pq.write_table(table, sink, use_dictionary=False, compression="none", write_statistics=False)
    reference = sink.getvalue()
    length = int.from_bytes(reference[-8:-4], "little")
    footer = Reader(reference[-8 - length : -8]).struct()
    lists = table.column("x").chunk(0)
    values = lists.values.to_numpy()
    levels = np.ones(len(values), np.uint8)
    levels[lists.offsets.to_numpy()[:-1]] = 0
    content, places = bytearray(b"PAR1"), []
    for start in range(0, len(values), VALUES_IN_PAGE):
        some = slice(start, start + VALUES_IN_PAGE)
        page = encode_page(levels[some], values[some], second)
        row = int((levels[:start] == 0).sum())
        places.append({1: (I64, len(content)), 2: (I32, len(page)), 3: (I64, row)})
        content += page
    group = footer[_GROUPS][1][1][0]
    chunk = group[_COLUMNS][1][1][0]
    metadata = chunk[_META][1]
    # sizes and statistics of the pages that were there
    for number in (11, 12, 13, 14, 15, 16):
        metadata.pop(number, None)
    size = len(content) - 4
    metadata |= {5: (I64, len(values)), 6: (I64, size), 7: (I64, size), 9: (I64, 4)}
    if index:
        encoded = dump({1: (LIST, (STRUCT, places))})
        chunk |= {_INDEX_OFFSET: (I64, len(content)), _INDEX_BYTES: (I32, len(encoded))}
        content += encoded
    raw = dump(footer)
    path.write_bytes(bytes(content) + raw + len(raw).to_bytes(4, "little") + b"PAR1")


@pytest.mark.parametrize(("second", "index"), [(False, False), (False, True), (True, False), (True, True)])
def test_lists_are_whole(second: bool, index: bool, tmp_path: Path) -> None:
    table = make_lists()
    write_split_lists(tmp_path / "x.parquet", table, second=second, index=index)
    assert pq.read_table(tmp_path / "x.parquet").equals(table), "the file is what Arrow reads"
    # a row each, so that one of them is the row that the first page does not end with
    source = cut_source(open_parquet(tmp_path / "x.parquet"), 1)
    assert len(source.blocks.rows) > ROWS // 4
    read, decoded = [], []
    for address in source.addresses(range(len(source.blocks.rows))):
        for part in source.reader.parts(address):
            read.append(part.select([0]))
            found = part.decode_nested(0, BufferPool(2**24))  # type: ignore[attr-defined]
            decoded.append(read[-1] if found is None else pa.table([found], schema=table.schema))
    assert pa.concat_tables(read).combine_chunks().equals(table)
    assert pa.concat_tables(decoded).combine_chunks().equals(table)

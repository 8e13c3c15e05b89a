"""Chunks that are decoded straight to their rows hold what Arrow reads; all others are declined."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from windrow.io import decoding
from windrow.io.decoding import Chunk, StoredFooter, decode

needs_library = pytest.mark.skipif(decoding.LIBRARY is None, reason="built without a C compiler")
TYPES = [
    pa.int32(),
    pa.int64(),
    pa.uint32(),
    pa.uint64(),
    pa.float32(),
    pa.float64(),
    pa.date32(),
    pa.timestamp("us"),
    pa.timestamp("ms", tz="UTC"),
    pa.time64("us"),
]


def test_the_library_is_built_where_there_is_a_compiler() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    assert decoding.LIBRARY is not None


def draw_words(kind: pa.DataType, rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
    words = rng.integers(0, 2**31 - 1, max(1, distinct))[rng.integers(0, max(1, distinct), rows)]
    memory = words.astype(np.int32 if kind.bit_width == 32 else np.int64)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(memory)])


def write(path: Path, column: pa.Array, *, nullable: bool = True, **options: Any) -> pq.FileMetaData:
    schema = pa.schema([pa.field("x", column.type, nullable=nullable)])
    options.setdefault("store_schema", True)
    pq.write_table(pa.table([column], schema=schema), path, **options)
    return pq.read_metadata(path)


def decode_group(
    path: Path, metadata: Any, group: int, kind: pa.DataType, targets: NDArray[np.uint32]
) -> NDArray[np.uint8] | None:
    """The decoded words in target order; None where the chunk does not qualify or is declined."""
    chunk = StoredFooter(metadata).chunk(group, "x", kind)
    if chunk is None:
        return None
    out = np.full(chunk.width * len(targets), 0xAB, np.uint8)
    with pa.memory_map(str(path)) as file:
        return out if decode(file, chunk, targets, out) else None


def words_of(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    array = column.combine_chunks()
    width = array.type.bit_width // 8
    return np.frombuffer(array.buffers()[1], np.uint8)[
        array.offset * width : (array.offset + len(array)) * width
    ]


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_value_goes_where_its_target_says(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(TYPES))
    rows = data.draw(st.integers(1, 3_000))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    column = draw_words(kind, rows, data.draw(st.sampled_from([1, 2, 3, 200, 10_000])), rng)
    path = tmp_path / "x.parquet"
    metadata = write(
        path,
        column,
        nullable=data.draw(st.booleans()),
        compression=data.draw(st.sampled_from(["none", "snappy"])),
        use_dictionary=data.draw(st.booleans()),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=data.draw(st.sampled_from([64, 1_000, 2**20])),
        dictionary_pagesize_limit=data.draw(st.sampled_from([512, 2**20])),
        write_batch_size=data.draw(st.sampled_from([1, 7, 1_024])),
        row_group_size=data.draw(st.sampled_from([100, 1_000, 5_000])),
        write_statistics=data.draw(st.booleans()),
    )
    for group in range(metadata.num_row_groups):
        expected = words_of(pq.ParquetFile(path).read_row_group(group).column(0))
        width = kind.bit_width // 8
        targets = rng.permutation(len(expected) // width).astype(np.uint32)
        found = decode_group(path, metadata, group, kind, targets)
        assert found is not None
        assert np.array_equal(found.reshape(-1, width)[targets], expected.reshape(-1, width))


DECLINED: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "nulls": (pa.array([1, None, 3], pa.int64()), {}),
    "nulls without statistics": (pa.array([1, None, 3], pa.int64()), {"write_statistics": False}),
    "nulls, second version": (
        pa.array([1, None, 3], pa.int64()),
        {"write_statistics": False, "data_page_version": "2.0"},
    ),
    "zstd": (pa.array([1, 2, 3], pa.int64()), {"compression": "zstd"}),
    "checksums": (pa.array([1, 2, 3], pa.int64()), {"write_page_checksum": True}),
    "delta": (
        pa.array([1, 2, 3], pa.int64()),
        {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
    ),
    "byte stream split": (
        pa.array([1.0, 2, 3], pa.float64()),
        {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    ),
    "narrow": (pa.array([1, 2, 3], pa.int16()), {}),
    "boolean": (pa.array([True, False, True]), {}),
    "text": (pa.array(["a", "b", "c"]), {}),
    "decimal": (pa.array([1, 2, 3], pa.decimal128(9, 2)), {"store_decimal_as_integer": True}),
    "nanoseconds of 96 bits": (
        pa.array([1, 2, 3], pa.timestamp("ns")),
        {"use_deprecated_int96_timestamps": True},
    ),
    "seconds": (pa.array([1, 2, 3], pa.timestamp("s")), {}),
    "list": (pa.array([[1], [2, 3], []], pa.list_(pa.int64())), {}),
    "struct": (pa.array([{"x": 1}, {"x": 2}, {"x": 3}]), {}),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), {}),
}


@needs_library
@pytest.mark.parametrize("case", DECLINED)
def test_everything_else_is_left_to_arrow(tmp_path: Path, case: str) -> None:
    column, options = DECLINED[case]
    path = tmp_path / "x.parquet"
    metadata = write(path, column, **options)
    assert decode_group(path, metadata, 0, column.type, np.arange(3, dtype=np.uint32)) is None


@needs_library
def test_a_column_that_is_to_be_cast_is_left_to_arrow(tmp_path: Path) -> None:
    metadata = write(tmp_path / "x.parquet", pa.array([1, 2, 3], pa.int32()))
    footer = StoredFooter(metadata)
    assert footer.chunk(0, "x", pa.int64()) is None
    assert footer.chunk(0, "absent", pa.int32()) is None
    assert footer.chunk(0, "x", pa.int32()) is not None


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damaged_pages_end_nothing_but_the_attempt(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever the bytes are, nothing outside of ``out`` is written."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = data.draw(st.integers(1, 500))
    path = tmp_path / "x.parquet"
    metadata = write(
        path,
        draw_words(pa.int64(), rows, data.draw(st.sampled_from([1, 50, 1_000])), rng),
        compression=data.draw(st.sampled_from(["none", "snappy"])),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=data.draw(st.sampled_from([64, 2**20])),
    )
    chunk = StoredFooter(metadata).chunk(0, "x", pa.int64())
    assert chunk is not None
    stored = bytearray(path.read_bytes())
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, chunk.size_bytes - 1), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        stored[chunk.start + at] = byte
    size_bytes = data.draw(st.integers(0, chunk.size_bytes))
    cut = Chunk(chunk.start, size_bytes, rows, 8, chunk.snappy, chunk.optional)
    guarded = np.full(8 * rows + 128, 0xAB, np.uint8)
    targets = rng.permutation(rows).astype(np.uint32)
    decode(pa.BufferReader(bytes(stored)), cut, targets, guarded[64:-64])
    assert (guarded[:64] == 0xAB).all()
    assert (guarded[-64:] == 0xAB).all()

"""The C decoder scatters the values that Arrow reads, and declines all other chunks."""

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

from tests.io.chunks import (
    WRITING,
    needs_library,
    write,
)
from tests.io.parquet.decoding import decode_column, decode_columns
from tests.library_versions import ARROW
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.frame_of_reference import Packing
from windrow.io.parquet import decoder_library
from windrow.io.parquet.chunks import IS_STORED, Chunk
from windrow.io.parquet.stored_chunks import StoredFooter

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


def test_library_is_built_if_a_compiler_is_available() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    assert decoder_library.LIBRARY is not None


def draw_words(kind: pa.DataType, rows: int, distinct: int, rng: np.random.Generator) -> pa.Array:
    words = rng.integers(0, 2**31 - 1, max(1, distinct))[rng.integers(0, max(1, distinct), rows)]
    memory = words.astype(np.int32 if kind.bit_width == 32 else np.int64)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(memory)])


def decode_group(
    path: Path,
    metadata: Any,
    group: int,
    kind: pa.DataType,
    targets: NDArray[np.uint32],
    packing: Packing | None = None,
) -> NDArray[np.uint8] | None:
    """The decoded values in target order, or None if the chunk is unsupported or declined."""
    chunk = StoredFooter(metadata).chunk(group, "x", kind)
    if chunk is None:
        return None
    packing = packing or Packing(chunk.width, 0)
    size = packing.bytes * len(targets)
    out = np.full(size + 16, 0xAB, np.uint8)
    with pa.memory_map(str(path)) as file:
        valid = decode_column(file, [chunk], packing, targets, out[:size], BufferPool(0))
    assert (out[size:] == 0xAB).all()
    return None if valid is None else out[:size]


def words_of(column: pa.ChunkedArray) -> NDArray[np.uint8]:
    array = column.combine_chunks()
    width = array.type.bit_width // 8
    return np.frombuffer(array.buffers()[1], np.uint8)[
        array.offset * width : (array.offset + len(array)) * width
    ]


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_value_is_scattered_to_its_target(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(TYPES))
    rows = data.draw(st.integers(1, 3_000))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    column = draw_words(kind, rows, data.draw(st.sampled_from([1, 2, 3, 200, 10_000])), rng)
    path = tmp_path / "x.parquet"
    metadata = write(path, column, **data.draw(WRITING))
    for group in range(metadata.num_row_groups):
        expected = words_of(pq.ParquetFile(path).read_row_group(group).column(0))
        width = kind.bit_width // 8
        targets = rng.permutation(len(expected) // width).astype(np.uint32)
        found = decode_group(path, metadata, group, kind, targets)
        assert found is not None
        assert np.array_equal(found.reshape(-1, width)[targets], expected.reshape(-1, width))


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_are_packed_or_the_chunk_is_declined(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(TYPES))
    width = kind.bit_width // 8
    taken = data.draw(st.sampled_from([size for size in (0, 1, 2, 4, 8) if size <= width]))
    rows = data.draw(st.integers(1, 1_000))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    top = (1 << 8 * min(taken, 7)) - 1
    distinct = rng.integers(0, top + 1, data.draw(st.sampled_from([1, 3, 300])), np.int64)
    # the least and greatest value that fit the packing, and sometimes one that overflows it
    more = distinct[rng.integers(0, len(distinct), rows)]
    more[rng.integers(0, rows, 2)] = [0, top]
    beyond = data.draw(st.sampled_from([0, 0, -1, 1]))
    if beyond:
        more[data.draw(st.sampled_from([0, rows // 2, rows - 1]))] = -1 if beyond < 0 else top + 1
    base = data.draw(st.sampled_from([0, 7, -3, 2**31 - 5] if width == 4 else [0, 7, -(2**40), 2**62]))
    base = 0 if taken == width else base
    words = (more.view(np.uint64) + np.array(base, np.int64).view(np.uint64)).astype(f"u{width}")
    path = tmp_path / "x.parquet"
    options = data.draw(WRITING)
    metadata = write(path, pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(words)]), **options)
    start = 0
    for group in range(metadata.num_row_groups):
        count = metadata.row_group(group).num_rows
        of_group = more[start : start + count]
        start += count
        targets = rng.permutation(count).astype(np.uint32)
        found = decode_group(path, metadata, group, kind, targets, Packing(taken, base))
        fits = taken == width or ((of_group >= 0) & (of_group <= top)).all()
        assert (found is not None) == fits
        if found is not None and taken:
            assert np.array_equal(found.view(f"u{taken}")[targets], of_group.astype(f"u{taken}"))


DECLINED: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "gzip": (pa.array([1, 2, 3], pa.int64()), {"compression": "gzip"}),
    "checksums": (pa.array([1, 2, 3], pa.int64()), {"write_page_checksum": True}),
    "narrow": (pa.array([1, 2, 3], pa.int16()), {}),
    "wide decimal": (pa.array([1, 2, 3], pa.decimal256(40, 2)), {}),
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
def test_unsupported_chunks_are_declined(tmp_path: Path, case: str) -> None:
    column, options = DECLINED[case]
    path = tmp_path / "x.parquet"
    metadata = write(path, column, **options)
    assert decode_group(path, metadata, 0, column.type, np.arange(3, dtype=np.uint32)) is None


@needs_library
def test_column_that_needs_a_cast_is_declined(tmp_path: Path) -> None:
    metadata = write(tmp_path / "x.parquet", pa.array([1, 2, 3], pa.int32()))
    footer = StoredFooter(metadata)
    assert footer.chunk(0, "x", pa.int64()) is None
    assert footer.chunk(0, "absent", pa.int32()) is None
    assert footer.chunk(0, "x", pa.int32()) is not None


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_corrupt_pages_cause_no_write_out_of_bounds(tmp_path: Path, data: st.DataObject) -> None:
    """No bytes cause a write outside ``out``."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows, kind = data.draw(st.integers(1, 500)), data.draw(st.sampled_from([pa.int64(), pa.int32()]))
    width = kind.bit_width // 8
    packings = [Packing(width, 0), Packing(4, 0), Packing(2, -5), Packing(1, 3), Packing(0, 1)]
    packing = data.draw(st.sampled_from(packings))
    # values fit the packing, so that only corruption can cause an overflow
    some = draw_words(pa.int64(), rows, data.draw(st.sampled_from([1, 50, 1_000])), rng).to_numpy()
    path = tmp_path / "x.parquet"
    metadata = write(
        path,
        pa.array(packing.base + some % (1 << min(8 * packing.bytes, 31)), kind),
        compression=data.draw(st.sampled_from(["none", "snappy"])),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=data.draw(st.sampled_from([64, 2**20])),
    )
    chunk = StoredFooter(metadata).chunk(0, "x", kind)
    assert chunk is not None
    stored = bytearray(path.read_bytes())
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, chunk.size_bytes - 1), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        stored[chunk.start + at] = byte
    size_bytes = data.draw(st.integers(0, chunk.size_bytes))
    cut = chunk._replace(size_bytes=size_bytes)
    guarded = np.full(8 * rows + 128, 0xAB, np.uint8)
    targets = rng.permutation(rows).astype(np.uint32)
    end = 64 + packing.bytes * rows
    decode_column(pa.BufferReader(bytes(stored)), [cut], packing, targets, guarded[64:end], BufferPool(0))
    assert (guarded[:64] == 0xAB).all()
    assert (guarded[end:] == 0xAB).all()


def test_dot_in_a_column_name_is_not_a_path(tmp_path: Path) -> None:
    inner = pa.field("b", pa.int64(), nullable=False)
    schema = pa.schema(
        [
            pa.field(name, kind, nullable=False)
            for name, kind in (("a.b", pa.int64()), ("a", pa.struct([inner])))
        ]
    )
    table = pa.table(
        [pa.array([1, 2]), pa.array([{"b": 3}, {"b": 4}], schema.field("a").type)], schema=schema
    )
    pq.write_table(table, tmp_path / "x.parquet")
    assert StoredFooter(pq.read_metadata(tmp_path / "x.parquet")).chunk(0, "a.b", pa.int64()) is None


@needs_library
def test_declined_columns_do_not_affect_the_others(tmp_path: Path) -> None:
    """Five columns of two row groups, decoded in one call: one has no chunks, one is corrupt, one truncated."""
    rows, rng = 1_000, np.random.default_rng(5)
    kinds = {"a": pa.int64(), "b": pa.int32(), "c": pa.int64(), "d": pa.float32(), "e": pa.float64()}
    table = pa.table({name: draw_words(kind, rows, 200, rng) for name, kind in kinds.items()})
    path = tmp_path / "x.parquet"
    pq.write_table(table, path, row_group_size=600, compression=dict.fromkeys(kinds, "snappy"))
    footer, stored = StoredFooter(pq.read_metadata(path)), bytearray(path.read_bytes())
    chunks: dict[str, list[Chunk]] = {}
    for name, kind in kinds.items():
        found = [footer.chunk(group, name, kind) for group in range(2)]
        chunks[name] = [chunk for chunk in found if chunk is not None]
        assert len(chunks[name]) == 2
    corrupt, cut = chunks["c"][1], chunks["d"][0]
    stored[corrupt.start : corrupt.start + 8] = b"\xff" * 8
    chunks["d"][0] = cut._replace(start=len(stored) - 4)
    chunks["b"] = []
    targets = rng.permutation(rows).astype(np.uint32)
    packings = [Packing(kind.bit_width // 8, 0) for kind in kinds.values()]
    outs = ColumnMemory.take(BufferPool(0), np.array([packing.bytes * rows for packing in packings]))
    decoded = decode_columns(
        pa.BufferReader(bytes(stored)), list(chunks.values()), packings, targets, outs, BufferPool(0)
    )
    assert decoded.done.tolist() == [True, False, False, False, True]
    for at, name in ((0, "a"), (4, "e")):
        out = outs.column(at, 8 * rows)
        assert np.array_equal(out.view(np.int64)[targets], words_of(table[name]).view(np.int64))


@needs_library
@pytest.mark.skipif(ARROW < 23, reason="pyarrow has no max_rows_per_page")
@pytest.mark.parametrize(("rows", "decoded"), [(2**19 - 8, True), (2**19, False)])
def test_page_larger_than_the_scratch_memory_is_declined(tmp_path: Path, rows: int, decoded: bool) -> None:
    column = pa.array(np.arange(rows))
    metadata = write(
        tmp_path / "x.parquet",
        column,
        nullable=False,
        use_dictionary=False,
        data_page_size=2**24,
        max_rows_per_page=rows,
    )
    found = decode_group(tmp_path / "x.parquet", metadata, 0, column.type, np.arange(rows, dtype=np.uint32))
    assert (found is not None) == decoded


def test_chunks_are_found_once_for_each_of_a_few_datasets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pa.table({"x": range(4), "y": range(4), "text": list("abcd")})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    footer = StoredFooter(pq.read_metadata(tmp_path / "x.parquet"))
    looked: list[str] = []
    find = StoredFooter.chunk

    def note(self: StoredFooter, group: int, name: str, kind: pa.DataType) -> Any:
        looked.append(name)
        return find(self, group, name, kind)

    monkeypatch.setattr(StoredFooter, "chunk", note)
    both, other = [("x", pa.int64()), None, ("y", pa.int64())], [("y", pa.int32())]
    for fields in (both, other) * 3:
        found = [footer.stored_columns(group, fields).table for group in range(2)]
        assert [chunks[:, IS_STORED].tolist() for chunks in found] == (
            [[1, 0, 1]] * 2 if fields is both else [[0]] * 2
        )
    assert looked == ["x", "y", "x", "y", "y", "y"]
    # the places of text are asked for chunk by chunk
    looked.clear()
    with_text = [("x", pa.int64()), ("text", pa.string())]
    for _ in range(3):
        assert [chunk is not None for chunk in footer.stored_columns(0, with_text).chunks] == [True, True]
    assert looked == ["x", "text"]
    # many datasets are not remembered all
    for _ in range(100):
        footer.stored_columns(0, [("x", pa.int64())])
    assert len(footer._stored) <= 8

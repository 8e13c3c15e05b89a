"""Chunks that are decoded straight to their rows hold what Arrow reads; all others are declined."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.io.chunks import (
    BY_DICTIONARY,
    DATA,
    DICTIONARY,
    INDEX,
    PLAIN,
    WRITING,
    needs_library,
    page,
    varint,
    write,
)
from windrow.core.packing import Packing
from windrow.io import decoding
from windrow.io.decoding import Chunk, StoredFooter, decode

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


def decode_group(
    path: Path,
    metadata: Any,
    group: int,
    kind: pa.DataType,
    targets: NDArray[np.uint32],
    packing: Packing | None = None,
) -> NDArray[np.uint8] | None:
    """The decoded words in target order; None where the chunk does not qualify or is declined."""
    chunk = StoredFooter(metadata).chunk(group, "x", kind)
    if chunk is None:
        return None
    packing = packing or Packing(chunk.width, 0)
    size = packing.bytes * len(targets)
    out = np.full(size + 16, 0xAB, np.uint8)
    with pa.memory_map(str(path)) as file:
        (done,) = decode(file, [[chunk]], [packing], targets, [out[:size]])
    assert (out[size:] == 0xAB).all()
    return out[:size] if done else None


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
def test_words_arrive_packed_or_not_at_all(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(TYPES))
    width = kind.bit_width // 8
    taken = data.draw(st.sampled_from([size for size in (0, 1, 2, 4, 8) if size <= width]))
    rows = data.draw(st.integers(1, 1_000))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    top = (1 << 8 * min(taken, 7)) - 1
    distinct = rng.integers(0, top + 1, data.draw(st.sampled_from([1, 3, 300])), np.int64)
    # the least and the largest that go in, and now and then one that does not
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
    rows, kind = data.draw(st.integers(1, 500)), data.draw(st.sampled_from([pa.int64(), pa.int32()]))
    width = kind.bit_width // 8
    packings = [Packing(width, 0), Packing(4, 0), Packing(2, -5), Packing(1, 3), Packing(0, 1)]
    packing = data.draw(st.sampled_from(packings))
    # they fit, so that it is the damage that counts
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
    cut = Chunk(chunk.start, size_bytes, rows, width, chunk.snappy, chunk.optional)
    guarded = np.full(8 * rows + 128, 0xAB, np.uint8)
    targets = rng.permutation(rows).astype(np.uint32)
    end = 64 + packing.bytes * rows
    decode(pa.BufferReader(bytes(stored)), [[cut]], [packing], targets, [guarded[64:end]])
    assert (guarded[:64] == 0xAB).all()
    assert (guarded[end:] == 0xAB).all()


def test_a_dot_in_a_name_is_no_path(tmp_path: Path) -> None:
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
def test_a_column_that_is_declined_does_not_touch_the_others(tmp_path: Path) -> None:
    """Columns of two row groups each, decoded at one call; one has no chunks, one is damaged, one cut off."""
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
    damaged, cut = chunks["c"][1], chunks["d"][0]
    stored[damaged.start : damaged.start + 8] = b"\xff" * 8
    chunks["d"][0] = replace(cut, start=len(stored) - 4)
    chunks["b"] = []
    targets = rng.permutation(rows).astype(np.uint32)
    outs = [np.zeros(rows * kind.bit_width // 8, np.uint8) for kind in kinds.values()]
    packings = [Packing(kind.bit_width // 8, 0) for kind in kinds.values()]
    done = decode(pa.BufferReader(bytes(stored)), list(chunks.values()), packings, targets, outs)
    assert done == [True, False, False, False, True]
    for name, out in zip("ae", (outs[0], outs[4]), strict=True):
        assert np.array_equal(out.view(np.int64)[targets], words_of(table[name]).view(np.int64))


@needs_library
@pytest.mark.parametrize(("rows", "decoded"), [(2**19 - 8, True), (2**19, False)])
def test_a_page_for_which_the_scratch_is_too_small_is_left_to_arrow(
    tmp_path: Path, rows: int, decoded: bool
) -> None:
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


# --- pages made by hand: what may stand in a file, but no writer here writes

WHOLE = Packing(8, 0)


def decode_pages(
    *pages: bytes, rows: int, snappy: bool = False, packing: Packing = WHOLE
) -> list[int] | None:
    """The 64-bit words of a chunk; None where it is declined. Nothing else is written to."""
    stored, size = b"".join(pages), packing.bytes * rows
    guarded = np.full(size + 64, 0xAB, np.uint8)
    targets = np.arange(rows + 8, dtype=np.uint32)[:rows]
    chunk = Chunk(0, len(stored), rows, 8, snappy, optional=False)
    (decoded,) = decode(pa.BufferReader(stored), [[chunk]], [packing], targets, [guarded[:size]])
    assert (guarded[size:] == 0xAB).all()
    if not decoded:
        return None
    more = (
        guarded[:size].view("i8" if packing == WHOLE else f"u{packing.bytes}")
        if size
        else np.zeros(rows, int)
    )
    return [packing.base + int(word) for word in more]


def words(*numbers: int) -> bytes:
    return np.array(numbers, np.int64).tobytes()


def literal(text: bytes) -> bytes:
    length = len(text) - 1
    return (bytes([length << 2]) if length < 60 else b"\xf8" + length.to_bytes(3, "little")) + text


def copy(offset_bytes: int, length: int, offset: int) -> bytes:
    if offset_bytes == 1:
        return bytes([(offset >> 8) << 5 | (length - 4) << 2 | 1, offset & 255])
    return bytes([(length - 1) << 2 | (2 if offset_bytes == 2 else 3)]) + offset.to_bytes(
        offset_bytes, "little"
    )


@needs_library
@given(
    st.sampled_from([1, 20, 2_000, 70_000]),
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 4]),
            st.integers(1, 64),
            st.integers(1, 20) | st.integers(1, 80_000),
            st.binary(min_size=1, max_size=80),
        ),
        max_size=20,
    ),
)
@example(20, [(2, length, offset, b"-") for offset in range(1, 20) for length in range(1, 24)])
@example(70_000, [(4, 64, offset, b"-") for offset in (70_000, 65_536, 65_535, 2_048)])
def test_every_kind_of_snappy_copy(first: int, copies: list[tuple[int, int, int, bytes]]) -> None:
    raw = bytes(i * i % 251 for i in range(first))
    stored = literal(raw)
    for offset_bytes, asked_length, asked_offset, between in copies:
        length = 4 + asked_length % 8 if offset_bytes == 1 else asked_length
        offset = min(asked_offset, len(raw), {1: 2**11, 2: 2**16, 4: 2**32}[offset_bytes] - 1)
        stored += copy(offset_bytes, length, offset) + literal(between)
        raw += (raw[-offset:] * length)[:length] + between
    if len(raw) % 8:
        padding = bytes(-len(raw) % 8)
        raw, stored = raw + padding, stored + literal(padding)
    rows, body = len(raw) // 8, varint(len(raw)) + stored
    pages = page(DATA, rows, PLAIN, body, len(raw))
    assert decode_pages(pages, rows=rows, snappy=True) == np.frombuffer(raw, np.int64).tolist()


@needs_library
def test_snappy_that_ends_early_is_declined() -> None:
    whole = varint(24) + literal(words(1, 2, 3))
    assert decode_pages(page(DATA, 3, PLAIN, whole, 24), bytes(16), rows=3, snappy=True) == [1, 2, 3]
    assert decode_pages(page(DATA, 3, PLAIN, whole[:-8], 24), bytes(16), rows=3, snappy=True) is None


def indices(*runs: bytes) -> bytes:
    return b"\2" + b"".join(runs)


def packed(*numbers: int) -> bytes:
    groups = -(-len(numbers) // 8)
    bits = sum(number << 2 * i for i, number in enumerate(numbers))
    return varint(groups << 1 | 1) + bits.to_bytes(2 * groups, "little")


def repeated(number: int, count: int) -> bytes:
    return varint(count << 1) + bytes([number])


# a dictionary of three words, and how they go; no bytes hold those that are all the same
LOOKED_UP = [
    *[((10, 20, 30), packing) for packing in (WHOLE, Packing(4, -1), Packing(2, 10), Packing(1, 7))],
    ((10, 10, 10), Packing(0, 10)),
]
looked_up = pytest.mark.parametrize(("three", "packing"), LOOKED_UP)


@needs_library
@looked_up
def test_the_padding_of_the_last_group_may_be_missing_but_no_value(
    three: tuple[int, int, int], packing: Packing
) -> None:
    dictionary = page(DICTIONARY, 3, PLAIN, words(*three))
    body = indices(packed(0, 1, 2, 0, 1, 2, 0, 1, 2))
    expected = [*three] * 3
    for cut, found in ((0, expected), (1, expected), (2, None)):
        data = page(DATA, 9, BY_DICTIONARY, body[: len(body) - cut])
        assert decode_pages(dictionary, data, rows=9, packing=packing) == found


@needs_library
@looked_up
@pytest.mark.parametrize("groups", [3, 4, 2**20])
def test_a_run_of_more_groups_than_there_are_is_declined(
    groups: int, three: tuple[int, int, int], packing: Packing
) -> None:
    dictionary = page(DICTIONARY, 3, PLAIN, words(*three))
    body = indices(packed(0, 1, 2, 0, 1, 2, 0, 1, 2))
    claimed = body.replace(varint(2 << 1 | 1), varint(groups << 1 | 1))
    assert claimed != body
    assert decode_pages(dictionary, page(DATA, 9, BY_DICTIONARY, claimed), rows=9, packing=packing) is None


@needs_library
@looked_up
@pytest.mark.parametrize("run", [packed, lambda number: repeated(number, 1)])
def test_an_index_beyond_the_dictionary_is_declined(
    run: Any, three: tuple[int, int, int], packing: Packing
) -> None:
    dictionary = page(DICTIONARY, 3, PLAIN, words(*three))
    for last, found in ((2, [three[1], three[1], three[2]]), (3, None)):
        data = page(DATA, 3, BY_DICTIONARY, indices(repeated(1, 2), run(last)))
        assert decode_pages(dictionary, data, rows=3, packing=packing) == found


@needs_library
@pytest.mark.parametrize(
    "packing", [Packing(4, 11), Packing(2, -(2**16) + 29), Packing(1, 5), Packing(0, 10)]
)
@pytest.mark.parametrize("stored", [[10, 20, 30], [30, 20, 261, 10]])
def test_a_word_that_does_not_fit_is_declined(stored: list[int], packing: Packing) -> None:
    """Whether it lies too low or too high, in a dictionary or not."""
    found = stored if packing == Packing(1, 5) and 261 not in stored else None
    plain = page(DATA, len(stored), PLAIN, words(*stored))
    assert decode_pages(plain, rows=len(stored)) == stored
    assert decode_pages(plain, rows=len(stored), packing=packing) == found
    data = page(DATA, len(stored), BY_DICTIONARY, indices(packed(*range(len(stored)))))
    dictionary = page(DICTIONARY, len(stored), PLAIN, words(*stored))
    assert decode_pages(dictionary, data, rows=len(stored)) == stored
    assert decode_pages(dictionary, data, rows=len(stored), packing=packing) == found


@needs_library
def test_more_values_than_rows_are_declined() -> None:
    pages = [page(DATA, 2, PLAIN, words(1, 2)), page(DATA, 2, PLAIN, words(3, 4))]
    assert decode_pages(*pages, rows=4) == [1, 2, 3, 4]
    assert decode_pages(*pages, rows=3) is None


@needs_library
def test_a_page_of_an_index_is_passed_over() -> None:
    pages = [
        page(DATA, 1, PLAIN, words(1)),
        page(INDEX, 0, PLAIN, b"something"),
        page(DATA, 1, PLAIN, words(2)),
    ]
    assert decode_pages(*pages, rows=2) == [1, 2]

"""Text decoded by the C decoder equals what Arrow reads; other chunks are declined."""

from __future__ import annotations

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
from tests.io.files import open_parquet
from tests.library_versions import ARROW
from tests.shuffle.tables import rows_of
from windrow.core.buffer_pool import BufferPool
from windrow.core.source import can_scatter
from windrow.io.parquet import decoder_library
from windrow.io.parquet.chunk_decoder import decode_text
from windrow.io.parquet.chunks import TEXT, Chunk
from windrow.io.parquet.decoder_library import CODECS
from windrow.io.parquet.stored_chunks import StoredFooter
from windrow.shuffle.kernels.group_rows import group_rows

KINDS = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]
GUARD_BYTES = 64


class GuardedPool(BufferPool):
    """Zeroed memory with guard bytes on both sides, which are checked at the end."""

    def __init__(self) -> None:
        super().__init__(0)
        self.lent: list[NDArray[np.uint8]] = []

    def take(self, nbytes: int) -> NDArray[np.uint8]:
        self.lent.append(np.full(nbytes + 2 * GUARD_BYTES, 0xAB, np.uint8))
        inner = self.lent[-1][GUARD_BYTES:-GUARD_BYTES]
        inner[:] = 0
        return inner

    def is_whole(self) -> bool:
        sides = [side for each in self.lent for side in (each[:GUARD_BYTES], each[-GUARD_BYTES:])]
        return all((side == 0xAB).all() for side in sides)


def draw_text(
    kind: pa.DataType, rows: int, distinct: int, longest: int, rng: np.random.Generator
) -> pa.Array:
    # Arrow does not validate UTF-8 on reading either
    texts = [rng.bytes(length) for length in rng.integers(0, longest, distinct, endpoint=True)]
    chosen = [texts[place] for place in rng.integers(0, distinct, rows)]
    is_large = kind in (pa.large_string(), pa.large_binary())
    return pa.array(chosen, pa.large_binary() if is_large else pa.binary()).view(kind)


def decode_chunks(
    path: Path, metadata: Any, groups: int, kind: pa.DataType, targets: NDArray[np.uint32], cuts: list[slice]
) -> list[pa.Array] | None:
    footer, pool = StoredFooter(metadata), GuardedPool()
    chunks = [chunk for group in range(groups) if (chunk := footer.chunk(group, "x", kind)) is not None]
    if len(chunks) < groups:
        return None
    with pa.memory_map(str(path)) as file:
        found = decode_text(file, chunks, kind, targets, cuts, pool)
    assert pool.is_whole()
    return found


def _is_too_dense(row_group: Any) -> bool:
    """Whether the text of a row group is compressed so well that Arrow reads it."""
    chunk = row_group.column(0)
    most = CODECS[chunk.compression].max_ratio * chunk.total_compressed_size
    return bool(chunk.total_uncompressed_size > most)


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_text_is_scattered_to_its_target(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(KINDS))
    rows = data.draw(st.integers(1, 1_500))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    column = draw_text(
        kind,
        rows,
        data.draw(st.sampled_from([1, 3, 200, 2_000])),
        data.draw(st.sampled_from([0, 31, 33, 200])),
        rng,
    )
    path = tmp_path / "x.parquet"
    metadata = write(path, column, **data.draw(WRITING))
    expected = pq.ParquetFile(path).read().column(0).combine_chunks()
    ranks = rng.permutation(rows)
    cut = data.draw(st.integers(0, rows))
    cuts = [slice(0, cut), slice(cut, rows)]
    found = decode_chunks(path, metadata, metadata.num_row_groups, kind, ranks.astype(np.uint32), cuts)
    if any(map(_is_too_dense, map(metadata.row_group, range(metadata.num_row_groups)))):
        assert found is None
        return
    assert found is not None
    ordered = expected.take(pa.array(np.argsort(ranks)))
    for array, rows_of_cut in zip(found, cuts, strict=True):
        array.validate()
        assert array.equals(ordered[rows_of_cut])


DECLINED: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "gzip": (pa.array(["a", "b", "c"]), {"compression": "gzip"}),
    "checksums": (pa.array(["a", "b", "c"]), {"write_page_checksum": True}),
    "delta": (
        pa.array(["a", "b", "c"]),
        {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"},
    ),
    "lengths apart": (
        pa.array(["a", "b", "c"]),
        {"use_dictionary": False, "column_encoding": "DELTA_LENGTH_BYTE_ARRAY"},
    ),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), {}),
    "fixed size": (pa.array([b"a", b"b", b"c"], pa.binary(1)), {}),
    # each zero could be read as an empty string
    "numbers": (pa.array([0, 0, 0]), {"use_dictionary": False}),
    "list": (pa.array([["a"], ["b", "c"], []]), {}),
}
if ARROW >= 21:  # which writes them
    DECLINED["views"] = (pa.array(["a", "b", "c"], pa.string_view()), {})


@needs_library
@pytest.mark.parametrize("case", DECLINED)
def test_unsupported_chunks_are_declined(tmp_path: Path, case: str) -> None:
    column, options = DECLINED[case]
    metadata = write(tmp_path / "x.parquet", column, **options)
    targets = np.arange(3, dtype=np.uint32)
    assert decode_chunks(tmp_path / "x.parquet", metadata, 1, column.type, targets, [slice(0, 3)]) is None


@needs_library
def test_text_that_needs_a_cast_is_declined(tmp_path: Path) -> None:
    footer = StoredFooter(write(tmp_path / "x.parquet", pa.array(["a"])))
    assert footer.chunk(0, "x", pa.large_string()) is None
    assert footer.chunk(0, "x", pa.binary()) is None
    assert footer.chunk(0, "x", pa.string()) is not None


@needs_library
def test_text_beyond_32_bit_offsets_is_declined(tmp_path: Path) -> None:
    rows = 2**11
    column = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), pa.array(["x" * 2**20]))
    metadata = write(tmp_path / "x.parquet", column, store_schema=False, compression="none")
    targets = np.arange(rows, dtype=np.uint32)
    for cuts, fits in (([slice(0, 9)], True), ([slice(0, rows)], False)):
        found = decode_chunks(tmp_path / "x.parquet", metadata, 1, pa.string(), targets, cuts)
        assert (found is not None) == fits


@needs_library
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_corrupt_pages_cause_no_write_out_of_bounds(tmp_path: Path, data: st.DataObject) -> None:
    """No bytes cause a write outside the pool's memory."""
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = data.draw(st.integers(1, 300))
    path = tmp_path / "x.parquet"
    metadata = write(
        path,
        draw_text(pa.binary(), rows, data.draw(st.sampled_from([1, 50, 1_000])), 40, rng),
        compression=data.draw(st.sampled_from(["none", "snappy"])),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=data.draw(st.sampled_from([64, 2**20])),
        dictionary_pagesize_limit=data.draw(st.sampled_from([64, 2**20])),
    )
    chunk = StoredFooter(metadata).chunk(0, "x", pa.binary())
    assert chunk is not None
    stored = bytearray(path.read_bytes())
    for at, byte in data.draw(
        st.lists(st.tuples(st.integers(0, chunk.size_bytes - 1), st.integers(0, 255)), min_size=1, max_size=4)
    ):
        stored[chunk.start + at] = byte
    size_bytes, raw_bytes = data.draw(
        st.tuples(st.integers(0, chunk.size_bytes), st.integers(0, chunk.raw_bytes))
        | st.just((chunk.size_bytes, chunk.raw_bytes))
    )
    cut = chunk._replace(size_bytes=size_bytes, raw_bytes=raw_bytes)
    targets, pool = rng.permutation(rows).astype(np.uint32), GuardedPool()
    found = decode_text(pa.BufferReader(bytes(stored)), [cut], pa.binary(), targets, [slice(0, rows)], pool)
    assert pool.is_whole()
    if found is not None:
        found[0].validate(full=True)


# --- handmade pages


def texts(*values: str) -> bytes:
    return b"".join(len(value).to_bytes(4, "little") + value.encode() for value in values)


def decode_pages(*pages: bytes, rows: int, raw_bytes: int | None = None) -> list[str] | None:
    stored, pool = b"".join(pages), GuardedPool()
    raw = len(stored) if raw_bytes is None else raw_bytes
    chunk = Chunk(0, len(stored), rows, TEXT, 0, "UNCOMPRESSED", optional=False, raw_bytes=raw)
    targets = np.arange(rows, dtype=np.uint32)
    found = decode_text(pa.BufferReader(stored), [chunk], pa.string(), targets, [slice(0, rows)], pool)
    assert pool.is_whole()
    return None if found is None else found[0].to_pylist()


@needs_library
def test_text_beyond_the_end_of_its_page_is_declined() -> None:
    body = texts("a", "", "ccc")
    assert decode_pages(page(DATA, 3, PLAIN, body), rows=3) == ["a", "", "ccc"]
    for short in range(1, 8):
        assert decode_pages(page(DATA, 3, PLAIN, body[:-short]) + bytes(16), rows=3) is None
    endless = body[:-7] + b"\xff\xff\xff\xff" + body[-3:]
    assert decode_pages(page(DATA, 3, PLAIN, endless) + bytes(16), rows=3) is None


@needs_library
def test_dictionary_and_plain_pages_make_one_column() -> None:
    words = page(DICTIONARY, 2, PLAIN, texts("one", "two"))
    data = page(DATA, 4, BY_DICTIONARY, b"\1" + varint(1 << 1 | 1) + bytes([0b0110]))
    plain = page(DATA, 2, PLAIN, texts("three", "four"))
    other = page(INDEX, 0, PLAIN, b"something")
    found = decode_pages(words, data, other, page(DATA, 0, PLAIN, b""), plain, rows=6)
    assert found == ["one", "two", "two", "one", "three", "four"]


@needs_library
def test_second_dictionary_is_declined() -> None:
    words = page(DICTIONARY, 2, PLAIN, texts("one", "two"))
    data = page(DATA, 1, BY_DICTIONARY, b"\1" + varint(1 << 1) + bytes([1]))
    assert decode_pages(words, data, rows=1) == ["two"]
    assert decode_pages(words, data, words, data, rows=2) is None


@needs_library
def test_dictionary_page_with_too_few_bytes_is_declined() -> None:
    data = page(DATA, 1, BY_DICTIONARY, b"\1" + varint(1 << 1) + bytes([1]))
    assert decode_pages(page(DICTIONARY, 2, PLAIN, texts("a", "b")), data, rows=1) == ["b"]
    assert decode_pages(page(DICTIONARY, 3, PLAIN, texts("a", "b")), data, rows=1) is None


@needs_library
def test_chunk_with_text_beyond_32_bits_allocates_nothing() -> None:
    class Untouched(BufferPool):
        def take(self, nbytes: int) -> NDArray[np.uint8]:
            raise AssertionError(f"{nbytes} bytes were taken")

    # a chunk of 0 stored bytes cannot be truncated
    huge = Chunk(0, 0, 1, TEXT, 0, "SNAPPY", optional=False, raw_bytes=2**32)
    targets = np.zeros(1, np.uint32)
    assert (
        decode_text(pa.BufferReader(b""), [huge], pa.string(), targets, [slice(0, 1)], Untouched(0)) is None
    )


@needs_library
def test_index_beyond_the_dictionary_is_declined() -> None:
    words = page(DICTIONARY, 3, PLAIN, texts("one", "two", "three"))
    for number, found in ((2, ["three"]), (3, None)):
        data = page(DATA, 1, BY_DICTIONARY, b"\2" + varint(1 << 1) + bytes([number]))
        assert decode_pages(words, data, rows=1) == found


@needs_library
def test_pages_larger_than_the_stated_raw_bytes_are_declined() -> None:
    body = texts("x" * 100)
    assert decode_pages(page(DATA, 1, PLAIN, body), rows=1, raw_bytes=len(body)) == ["x" * 100]
    assert decode_pages(page(DATA, 1, PLAIN, body), rows=1, raw_bytes=len(body) - 1) is None


@needs_library
@pytest.mark.parametrize(("scratch_bytes", "fits"), [(448, True), (384, False)])
def test_dictionary_larger_than_the_scratch_memory_is_declined(
    monkeypatch: pytest.MonkeyPatch, scratch_bytes: int, fits: bool
) -> None:
    pool = GuardedPool()
    monkeypatch.setattr(decoder_library.SCRATCH, "memory", pool.take(scratch_bytes))
    words = page(DICTIONARY, 100, PLAIN, texts(*(str(number) for number in range(100))))
    data = page(DATA, 2, BY_DICTIONARY, b"\7" + varint(1 << 1 | 1) + bytes([99, 0, 0, 0, 0, 0, 0]))
    found = decode_pages(words, data, rows=2)
    assert found == (["99", "0"] if fits else None)
    assert pool.is_whole()


@needs_library
def test_chunk_with_an_impossible_size_is_declined(tmp_path: Path) -> None:
    metadata = write(tmp_path / "x.parquet", pa.array(["a", "b"]))
    column = metadata.row_group(0).column(0)

    class Column:
        total_uncompressed_size = 2**60

        def __getattr__(self, name: str) -> Any:
            return getattr(column, name)

    class Group:
        num_rows = 2

        def column(self, number: int) -> Any:
            return Column()

    class Metadata:
        schema = metadata.schema

        def row_group(self, number: int) -> Any:
            return Group()

    footer = StoredFooter(metadata)
    assert footer.chunk(0, "x", pa.string()) is not None
    footer.metadata = Metadata()
    assert footer.chunk(0, "x", pa.string()) is None


class NoSelect:
    """A part that fails the test unless its columns are decoded in place."""

    def __init__(self, part: Any) -> None:
        self.part = part

    def __getattr__(self, name: str) -> Any:
        assert name != "select", "a column went by way of Arrow"
        return getattr(self.part, name)


@needs_library
def test_part_of_several_row_groups_is_grouped_like_a_table(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    table = pa.table(
        {
            "key": np.arange(900),
            "word": draw_text(pa.string(), 900, 40, 50, rng),
            "rare": draw_text(pa.large_binary(), 900, 900, 50, rng),
        }
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=300)
    source = open_parquet(str(tmp_path / "x.parquet"), target_block_bytes=2**26)
    (address,) = source.addresses([0])
    parts = source.reader.parts(address)
    part = next(parts)
    assert can_scatter(part)
    runs, places = rng.integers(0, 20, 900).astype(np.uint16), np.arange(900, dtype=np.uint32)

    def group(rows: Any) -> list[pa.RecordBatch]:
        # without the first and the last run
        map_outputs = group_rows(rows, None, runs, places, np.array([1, 10, 10, 19]), BufferPool(1 << 20))
        return [rows_of(map_output) for map_output in map_outputs]

    assert group(NoSelect(part)) == group(table)


@needs_library
def test_text_is_declined_when_memory_is_exhausted(tmp_path: Path) -> None:
    class Full(BufferPool):
        def take(self, nbytes: int) -> NDArray[np.uint8]:
            raise MemoryError

    pq.write_table(pa.table({"word": ["a", "b"]}), tmp_path / "x.parquet")
    source = open_parquet(str(tmp_path / "x.parquet"), target_block_bytes=2**26)
    (address,) = source.addresses([0])
    parts = source.reader.parts(address)
    part = next(parts)
    assert can_scatter(part)
    assert part.scatter_text(0, np.array([1, 0], np.uint32), [slice(0, 2)], Full(0)) is None


@needs_library
def test_row_ids_are_not_scattered_as_text(tmp_path: Path) -> None:
    table = pa.table({"word": ["a", "b", "c"]})
    pq.write_table(table, tmp_path / "x.parquet")
    source = open_parquet(str(tmp_path / "x.parquet")).with_row_id("row")
    (address,) = source.addresses([0])
    parts = source.reader.parts(address)
    part = next(parts)
    assert can_scatter(part)
    targets, pool = np.array([2, 0, 1], np.uint32), BufferPool(1 << 20)
    (words,) = part.scatter_text(0, targets, [slice(0, 3)], pool) or [None]
    assert words is not None
    assert words.to_pylist() == ["b", "c", "a"]
    assert part.scatter_text(1, targets, [slice(0, 3)], pool) is None

"""Block files return the written tables, and any other content is detected as corrupt."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from windrow.pipeline.tasks.cache import block_file
from windrow.pipeline.tasks.cache.block_file import CorruptCachedBlockError, block_bytes, decode_block
from windrow.pipeline.tasks.cache.shared_folder import open_file

KEY = b"k" * 32
OFFSET = 3 * 4096


def write_block(path: Path, tables: list[pa.Table], key: bytes, *, offset: int = 0) -> int:
    with open_file(path) as descriptor:
        return block_file.write_block(descriptor, offset, tables, key)


def read_block(path: Path, key: bytes, *, mapped: bool, offset: int = 0) -> list[pa.Table] | None:
    """The tables, read from a mapping or a descriptor; None if the file is corrupt."""
    try:
        if mapped:
            content = pa.memory_map(str(path)).read_buffer().slice(offset)
            tables = decode_block(content, key, verify=True)
            assert decode_block(content, key, verify=False) == tables
            return tables
        with open_file(path) as descriptor:
            return block_file.read_block(descriptor, key)
    except CorruptCachedBlockError:
        return None


TYPES = {
    "integers": pa.array([1, None, 3]),
    "flags": pa.array([True, False, None]),
    "text": pa.array(["a", None, "ccc" * 50]),
    "views": pa.array(["a", None, "ccc" * 50], pa.string_view()),
    "lists": pa.array([[1, 2], [], None]),
    "fixed lists": pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)),
    "structs": pa.array([{"a": 1, "b": "x"}, None, {"a": 2, "b": None}]),
    "dictionary": pa.array(["u", "v", "u"]).dictionary_encode(),
    "nulls": pa.nulls(3),
}


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("mapped", [False, True])
def test_every_type_survives_round_trip(tmp_path: Path, name: str, mapped: bool) -> None:
    tables = [pa.table({"c": TYPES[name]}), pa.table({"c": TYPES[name].slice(1)})]
    offset = OFFSET if mapped else 0
    size = write_block(tmp_path / "b", tables, KEY, offset=offset)
    assert size == (tmp_path / "b").stat().st_size - offset == block_bytes(tables)
    back = read_block(tmp_path / "b", KEY, mapped=mapped, offset=offset)
    assert back is not None
    assert [table.schema for table in back] == [table.schema for table in tables]
    assert [table.to_pydict() for table in back] == [table.to_pydict() for table in tables]


def test_dictionaries_can_differ_between_tables(tmp_path: Path) -> None:
    tables = [pa.table({"c": pa.array(values).dictionary_encode()}) for values in (["u", "v"], ["w", "u"])]
    write_block(tmp_path / "b", tables, KEY)
    back = read_block(tmp_path / "b", KEY, mapped=True)
    assert back is not None
    assert [table.to_pydict() for table in back] == [{"c": ["u", "v"]}, {"c": ["w", "u"]}]


def test_invalid_utf8_survives_round_trip(tmp_path: Path) -> None:
    """Parquet files can contain it, and the cache does not require valid UTF-8."""
    text = pa.array([b"\xff\xfe"]).view(pa.string())
    write_block(tmp_path / "b", [pa.table({"c": text, "l": pa.ListArray.from_arrays([0, 1], text)})], KEY)
    (back,) = read_block(tmp_path / "b", KEY, mapped=False) or []
    assert back["c"].cast(pa.binary()).to_pylist() == [b"\xff\xfe"]


def test_block_without_rows_keeps_its_schema(tmp_path: Path) -> None:
    table = pa.table({"c": pa.array([], pa.int16())})
    write_block(tmp_path / "b", [table], KEY)
    (back,) = read_block(tmp_path / "b", KEY, mapped=False) or []
    assert (back.schema, back.num_rows) == (table.schema, 0)


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("kept", [0, 10, 48, 300])
def test_truncated_file_is_corrupt(tmp_path: Path, kept: int, mapped: bool) -> None:
    write_block(tmp_path / "b", [pa.table({"c": range(100)})], KEY)
    content = (tmp_path / "b").read_bytes()
    for part in (content[:kept], content[len(content) - kept :], content[:-1]):
        (tmp_path / "b").write_bytes(part)
        assert read_block(tmp_path / "b", KEY, mapped=mapped) is None


@pytest.mark.parametrize("mapped", [False, True])
def test_foreign_file_is_corrupt(tmp_path: Path, mapped: bool) -> None:
    write_block(tmp_path / "b", [pa.table({"c": range(100)})], KEY)
    assert read_block(tmp_path / "b", b"o" * 32, mapped=mapped) is None
    (tmp_path / "b").write_bytes(b"something else entirely, and long enough to hold a seal" * 3)
    assert read_block(tmp_path / "b", KEY, mapped=mapped) is None


@pytest.mark.parametrize("size", [2**40, 2**33 + 1])
def test_extended_file_allocates_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    write_block(tmp_path / "b", [pa.table({"c": range(100)})], KEY)
    os.truncate(tmp_path / "b", size)
    taken: list[int] = []
    monkeypatch.setattr(pa, "allocate_buffer", taken.append)
    assert read_block(tmp_path / "b", KEY, mapped=False) is None
    assert taken == []


def test_flipped_bit_in_any_byte_is_detected(tmp_path: Path) -> None:
    columns = {"c": range(100), "s": ["a", "bc"] * 50, "d": pa.array(["u", "v"] * 50).dictionary_encode()}
    write_block(tmp_path / "b", [pa.table(columns)], KEY)
    content = (tmp_path / "b").read_bytes()
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        with pytest.raises(CorruptCachedBlockError):
            decode_block(pa.py_buffer(flipped), KEY, verify=True)


@pytest.mark.parametrize(
    "column",
    [
        pa.Array.from_buffers(
            pa.string(), 3, [None, pa.array([0, 5, 2, 8], pa.int32()).buffers()[1], pa.py_buffer(b"x" * 8)]
        ),
        pa.DictionaryArray.from_arrays(pa.array([0, 9], pa.int8()), ["a", "b"], safe=False),
    ],
    ids=["offsets that decrease", "indices beyond the dictionary"],
)
def test_block_corrupted_before_writing_is_detected(tmp_path: Path, column: pa.Array) -> None:
    """The checksum matches, but offsets or indices are invalid."""
    write_block(tmp_path / "b", [pa.table({"c": column})], KEY)
    assert read_block(tmp_path / "b", KEY, mapped=False) is None

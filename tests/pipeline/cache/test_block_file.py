"""Blocks as files: what is written is read, and anything else is not."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from windrow.pipeline.cache.block_file import estimate_bytes, read_block, write_block

KEY = b"k" * 32
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
@pytest.mark.parametrize("durable", [False, True])
def test_every_type_comes_back(tmp_path: Path, name: str, durable: bool) -> None:
    tables = [pa.table({"c": TYPES[name]}), pa.table({"c": TYPES[name].slice(1)})]
    size = write_block(tmp_path / "b", tables, KEY, durable=durable)
    assert size == (tmp_path / "b").stat().st_size <= estimate_bytes(tables)
    back = read_block(tmp_path / "b", KEY, verify=durable)
    assert back is not None
    assert [table.schema for table in back] == [table.schema for table in tables]
    assert [table.to_pydict() for table in back] == [table.to_pydict() for table in tables]


def test_dictionaries_may_differ_from_table_to_table(tmp_path: Path) -> None:
    tables = [pa.table({"c": pa.array(values).dictionary_encode()}) for values in (["u", "v"], ["w", "u"])]
    write_block(tmp_path / "b", tables, KEY, durable=False)
    back = read_block(tmp_path / "b", KEY, verify=False)
    assert back is not None
    assert [table.to_pydict() for table in back] == [{"c": ["u", "v"]}, {"c": ["w", "u"]}]


def test_a_block_without_rows_keeps_its_schema(tmp_path: Path) -> None:
    table = pa.table({"c": pa.array([], pa.int16())})
    write_block(tmp_path / "b", [table], KEY, durable=True)
    (back,) = read_block(tmp_path / "b", KEY, verify=True) or []
    assert (back.schema, back.num_rows) == (table.schema, 0)


@pytest.mark.parametrize("kept", [0, 10, 48, 300])
def test_a_truncated_file_is_none(tmp_path: Path, kept: int) -> None:
    write_block(tmp_path / "b", [pa.table({"c": range(100)})], KEY, durable=False)
    content = (tmp_path / "b").read_bytes()
    for part in (content[:kept], content[len(content) - kept :], content[:-1]):
        (tmp_path / "b").write_bytes(part)
        assert read_block(tmp_path / "b", KEY, verify=False) is None


def test_a_foreign_file_is_none(tmp_path: Path) -> None:
    assert read_block(tmp_path / "b", KEY, verify=False) is None
    write_block(tmp_path / "b", [pa.table({"c": range(100)})], KEY, durable=False)
    assert read_block(tmp_path / "b", b"o" * 32, verify=False) is None
    (tmp_path / "b").write_bytes(b"something else entirely, and long enough to hold a seal" * 3)
    assert read_block(tmp_path / "b", KEY, verify=False) is None


def test_a_damaged_file_is_none_where_it_is_verified(tmp_path: Path) -> None:
    write_block(tmp_path / "b", [pa.table({"c": range(100)})], KEY, durable=True)
    content = bytearray((tmp_path / "b").read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / "b").write_bytes(content)
    assert read_block(tmp_path / "b", KEY, verify=True) is None

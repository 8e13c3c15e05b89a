"""Small files of a block: the rows of each in order, whatever the files are, and errors that name the file."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import windrow
from tests.io.files import open_parquet, read_all, write
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.frame_of_reference import Packing
from windrow.core.source import can_scatter, column_bounds
from windrow.io.formats import row_group_format
from windrow.io.parquet import decoder_library
from windrow.io.parquet.footers import read_footer


def numbers(start: int, stop: int) -> pa.Table:
    text = pa.array([str(n) for n in range(start, stop)], pa.string())
    return pa.table({"n": np.arange(start, stop), "text": text})


def read_parts(source: Any) -> pa.Table:
    """The rows of all blocks, part by part."""
    tables_read = []
    for address in source.addresses(range(len(source.blocks.rows))):
        for part in source.reader.parts(address):
            table = part.select(list(range(len(part.schema))))
            assert table.num_rows == part.num_rows
            assert table.schema.equals(source.schema)
            tables_read.append(table)
    return pa.concat_tables(tables_read)


def test_adjacent_files_make_one_block_that_is_read_in_few_parts(tmp_path: Path) -> None:
    for number in range(12):
        write(tmp_path / f"{number:02}.parquet", numbers(10 * number, 10 * number + 10))
    source = open_parquet(tmp_path, target_block_bytes=2**20)
    assert source.blocks.rows.tolist() == [120]
    assert source.blocks.files is not None
    assert source.blocks.files.tolist() == [12]
    (part,) = source.reader.parts(source.addresses([0])[0])
    assert part.num_rows == 120
    assert can_scatter(part)
    assert part.select([0]).column("n").to_pylist() == list(range(120))
    assert source.addresses([0])[0].origin == f"{tmp_path}/00.parquet to {tmp_path}/11.parquet"


def test_numbers_of_small_files_are_decoded_at_their_places(tmp_path: Path) -> None:
    for number in range(5):
        write(tmp_path / f"{number}.parquet", numbers(10 * number, 10 * number + 10))
    source = open_parquet(tmp_path, columns=["n"], target_block_bytes=2**20)
    (part,) = source.reader.parts(source.addresses([0])[0])
    assert can_scatter(part)
    assert column_bounds(part, [0]).tolist() == [[0, 49]]
    out, targets = np.zeros(50, np.uint8), np.arange(50, dtype=np.uint32)[::-1].copy()
    outs = ColumnMemory(out, np.zeros(1, np.int64))
    found = part.scatter_values([0], np.array([Packing(1, 0)]), targets, outs, BufferPool(0))
    if decoder_library.LIBRARY is not None:
        assert found.done.all()
        assert out.tolist() == list(range(50))[::-1]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=8),
    group=st.integers(1, 5),
    target=st.integers(1, 9_000),
)
def test_rows_of_any_files_are_those_that_arrow_reads(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], group: int, target: int
) -> None:
    """Files of no rows, of one, of several row groups; blocks that begin and end within a file."""
    path, start = tmp_path_factory.mktemp("small"), 0
    for number, size in enumerate(sizes):
        write(path / f"{number}.parquet", numbers(start, start + size), row_group_size=group)
        start += size
    for row_filter in (None, pc.field("n") >= start // 2):
        source = open_parquet(path, target_block_bytes=target, filter=row_filter)
        expected = pq.read_table(path, filters=row_filter)
        assert read_all(source).equals(expected)
        if len(source.blocks.rows):
            assert read_parts(source).equals(expected)


def test_columns_of_every_kind(tmp_path: Path) -> None:
    """Flat, nested, dictionary and constant columns, with nulls; a file without rows between the others."""
    day = dt.date(2024, 2, 29)
    table = pa.table(
        {
            "n": pa.array([1, None, 3, 2**62, 5, 6]),
            "flag": pa.array([True, None, False, True, False, True]),
            "price": pa.array([Decimal(f"{n}.25") for n in range(6)], pa.decimal128(9, 2)),
            "day": pa.array([day, None, day, day, day, day]),
            "text": ["a", None, "", "dd", "e", "f"],
            "tokens": pa.array([[1, 2], [], None, [3], [4, 5, 6], [7]], pa.list_(pa.int32())),
            "point": pa.array([{"x": n, "y": n / 2} for n in range(6)]),
            "kind": pa.array(list("ababab")).dictionary_encode(),
        }
    )
    for number, (start, stop) in enumerate(((0, 2), (2, 2), (2, 3), (3, 6))):
        write(tmp_path / f"{number}.parquet", table[start:stop])
    source = open_parquet(tmp_path, target_block_bytes=2**26)
    assert len(source.blocks.rows) == 1
    assert read_all(source).to_pylist() == table.to_pylist()
    assert read_parts(source).to_pylist() == table.to_pylist()
    pipe = windrow.read_parquet(str(tmp_path)).repeat(1).random_shuffle_each_window(seed=1)
    with pipe.iterator() as shard:
        rows = [row for epoch in shard.iter_epochs() for row in epoch.iter_rows()]
    assert sorted(map(str, rows)) == sorted(map(str, table.to_pylist()))


def test_partition_values_belong_to_the_rows_of_their_file(tmp_path: Path) -> None:
    for number, day in enumerate((3, 1, 1, 2)):
        write(tmp_path / f"day={day}" / f"{number}.parquet", numbers(number, number + number + 1))
    source = open_parquet(tmp_path, target_block_bytes=2**20, include_paths=True)
    assert len(source.blocks.rows) == 1
    table = read_parts(source)
    assert table.column("day").to_pylist() == [1] * 5 + [2] * 4 + [3]
    assert [Path(path).name[0] for path in table.column("path").to_pylist()] == list("1122233330")
    assert table.column("n").to_pylist() == [1, 2, 2, 3, 4, 3, 4, 5, 6, 0]
    kept = open_parquet(
        tmp_path, target_block_bytes=2**20, filter=(pc.field("day") == 1) & (pc.field("n") > 2)
    )
    assert read_all(kept).column("n").to_pylist() == [3, 4]


def test_a_large_file_between_small_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number, rows in enumerate((5, 2_000, 5, 5)):
        write(tmp_path / f"{number}.parquet", numbers(0, rows))
    monkeypatch.setattr(row_group_format, "_LARGE_FILE_BYTES", 5_000)
    source = open_parquet(tmp_path, target_block_bytes=2**20)
    parts = source.reader.parts(source.addresses([0])[0])
    assert [part.num_rows for part in parts] == [2_005, 10]
    assert read_all(source).column("n").to_pylist() == [*range(5), *range(2_000), *range(5), *range(5)]


@pytest.mark.parametrize("name", ["local", "memory"])
def test_footers_are_parsed_once_and_files_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    root = str(tmp_path) if name == "local" else f"memory://{tmp_path}"
    filesystem = fsspec.filesystem("file" if name == "local" else "memory")
    for number in range(6):
        with filesystem.open(f"{tmp_path}/{number}.parquet", "wb") as file:
            pq.write_table(numbers(number, number + 1), file)
    listed = open_parquet(root, target_block_bytes=2**20)
    read: list[str] = []

    def note(files: Any, path: str, origin: str) -> Any:
        read.append(path)
        return read_footer(files, path, origin)

    monkeypatch.setattr("windrow.io.parquet.verified_files.read_footer", note)
    monkeypatch.setattr("windrow.io.parquet.block_reader.read_footer", note)
    # neither listing's footers nor those of a manifest, which come with the files' bytes, are read again
    for source in (listed, open_parquet(root, target_block_bytes=2**20, manifest=listed.manifest)):
        assert read_all(source).column("n").to_pylist() == list(range(6))
    assert read == []


def test_a_file_that_changed_is_named(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", numbers(0, 5))
    source = open_parquet(tmp_path, target_block_bytes=2**20)
    write(tmp_path / "1.parquet", numbers(5, 10))
    with pytest.raises(windrow.SourceError, match=r"1\.parquet: the file has changed since it was listed"):
        read_all(source)


def test_a_file_that_changed_since_its_manifest_was_saved_is_named(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", numbers(0, 5))
    manifest = open_parquet(tmp_path).manifest
    source = open_parquet(tmp_path, target_block_bytes=2**20, manifest=manifest)
    assert read_all(source).num_rows == 15
    write(tmp_path / "1.parquet", numbers(0, 5))
    with pytest.raises(windrow.SourceError, match=r"1\.parquet: the file has changed since it was listed"):
        read_all(source)


def test_a_corrupt_file_is_named(tmp_path: Path) -> None:
    for number in range(3):
        write(tmp_path / f"{number}.parquet", numbers(0, 500), use_dictionary=False, compression="none")
    raw = bytearray((tmp_path / "1.parquet").read_bytes())
    raw[4:40] = b"\xff" * 36
    (tmp_path / "1.parquet").write_bytes(raw)
    source = open_parquet(tmp_path, target_block_bytes=2**20)
    with pytest.raises(windrow.SourceError, match=r"1\.parquet: cannot be read(.|\n)*corrupt"):
        read_all(source)

"""A task reads cached blocks from the cache and others from the source, and records blocks to cache."""

from __future__ import annotations

import gc
import weakref
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.dataset.example_sources import make_source
from tests.io.files import open_parquet
from windrow.core.source import column_bounds
from windrow.pipeline.tasks.cache.block_file import block_bytes
from windrow.pipeline.tasks.cache.cached_reader import (
    CachingReader,
    attach_ranges,
    detach_ranges,
    record_parts,
)
from windrow.pipeline.tasks.cache.disk_cache import DiskCache

SOURCE = make_source(3, 4, 5)


def make(blocks: list[int], disk: DiskCache | None = None, **options: Any) -> CachingReader:
    addresses = SOURCE.addresses(blocks)
    return CachingReader(SOURCE.reader, disk, blocks, addresses, **{"found": {}, "keeps": (), **options})


def read_parts(reader: CachingReader, at: int) -> list[dict[str, list[Any]]]:
    parts = []
    for part in reader.parts(at):
        columns = [part.select([number]) for number in range(len(part.schema))]
        parts.append({column.column_names[0]: column.column(0).to_pylist() for column in columns})
    return parts


@pytest.mark.parametrize("whole", [False, True])
def test_block_to_be_cached_is_returned(whole: bool) -> None:
    reader = make([2, 0, 1], keeps=(0, 2))
    for at in range(3):
        if whole:
            reader.read(at)
        else:
            read_parts(reader, at)
    tables = SOURCE.reader.tables
    assert [pa.concat_tables(kept) for kept in reader.cached_tables] == [tables[2], tables[1]]
    report = reader.report()
    assert (report.hits, report.misses, report.cached_bytes) == (0, 3, (tables[2].nbytes, tables[1].nbytes))


def test_cached_block_is_not_read() -> None:
    other = pa.table({"x": [7, 8]}, schema=SOURCE.schema)
    reader = make([1, 2], found={1: [other, other]})
    assert read_parts(reader, 1) == [{"x": [7, 8]}] * 2
    assert reader.read(1)["x"].to_pylist() == [7, 8, 7, 8]
    assert (reader.report().hits, reader.report().misses) == (2, 0)


def test_cached_splits_share_one_schema() -> None:
    copies = [pa.table({"x": [1]}, schema=pa.schema(list(SOURCE.schema))) for _ in range(3)]
    reader = make([0, 1], found={0: copies[:2], 1: copies[2:]})
    schemas = {id(part.schema) for at in range(2) for part in reader.parts(at)}
    assert len(schemas) == 1


def test_cached_block_without_tables_is_read_for_its_schema() -> None:
    assert make([0], found={0: []}).read(0) == SOURCE.reader.tables[0]
    assert read_parts(make([0], found={0: []}), 0) == []


def test_transforms_get_read_only_views_of_cached_blocks() -> None:
    (chunk,) = make([0], keeps=(0,)).read(0)["x"].chunks
    assert not chunk.buffers()[1].is_mutable


def test_disk_cache_is_shared_by_readers(tmp_path: Path) -> None:
    disk = DiskCache(str(tmp_path), "run", "", None, persistent=False)
    first = make([0, 1], disk)
    read_parts(first, 0)
    first.read(1)
    second = make([1, 0, 2], DiskCache(str(tmp_path), "run", "", None, persistent=False))
    assert second.read(0) == SOURCE.reader.tables[1]
    assert read_parts(second, 1) == [SOURCE.reader.tables[0].to_pydict()]
    assert (first.report().misses, second.report().hits, second.report().misses) == (2, 2, 0)
    assert first.report().disk_bytes == sum(block_bytes(disk.find(block) or []) for block in (0, 1)) > 0
    assert len(list(tmp_path.glob("run/*.block"))) == 2
    disk.remove()
    assert list(tmp_path.iterdir()) == []
    assert make([0], disk).read(0) == SOURCE.reader.tables[0]
    assert list(tmp_path.iterdir()) == [], "a late task creates nothing"


def test_cached_block_of_a_mapped_file_is_a_copy(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(1_000))
    source: Any = windrow.read_numpy(tmp_path / "x.npy")._plan.source
    addresses = source.addresses([0])
    reader = CachingReader(source.reader, None, [0], addresses, found={}, keeps=(0,))
    read_parts(reader, 0)
    content = (tmp_path / "x.npy").read_bytes()
    with (tmp_path / "x.npy").open("r+b") as file:
        file.write(content[:-8_000] + bytes(8_000))
    (kept,) = reader.cached_tables
    assert pa.concat_tables(kept).column(0).to_pylist() == list(range(1_000))


def test_cached_block_is_freed_with_its_last_user() -> None:
    """A worker may run many tasks before garbage is collected."""
    gc.disable()
    try:
        reader = make([0, 1], keeps=(0, 1))
        for at in range(2):
            read_parts(reader, at)
        gone = weakref.ref(reader)
        del reader
        assert gone() is None
    finally:
        gc.enable()


def test_cached_blocks_keep_column_statistics_and_schema(tmp_path: Path) -> None:
    schema = SOURCE.schema.with_metadata({"told": "by the user"})
    blocks = [pa.table({"x": [start, start + 5]}, schema=schema) for start in (3, 90)]
    noted = attach_ranges(blocks)
    assert detach_ranges(noted[1].schema) == (schema, {0: (3, 95)})
    disk = DiskCache(str(tmp_path), "run", "", None, persistent=False)
    disk.put(0, noted)
    for reader in (make([0], found={0: noted}), make([0], disk)):
        parts = list(reader.parts(0))
        assert [column_bounds(part, [0]).tolist() for part in parts] == [[[3, 95]]] * 2
        assert all(part.schema.equals(schema, check_metadata=True) for part in parts)
        assert reader.read(0).schema.equals(schema, check_metadata=True)


def test_block_being_cached_reports_itself(tmp_path: Path) -> None:
    # a column with nulls has no statistics before it is decoded
    pq.write_table(pa.table({"x": [7, 3], "n": [9, None]}), tmp_path / "x.parquet")
    source = open_parquet(tmp_path)
    addresses = source.addresses([0])
    reader = CachingReader(source.reader, None, [0], addresses, found={}, keeps=(0,))
    for part in reader.parts(0):
        assert not isinstance(part, pa.Table)
        assert column_bounds(part, [0, 1]).tolist() == [[3, 7], [9, 9]]


@dataclass
class LazyPart:
    """Columns that are decoded on selection, in several chunks."""

    table: pa.Table
    asked: list[int] = field(default_factory=list)

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    @property
    def schema(self) -> pa.Schema:
        return self.table.schema

    def select(self, columns: list[int]) -> pa.Table:
        self.asked.extend(columns)
        return self.table.select(columns)


def make_part(start: int) -> pa.Table:
    half = pa.table({"x": [start, start + 1], "s": ["a", None]})
    return pa.concat_tables([half, half])


def test_columns_are_decoded_once_and_cached_contiguously() -> None:
    parts = [LazyPart(make_part(0)), LazyPart(make_part(10))]
    tables: list[pa.Table] = []
    for part in record_parts(parts, tables):
        assert part.select([1]).column(0).num_chunks == 1
    assert [sorted(part.asked) for part in parts] == [[0, 1], [0, 1]]
    assert [table.to_pydict() for table in tables] == [make_part(0).to_pydict(), make_part(10).to_pydict()]
    assert all(column.num_chunks == 1 for table in tables for column in table.columns)


def test_part_without_rows_is_recorded_only_if_it_is_a_table() -> None:
    tables: list[pa.Table] = []
    empty = make_part(0).slice(0, 0)
    assert len(list(record_parts([LazyPart(empty), empty], tables))) == 2
    assert [table.schema for table in tables] == [empty.schema]

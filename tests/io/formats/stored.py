"""Helpers that read blocks and compare row orders, and a filesystem that counts requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem

import windrow
from windrow.dataset.dataset import Dataset

__all__ = ["CountingStore", "equal", "read_blocks", "same_order_as_parquet", "source_of"]


def source_of(ds: Dataset) -> Any:
    return ds._plan.source


def read_blocks(ds: Dataset) -> pa.Table:
    """Every block in stored order; checks its rows and schema, and that its parts make up the block."""
    source = source_of(ds)
    tables = []
    for rows, address in zip(
        source.blocks.rows.tolist(), source.addresses(range(ds.num_blocks())), strict=True
    ):
        table = source.reader.read(address)
        table.validate(full=True)
        assert table.schema.equals(source.schema, check_metadata=True)
        assert table.num_rows == rows
        parts = [part.select(list(range(len(source.schema)))) for part in source.reader.parts(address)]
        assert equal(pa.concat_tables(parts), table), "parts are not the block"
        tables.append(table)
    return pa.concat_tables(tables) if tables else source.schema.empty_table()


def equal(left: pa.Table, right: pa.Table) -> bool:
    """Whether tables are equal, where NaN equals NaN."""
    return bool(left.equals(right)) or str(left.to_pylist()) == str(right.to_pylist())


def same_order_as_parquet(ds: Dataset, folder: Path) -> None:
    """Check that the row order equals that of Parquet with the same rows and blocks."""
    source = source_of(ds)
    table = read_blocks(ds)
    path = folder / "same.parquet"
    with pq.ParquetWriter(path, source.schema) as writer:
        start = 0
        for rows in source.blocks.rows.tolist():
            writer.write_table(table.slice(start, rows), row_group_size=rows)
            start += rows
    parquet = windrow.read_parquet(path, target_block_bytes=1)
    assert source_of(parquet).blocks.rows.tolist() == source.blocks.rows.tolist()
    assert _epochs(ds) == _epochs(parquet)


def _epochs(ds: Dataset) -> list[list[dict[str, Any]]]:
    pipe = ds.window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=5)
    with pipe.options(executor="threads", progress=False).iterator() as shard:
        return [
            [row for batch in epoch.iter_batches(batch_format="pyarrow") for row in batch.to_pylist()]
            for epoch in shard.iter_epochs()
        ]


class CountingStore(MemoryFileSystem):  # type: ignore[misc]
    """A memory filesystem that counts requests and read bytes."""

    protocol = "counting"
    cachable = False

    def __init__(self) -> None:
        super().__init__()
        self.store: dict[str, Any] = {}
        self.pseudo_dirs = [""]
        self.looks = self.reads = self.read_bytes = 0
        # so many reads fail, as on a bad network
        self.failures = 0

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        self.looks += 1
        return dict(super().info(path, **options))

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> bytes:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the connection was lost")
        data = bytes(super().cat_file(path, start, end, **options))
        self.reads += 1
        self.read_bytes += len(data)
        return data

    def forget(self) -> None:
        self.looks = self.reads = self.read_bytes = 0

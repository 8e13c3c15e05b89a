"""Data generators of the end-to-end tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

TRIP_FILES = 3
TRIP_ROWS = 6_000


def write_trips(directory: Path) -> Path:
    """Write files with the columns of the flights data and a key; returns the directory."""
    for part in range(TRIP_FILES):
        key = np.arange(part * TRIP_ROWS, (part + 1) * TRIP_ROWS)
        table = pa.table(
            {
                "key": key,
                "date": pa.array(key * 1_000_000, pa.timestamp("us")),
                "delay": key % 97 - 20,
                "distance": key % 2_003,
                "origin": pa.array([f"A{k % 31:02}" for k in key], pa.large_string()),
                "destination": pa.array([f"B{k % 17}" for k in key], pa.large_string()),
            }
        )
        pq.write_table(table, directory / f"part-{part}.parquet", row_group_size=TRIP_ROWS // 6)
    return directory


def write_numbers(path: Path, rows: int, *, row_group_size: int = 100, start: int = 0) -> Path:
    """Write one file whose column x numbers its rows from ``start``."""
    table = pa.table({"x": np.arange(start, start + rows), "y": np.zeros(rows)})
    pq.write_table(table, path, row_group_size=row_group_size)
    return path


def flip_byte_in_page(path: Path) -> None:
    """Corrupt a data page of the third row group and leave the footer unchanged."""
    column = pq.ParquetFile(path).metadata.row_group(2).column(0)
    content = bytearray(path.read_bytes())
    start = column.dictionary_page_offset or column.data_page_offset
    content[start + column.total_compressed_size - 4] ^= 0xFF
    path.write_bytes(bytes(content))


def write_wide(path: Path, rows: int, *, columns: int, row_group_size: int) -> Path:
    """Write a key and columns of few distinct values: large in memory and in transit, but small as a file."""
    schema = pa.schema([("key", pa.int64())] + [(f"c{i}", pa.float64()) for i in range(columns - 1)])
    with pq.ParquetWriter(
        path, schema, use_dictionary=[f"c{i}" for i in range(columns - 1)], compression="zstd"
    ) as writer:
        for start in range(0, rows, row_group_size):
            stop = min(start + row_group_size, rows)
            constant = pa.repeat(float(start), stop - start)
            writer.write_table(
                pa.Table.from_arrays(
                    [pa.array(np.arange(start, stop)), *[constant] * (columns - 1)], schema=schema
                )
            )
    return path

"""Facts about the files, read once with pyarrow; the results of every system are checked against them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

KEY = "key"


@dataclass(frozen=True, eq=False)
class Facts:
    """Rows and decoded bytes of some Parquet files; ``key`` is the column of 0 .. rows - 1.

    With it, all columns are numbers. Without it, they are lists and strings, and rows are identified by their content.
    """

    paths: tuple[str, ...]
    rows: int
    decoded_bytes: int
    row_groups: int
    schema: pa.Schema
    key: str | None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(self.schema.names)

    @property
    def list_columns(self) -> tuple[str, ...]:
        return tuple(field.name for field in self.schema if is_list(field.type))


def is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def iterate_tables(paths: Sequence[str]) -> Iterator[pa.Table]:
    """One table per row group, in stored order, read by one thread out of a memory map."""
    for path in paths:
        with pq.ParquetFile(path, memory_map=True) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, use_threads=False)


def read_facts(paths: Sequence[str], threads: int) -> Facts:
    with ThreadPoolExecutor(threads) as pool:
        sizes = list(pool.map(_read_sizes, paths))
    rows, decoded_bytes, row_groups = map(sum, zip(*sizes, strict=True))
    schema = pq.read_schema(paths[0])
    return Facts(tuple(paths), rows, decoded_bytes, row_groups, schema, KEY if KEY in schema.names else None)


def _read_sizes(path: str) -> tuple[int, int, int]:
    decoded_bytes = sum(
        _measure_column(column) for table in iterate_tables([path]) for column in table.columns
    )
    metadata = pq.read_metadata(path)
    return metadata.num_rows, decoded_bytes, metadata.num_row_groups


def _measure_column(column: pa.ChunkedArray) -> int:
    """Bytes of the values; validity bitmaps are excluded if there are no nulls."""
    try:
        return len(column) * int(column.type.bit_width) // 8
    except ValueError:  # of variable width
        bitmaps = sum(-(-len(chunk) // 8) for chunk in column.chunks if chunk.buffers()[0] is not None)
        return int(column.nbytes) - (bitmaps if column.null_count == 0 else 0)

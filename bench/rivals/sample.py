"""A sample of the first rows as separate Parquet files, for rivals that process rows one at a time."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["make_sample", "name_files"]

_FILES = 16
_GROUPS_PER_FILE = 4


def name_files(paths: Sequence[str]) -> str:
    """A short hash of the paths, sizes and modification times of files."""
    description = "".join(
        f"{path} {Path(path).stat().st_size} {Path(path).stat().st_mtime_ns}\n" for path in paths
    )
    return hashlib.sha256(description.encode()).hexdigest()[:16]


def make_sample(paths: Sequence[str], columns: Sequence[str], rows: int, folder: Path) -> list[str]:
    """Write the sample in 16 files of 4 row groups each, unless it exists.

    It contains only the columns that become tensors, with timestamps as integers, because some
    rivals do not support other types.
    """
    chosen = hashlib.sha256(",".join(columns).encode()).hexdigest()[:8]
    home = folder / "sample" / f"{name_files(paths)}-{chosen}-{rows}-rows"
    if not home.exists():
        unfinished = home.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        _write_files(_read_first(paths, columns, rows), unfinished)
        unfinished.rename(home)
    return sorted(str(path.resolve()) for path in home.glob("*.parquet"))


def _write_files(table: pa.Table, home: Path) -> None:
    group_rows = -(-table.num_rows // (_FILES * _GROUPS_PER_FILE))
    step = group_rows * _GROUPS_PER_FILE
    for number, first in enumerate(range(0, table.num_rows, step)):
        path = home / f"part-{number:05d}.parquet"
        pq.write_table(table.slice(first, step), path, row_group_size=group_rows, compression="snappy")


def _read_first(paths: Sequence[str], columns: Sequence[str], rows: int) -> pa.Table:
    tables: list[pa.Table] = []
    for table in _read_groups(paths, columns):
        tables.append(table.slice(0, rows - sum(one.num_rows for one in tables)))
        if sum(one.num_rows for one in tables) == rows:
            break
    table = pa.concat_tables(tables)
    kinds = [pa.int64() if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    return table.cast(pa.schema(zip(columns, kinds, strict=True)))


def _read_groups(paths: Sequence[str], columns: Sequence[str]) -> Iterator[pa.Table]:
    for path in paths:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number, columns=list(columns))

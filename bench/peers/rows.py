"""Helpers for loaders that process rows one at a time: rows, conversion, and torch's DataLoader."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from bench.request import Request

__all__ = [
    "SHARDS",
    "choose_collate",
    "convert_once",
    "iterate_rows",
    "iterate_tables",
    "load_by_workers",
]

SHARDS = 64
"""Number of shards of converted data: the number of row groups of the sample."""


def iterate_tables(paths: Sequence[str]) -> Iterator[pa.Table]:
    """One table per row group, in stored order."""
    for path in paths:
        with pq.ParquetFile(path) as file:
            for number in range(file.num_row_groups):
                yield file.read_row_group(number)


def iterate_rows(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Every row as a dict of Python numbers and strings, and of arrays for lists."""
    for table in iterate_tables(paths):
        columns = [_list_values(table.column(name)) for name in table.column_names]
        for values in zip(*columns, strict=True):
            yield dict(zip(table.column_names, values, strict=True))


def _list_values(column: pa.ChunkedArray) -> Sequence[Any]:
    values: Sequence[Any]
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        values = column.to_numpy()
    else:
        values = column.to_pylist()
    return values


def convert_once(request: Request, convert: Callable[[Path], None]) -> Path:
    """The folder that ``convert`` has filled, now or in an earlier run."""
    home = Path(request.converted) / request.system
    if not home.exists():
        unfinished = home.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        convert(unfinished)
        unfinished.rename(home)
    return home


def load_by_workers(dataset: Any, request: Request, **options: Any) -> Any:
    """Batches of a dataset of row dicts, collated by one worker process per core."""
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        batch_size=request.batch_size,
        num_workers=request.cores,
        prefetch_factor=4,
        collate_fn=choose_collate(request),
        **options,
    )


def choose_collate(request: Request) -> Callable[[Any], Any] | None:
    """None for torch's own function, which stacks numbers; lists of several lengths cannot be stacked."""
    return None if request.tensor_columns else collate_rows


def collate_rows(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """The values of each column in a list."""
    return {name: [row[name] for row in rows] for name in rows[0]}

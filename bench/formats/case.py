"""The measurement of one format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from bench.system.machine import count_cores

# the library alone produces batches of this size too, each in newly allocated memory
BATCH_ROWS = 1024

T = TypeVar("T")


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[Path, int], None]
    # reads the folder once into memory with the library alone, on all cores; returns the number of rows
    alone: Callable[[Path], int]
    read: Callable[[Path], Any]


def on_all_cores(work: Callable[[T], int], items: Sequence[T]) -> int:
    with ThreadPoolExecutor(count_cores()) as threads:
        return sum(threads.map(work, items))


def make_case(
    name: str, make: Callable[[Path, int], None], scan: Callable[[Path], int], read: Callable[[str], Any]
) -> Case:
    """A format of files, which the library alone reads one by one."""

    def alone(folder: Path) -> int:
        return on_all_cores(scan, sorted(folder.iterdir()))

    return Case(name, make, alone, lambda folder: read(str(folder)))


def convert_table(table: pa.Table, *, copies: bool = False) -> int:
    """Convert a table to NumPy arrays batch by batch, or copy it to them; returns its rows."""
    rows = 0
    for batch in table.to_batches(BATCH_ROWS):
        columns = [batch[name].to_numpy(zero_copy_only=False) for name in batch.schema.names]
        owned = [column.copy() for column in columns] if copies else columns
        rows += len(owned[0])
    return rows

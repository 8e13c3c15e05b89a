"""Files with corrupt row groups, which only decoding can detect."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from tests.laws.reference import order_epoch
from windrow import DatasetPipeline
from windrow.dataset.logical_plan import LogicalPlan

__all__ = ["GROUPS", "ROWS", "corrupt_row_groups", "expected_order", "write_files"]

ROWS, GROUPS = 20, 3


def write_files(folder: Path, files: int = 4) -> None:
    """Write files of three row groups of 20 rows each; row numbers are consecutive over all files."""
    for number in range(files):
        first = number * ROWS * GROUPS
        table = pa.table({"x": range(first, first + ROWS * GROUPS)})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=ROWS)


def corrupt_row_groups(folder: Path, *blocks: int) -> None:
    """Overwrite the pages of row groups, counted over all files, and keep size and modification time."""
    for block in blocks:
        number, group = divmod(block, GROUPS)
        path = folder / f"{number}.parquet"
        column = pq.read_metadata(path).row_group(group).column(0)
        start = column.dictionary_page_offset or column.data_page_offset
        stat = path.stat()
        with path.open("r+b") as file:
            file.seek(start)
            file.write(b"\xff" * column.total_compressed_size)
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def expected_order(pipe: DatasetPipeline, epoch: int, corrupt: Collection[int]) -> list[int]:
    """The rows of an epoch in their shuffled order, if each row group is a block."""
    plan: LogicalPlan = pipe._plan
    blocks, cut = plan.source.blocks, plan.cut
    assert cut is not None
    values = [
        [] if block in corrupt else list(range(block * ROWS, (block + 1) * ROWS))
        for block in range(len(blocks.rows))
    ]
    return order_epoch(blocks, values, cut=cut, seed=plan.seed, epoch=epoch)

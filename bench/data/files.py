"""Writes a generated dataset in parallel, each file atomically; existing files are reused."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import generators

GROUP_ROWS = 131_072
_GROUP_BYTES = 64 * 2**20
_MIN_GROUPS = 8
# bytes of a row, and the function that generates a row group
_MAKERS: dict[str, tuple[int, Callable[[int, int, int, int], pa.Table]]] = {
    "dlrm": (generators.DLRM_ROW_BYTES, generators.make_dlrm),
    "taxi": (generators.TAXI_ROW_BYTES, generators.make_taxi),
    "wide": (generators.WIDE_ROW_BYTES, generators.make_wide),
    "narrow": (generators.NARROW_ROW_BYTES, generators.make_narrow),
    "text": (generators.TEXT_ROW_BYTES, generators.make_text),
}
KINDS = tuple(_MAKERS)
_FORMAT = 1  # part of the folder's name: increase it when a generator's rows change


@dataclass(frozen=True)
class FileRows:
    """The rows [first_row, stop_row) of one file."""

    number: int
    first_row: int
    stop_row: int


@dataclass(frozen=True)
class Layout:
    """Rows cut into row groups of ``group_rows``, and those into files."""

    rows: int
    group_rows: int
    groups_per_file: int = 4

    def files(self) -> list[FileRows]:
        """Every file, in order."""
        step = self.group_rows * self.groups_per_file
        firsts = range(0, self.rows, step)
        return [FileRows(number, first, min(first + step, self.rows)) for number, first in enumerate(firsts)]


def plan_layout(size_bytes: int, row_bytes: int, most_rows: int = GROUP_ROWS) -> Layout:
    """Cut about ``size_bytes`` of decoded rows into whole row groups, of at most ``most_rows``.

    Examples
    --------
    >>> plan_layout(1_400_000_000, 168).rows, len(plan_layout(1_400_000_000, 168).files())
    (8388608, 16)
    >>> plan_layout(16_800, 168)
    Layout(rows=100, group_rows=13, groups_per_file=4)
    """
    if size_bytes < row_bytes:
        raise ValueError(f"size of {size_bytes} bytes is less than one row of {row_bytes} bytes")
    rows = size_bytes // row_bytes
    group_rows = min(most_rows, max(1, _GROUP_BYTES // row_bytes))
    if rows < _MIN_GROUPS * group_rows:
        return Layout(rows, -(-rows // _MIN_GROUPS))
    return Layout(round(rows / group_rows) * group_rows, group_rows)


def make_data(
    kind: str,
    size_bytes: int,
    *,
    seed: int,
    folder: Path,
    workers: int,
    progress: Callable[[int, int], None],
    group_rows: int = GROUP_ROWS,
) -> list[Path]:
    """Generate the missing files, and return all files in order.

    Parameters
    ----------
    kind
        One of `KINDS`.
    size_bytes
        Decoded bytes; rounded to complete row groups if there are eight or more.
    seed
        Seed of the random values.
    folder
        Parent folder; each dataset has a subfolder named after its parameters.
    workers
        Number of writer processes.
    progress
        Called with (files done, total files).
    group_rows
        The most rows of a row group.
    """
    layout = plan_layout(size_bytes, _MAKERS[kind][0], group_rows)
    groups = "" if group_rows == GROUP_ROWS else f"-groups-of-{group_rows}"
    home = folder / f"{kind}-{layout.rows}-rows{groups}-seed-{seed}-v{_FORMAT}"
    home.mkdir(parents=True, exist_ok=True)
    targets = {file: home / f"part-{file.number:05d}.parquet" for file in layout.files()}
    missing = {file: path for file, path in targets.items() if not path.exists()}
    _write_missing(kind, layout, missing, seed, workers, progress)
    return list(targets.values())


def _write_missing(
    kind: str,
    layout: Layout,
    missing: dict[FileRows, Path],
    seed: int,
    workers: int,
    progress: Callable[[int, int], None],
) -> None:
    if not missing:
        return
    progress(0, len(missing))
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(workers, len(missing)), mp_context=spawn) as pool:
        written = [pool.submit(write_file, kind, layout, file, path, seed) for file, path in missing.items()]
        for done, future in enumerate(as_completed(written), start=1):
            future.result()
            progress(done, len(missing))


def write_file(kind: str, layout: Layout, file: FileRows, path: Path, seed: int) -> None:
    """Write one file under a temporary name, then rename it."""
    unfinished = path.with_suffix(f".{os.getpid()}.unfinished")
    try:
        _write_groups(kind, layout, file, unfinished, seed)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _write_groups(kind: str, layout: Layout, file: FileRows, path: Path, seed: int) -> None:
    writer: pq.ParquetWriter | None = None
    for first in range(file.first_row, file.stop_row, layout.group_rows):
        table = make_table(
            kind, first, min(layout.group_rows, file.stop_row - first), first // layout.group_rows, seed
        )
        writer = writer or pq.ParquetWriter(path, table.schema, compression="snappy")
        writer.write_table(table, row_group_size=layout.group_rows)
    if writer is not None:
        writer.close()


def make_table(kind: str, first_row: int, rows: int, group: int, seed: int) -> pa.Table:
    """Generate one row group."""
    return _MAKERS[kind][1](first_row, rows, group, seed)

"""Generated datasets: made once, in a folder that appears when it is complete."""

from __future__ import annotations

import multiprocessing
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from bench.data.generators import DLRM_ROW_BYTES, make_dlrm
from bench.system.console import ProgressLine
from bench.system.machine import count_cores

GROUP_ROWS = 131_072
_MIN_GROUPS = 8
_SEED = 0
_FORMAT = 1  # part of the folder's name: increase it when the generator's rows change


@dataclass(frozen=True)
class Layout:
    """Rows cut into row groups of ``group_rows``, and those into files."""

    rows: int
    group_rows: int
    groups_per_file: int = 4

    def files(self) -> list[range]:
        step = self.group_rows * self.groups_per_file
        return [range(first, min(first + step, self.rows)) for first in range(0, self.rows, step)]


def plan_layout(size_bytes: int, group_rows: int = GROUP_ROWS) -> Layout:
    """Cut about ``size_bytes`` of decoded rows into whole row groups, of ``group_rows`` if they have as many.

    Examples
    --------
    >>> plan_layout(1_400_000_000).rows, len(plan_layout(1_400_000_000).files())
    (8388608, 16)
    >>> plan_layout(16_800)
    Layout(rows=100, group_rows=13, groups_per_file=4)
    """
    if size_bytes < DLRM_ROW_BYTES:
        raise ValueError(f"size of {size_bytes} bytes is less than one row of {DLRM_ROW_BYTES} bytes")
    rows = size_bytes // DLRM_ROW_BYTES
    if rows < _MIN_GROUPS * group_rows:
        return Layout(rows, -(-rows // _MIN_GROUPS))
    return Layout(round(rows / group_rows) * group_rows, group_rows)


def make_data(size_bytes: int, folder: Path, *, group_rows: int = GROUP_ROWS) -> list[str]:
    """Generate the files unless that was done before, and return them in order."""
    layout = plan_layout(size_bytes, group_rows)
    groups = "" if group_rows == GROUP_ROWS else f"-groups-of-{group_rows}"
    home = folder / f"dlrm-{layout.rows}-rows{groups}-seed-{_SEED}-v{_FORMAT}"
    files = {f"part-{number:05d}.parquet": rows for number, rows in enumerate(layout.files())}
    line = ProgressLine()
    line.start(f"generating data of {size_bytes / 1e6:,.0f} MB")

    def make(home: Path) -> None:
        home.mkdir()
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(min(count_cores(), len(files)), mp_context=spawn) as pool:
            written = [
                pool.submit(write_file, rows, layout.group_rows, home / name) for name, rows in files.items()
            ]
            for done, future in enumerate(as_completed(written), start=1):
                future.result()
                line.update(done / len(files), f"{done} of {len(files)} files")

    make_once(home, make)
    line.finish(f"{len(files)} files in {home}")
    return [str((home / name).resolve()) for name in files]


def make_once(home: Path, make: Callable[[Path], None]) -> Path:
    """The folder that ``make`` has filled, now or in an earlier run."""
    if not home.exists():
        unfinished = home.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        make(unfinished)
        unfinished.rename(home)
    return home


def write_file(rows: range, group_rows: int, path: Path) -> None:
    with pq.ParquetWriter(path, make_dlrm(0, 0, 0, _SEED).schema, compression="snappy") as writer:
        for first in rows[::group_rows]:
            group = make_dlrm(first, min(group_rows, rows.stop - first), first // group_rows, _SEED)
            writer.write_table(group, row_group_size=group_rows)

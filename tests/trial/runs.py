"""Runs whose limit is planted: read some epochs as a trainer does, and return what `stats()` says of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from fsspec.implementations.memory import MemoryFileSystem

from windrow.pipeline.statistics.stats import Stats

__all__ = ["ROWS", "SlowStore", "check", "read", "sleeping", "write_rows"]

ROWS = 16_000


def write_rows(path: Path, columns: int = 2, rows: int = ROWS) -> str:
    """Write a file of 16 row groups."""
    table = pa.table({f"c{number}": np.arange(rows) * (number + 1) for number in range(columns)})
    pq.write_table(table, path, row_group_size=rows // 16)
    return str(path)


class SlowStore(MemoryFileSystem):  # type: ignore[misc]
    """A store in memory that answers each read of a range after a while, with a copy of a local file."""

    protocol = "slow"
    cachable = False

    def __init__(self, seconds: float, path: str) -> None:
        super().__init__()
        self._seconds = 0.0
        self.pipe_file("/rows.parquet", Path(path).read_bytes())
        self._seconds = seconds

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        time.sleep(self._seconds)
        return bytes(super().cat_file(path, start=start, end=end, **kwargs))


def sleeping(seconds: float) -> Callable[[Any], Any]:
    """A function that takes this long, however many rows it gets, and returns them."""

    def sleep_over(batch: Any) -> Any:
        time.sleep(seconds)
        return batch

    return sleep_over


def read(pipe: Any, *, work_seconds: float = 0.0, batch_size: int = 500, **options: Any) -> Stats:
    """Read all epochs; the trainer works this long on each batch."""
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            if options:
                batches = epoch.iter_torch_batches(batch_size=batch_size, **options)
            else:
                batches = epoch.iter_batches(batch_size=batch_size)
            for _ in batches:
                if work_seconds:
                    time.sleep(work_seconds)
        return shard.stats()


def check(limited: Stats, cause: str, fix: str, fixed: Stats, *, by: str = "waiting") -> None:
    """Check that the sentence names the cause and the fix, and that with the fix less than half of the time is left.

    By default the time that the trainer waits, without the start, since starting depends on what ran before. What is
    limited by computing is measured in CPU time, which a busy machine changes little.
    """
    found = limited.bottleneck
    assert found.cause == cause, f"{limited}"
    assert fix in found.sentence
    assert str(limited).endswith(found.sentence)
    assert fixed.rows == limited.rows
    seconds: dict[str, Callable[[Stats], float]] = {
        "waiting": lambda stats: stats.wait_seconds - stats.waits["start"],
        "training": lambda stats: stats.trainer.seconds,
        "computing": lambda stats: stats.run.profile.cpu_seconds,
    }
    times = [seconds[by](stats) for stats in (limited, fixed)]
    assert times[1] < times[0] / 2, f"{limited}\n\nwith the fix:\n{fixed}"

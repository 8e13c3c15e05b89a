"""Helpers to read complete pipelines, and to inspect what they leave behind."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pyarrow as pa

from windrow import Shard

T = TypeVar("T")


def at_once(shards: Sequence[Shard], read: Callable[[Shard], T]) -> list[T]:
    """Read all shards at the same time, each in its own thread."""
    with ThreadPoolExecutor(len(shards)) as threads:
        return list(threads.map(read, shards))


def read_epochs(shard: Shard, batch_size: int) -> list[list[pa.Table]]:
    """The batches of each epoch of a shard."""
    return [list(_arrow_batches(epoch, batch_size)) for epoch in shard.iter_epochs()]


def read_pass(shard: Shard, batch_size: int = 64) -> list[pa.Table]:
    """The batches of a shard's next epoch."""
    return list(_arrow_batches(shard, batch_size))


def column(batches: Sequence[Any], name: str = "x") -> list[int]:
    """The values of a column over all batches."""
    return [value for batch in batches for value in _values(batch, name)]


def _arrow_batches(readable: Any, batch_size: int) -> Any:
    return readable.iter_batches(batch_size, batch_format="pyarrow")


def _values(batch: Any, name: str) -> list[int]:
    values = batch[name]
    return values.to_pylist() if isinstance(values, pa.ChunkedArray) else values.tolist()


def windrow_threads() -> list[str]:
    """The names of windrow's threads that are alive in this process."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("windrow")]


def eventually(holds: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Whether a condition becomes true within a time limit."""
    until = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > until:
            return False
        gc.collect()
        time.sleep(0.05)
    return True

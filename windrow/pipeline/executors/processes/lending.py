"""Batches that this process lends to another one in shared memory, until that one maps them no more."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import replace
from itertools import count
from typing import Any

import pyarrow as pa

from windrow.core.shared_batches import SharedBatch, SharedPool, share_batch


class LentBatches:
    """Batches in a pool's memory, which is kept until each has been returned by its number."""

    def __init__(self, pool: SharedPool) -> None:
        self._pool = pool
        self._numbers = count()
        self._lock = threading.Lock()
        self._kept: dict[int, list[Any]] = {}

    def lend(self, rows: pa.RecordBatch) -> SharedBatch:
        """Put a batch into shared memory, and keep it there."""
        shared, kept = share_batch(rows, self._pool)
        with self._lock:
            number = next(self._numbers)
            self._kept[number] = kept
        return replace(shared, number=number)

    def take_back(self, numbers: Iterable[int]) -> None:
        """Let the memory of batches be used again."""
        with self._lock:
            dropped = [self._kept.pop(number, None) for number in numbers]
        # outside the lock, since finalizers run as memory is freed
        dropped.clear()

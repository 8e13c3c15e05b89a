"""Applies the transforms after the shuffle to placed rows, in a shard's process or a host's, or has workers do it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pyarrow as pa

from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.plan.process_budget import calls_ahead
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import RowPositions
from windrow.pipeline.tasks.transforms import apply_maps, as_one_batch

T = TypeVar("T")
R = TypeVar("R")


class Preparation:
    """The transforms after the shuffle of one shard, which ``name`` tells, of several that share their workers.

    Where a transform has workers in other processes, threads of its own wait for them, so that those that place rows,
    and on the threads executor read them, are free meanwhile.
    """

    def __init__(self, after: tuple[MapBatches, ...], name: str, shards: int) -> None:
        self.after = after
        self._name, self._shards = name, shards
        self._lock = threading.Lock()
        self._waiters: WorkerPool | None = None
        self._is_closed = False

    @property
    def calls(self) -> int:
        """Runs that keep the workers of transforms busy, of which each shard has the same share; 0 without workers.

        It grows when a transform moves to processes.
        """
        most = max((stage.workers.most for stage in self.after if stage.workers is not None), default=0)
        return calls_ahead(most, self._shards)

    def run(self, rows: pa.RecordBatch, positions: RowPositions, origin: str) -> pa.RecordBatch:
        """Apply the transforms to rows that have been placed."""
        table = apply_maps(pa.Table.from_batches([rows]), self.after, origin, positions)
        return as_one_batch(table, origin) if table.num_rows else rows

    def submit(
        self,
        submit: Callable[[Callable[[], Any]], Future[Any]],
        place: Callable[[], T],
        prepare: Callable[[T], R],
    ) -> Future[R]:
        """Have rows placed by ``submit``, and then prepared, there too or on threads that wait for other processes."""
        waiters = self._find_waiters()
        if waiters is None:
            return submit(lambda: prepare(place()))
        placed: Future[T] = submit(place)
        return waiters.submit((), lambda: prepare(placed.result()))

    def _find_waiters(self) -> WorkerPool | None:
        calls = self.calls
        with self._lock:
            if self._waiters is None and calls:
                self._waiters = WorkerPool(calls, f"windrow-prepare-{self._name}")
                if self._is_closed:
                    self._waiters.close(0.0)
            return self._waiters

    def close(self) -> None:
        """Submit nothing any more; calls that run end by themselves."""
        with self._lock:
            self._is_closed, waiters = True, self._waiters
        if waiters is not None:
            waiters.close(0.0)

"""A replica's connection to its host that outlives the host's process: another one goes on at the replica's place."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa

from windrow.core.errors import StallError
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.replicas.client import HostConnection
from windrow.pipeline.executors.replicas.replica_states import Opening
from windrow.pipeline.executors.replicas.sockets import HostLostError
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.shuffle.order.runs import Run

# hosts in a row that end before the replica has got anything
_MAX_LOST = 5


class ReconnectingConnection(HostConnection):
    """A connection that ``connect`` makes again when the host has ended.

    The new host reads the open epoch from where the replica has opened it, and releases at once what the replica has
    got already. Runs that were mapped stay mapped.
    """

    def __init__(self, connect: Callable[[], HostConnection]) -> None:
        self._connect = connect
        self._current = connect()
        self._lock = threading.Lock()
        self._opening: Opening | None = None
        self._place = Place(0, 0)
        self._lost = 0
        self._closed = False

    def _call(self, name: str, *arguments: Any, **options: Any) -> Any:
        while True:
            current = self._current
            try:
                return getattr(current, name)(*arguments, **options)
            except HostLostError as error:
                self._replace(current, error)

    def _replace(self, lost: HostConnection, error: HostLostError) -> None:
        """Connect to another host, unless another thread has; raises the error of the last one after some in a row."""
        with self._lock:
            if self._current is not lost:
                return
            self._lost += 1
            if self._closed or self._lost > _MAX_LOST:
                raise error
            lost.close(None)
            self._current = self._connect()
            if self._opening is not None:
                with suppress(HostLostError):
                    # if this one has ended too, the next call finds that
                    self._current.open_epoch(self._opening)
                    self._current.acknowledge(self._place)

    def open_epoch(self, opening: Opening, *, goes_on: bool = False) -> EpochFacts:
        if not goes_on:
            self._opening, self._place = None, Place(opening.cursor.epoch, opening.cursor.window)
        facts = super().open_epoch(opening, goes_on=goes_on)
        self._opening = opening
        return facts

    def open_run(self, key: Key, run: Run, stop: threading.Event) -> pa.RecordBatch | None:
        rows: pa.RecordBatch | None = self._call("open_run", key, run, stop)
        self._lost = 0
        return rows

    def acknowledge(self, place: Place) -> None:
        self._place = max(self._place, place)
        # a host that replaces this one is told then
        with suppress(HostLostError):
            self._current.acknowledge(place)

    def run_stats(self, *, spans: bool) -> RunStats:
        return self._current.run_stats(spans=spans)

    def close(self, stats: TrainerStats | None) -> None:
        self._closed = True
        with suppress(StallError):
            self._current.close(stats)

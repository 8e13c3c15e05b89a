"""The consumer's side of an epoch: takes placed runs in order, and warns or fails when none arrive."""

from __future__ import annotations

import queue
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import Any, NoReturn

import pyarrow as pa

from windrow.core.errors import PlanError, StallError
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.open_epoch import OpenEpoch
from windrow.pipeline.shard.run_queue import PlacedRun
from windrow.pipeline.shard.stall_watch import Waiting
from windrow.pipeline.tasks.transforms import check_schema

__all__ = ["RunReader"]

_SHORT_WAIT_SECONDS = 0.02
_LOOK_SECONDS = 1.0
_HEARTBEAT_SECONDS = 1.0
# limits how long a checkpoint waits, well below the stall timeouts
_MAX_COUNT_WAIT_SECONDS = 5.0


class RunReader:
    """The runs of one shard in one epoch, in order, as record batches.

    Parameters
    ----------
    epoch
        The opened epoch.
    consumer
        The consumer of the runs.
    waiting
        Timeouts for the warning and the error of a stall.

    Attributes
    ----------
    rows, size_bytes
        What the consumer has taken; bytes are estimated from the first run's row size.
    window
        The window of the latest run taken.
    """

    def __init__(self, epoch: OpenEpoch, consumer: Consumer, waiting: Waiting) -> None:
        self._pace = consumer.pace
        self._prefetch_loop = epoch.prefetch_loop
        self._runs = epoch.runs
        self._opening = epoch.opening
        self._run: PlacedRun | None = None
        # the consumer may still be using the previous epoch's last run until it takes the first one of this epoch
        self._latest, self._prefetch_loop.last_run = self._prefetch_loop.last_run, None
        self._waiting = waiting
        self._client = epoch.shard_client
        self._shard = consumer.shard
        self._epoch = epoch.facts.epoch
        self._heartbeat_at = time.monotonic()
        self.rows = 0
        self.size_bytes = 0
        self._row_bytes = 0.0
        self.window = epoch.facts.first_window
        self._schema: pa.Schema | None = None

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (run := self._next()) is not None:
            self._pace.end_run()
            latest, self._latest = self._latest, run
            self._prefetch_loop.note_taken(run, latest)
            del latest
            self.rows += run.rows.num_rows
            self.size_bytes += self._size_of(run.rows)
            self.window = run.window
            self._check_schema(run)
            self._warn()
            self._run = run
            yield run.rows

    def take_converted(self, rows: pa.RecordBatch) -> list[Any] | None:
        """Return the converted batches of the latest run, once, if they were made of exactly these rows."""
        run, self._run = self._run, None
        if run is None or run.rows is not rows or run.converter != self._runs.converter:
            return None
        return run.converted

    def _size_of(self, rows: pa.RecordBatch) -> int:
        # nbytes takes half a millisecond, so the first run stands for all
        if not self._row_bytes and rows.num_rows:
            self._row_bytes = rows.nbytes / rows.num_rows
        return round(self._row_bytes * int(rows.num_rows))

    def _check_schema(self, run: PlacedRun) -> None:
        if self._schema is None:
            self._schema = run.rows.schema
        elif self._schema != run.rows.schema:
            check_schema(self._schema, run.rows.schema, f"epoch {self._epoch}, window {run.window}")

    def wait_for_opening(self) -> None:
        """Wait for the coordinator's reply to the opening of this epoch; raise its error, if any."""
        opening = self._opening
        while opening is not None:
            try:
                # no limit here: the client that sent the request has a timeout of its own
                facts = opening.result(timeout=_LOOK_SECONDS)
            except FutureTimeoutError:
                if opening.done():
                    raise
                if self._prefetch_loop.stopped:
                    self.raise_closed()
                self.send_heartbeat()
            else:
                self._runs.user_warnings.extend(facts.user_warnings)
                self._opening = opening = None
                self._warn()

    def _warn(self) -> None:
        while self._runs.user_warnings:
            warnings.warn(self._runs.user_warnings.popleft(), RuntimeWarning, stacklevel=2)

    @property
    def total(self) -> int | None:
        """Rows of the epoch, or None until its windows determine them."""
        return self._runs.total

    @property
    def corrupt(self) -> frozenset[int]:
        """Numbers of the blocks known from windows so far to be skipped as corrupt."""
        return self._runs.corrupt

    def has_more(self, rows: int) -> bool:
        """Whether this shard may have rows after its first ``rows``.

        If rows are counted while reading, this waits up to five seconds for certainty. Returns True if that
        does not suffice, or reading was stopped or failed. That is safe: a state at the end of an epoch means
        the same as one at the start of the next.
        """
        until = time.monotonic() + _MAX_COUNT_WAIT_SECONDS
        while not self._runs.wait_for_rows(rows, timeout=_LOOK_SECONDS):
            self.send_heartbeat()
            if self._prefetch_loop.stopped or time.monotonic() >= until:
                return True
        return self._runs.handed_rows > rows or not self._runs.is_complete

    def is_prefetched(self) -> bool:
        """Whether the prefetch loop is done with the epoch; waits briefly for it."""
        return self._runs.wait_for_rows(sys.maxsize, timeout=_SHORT_WAIT_SECONDS) and self._runs.is_complete

    def window_before(self, row: int) -> tuple[int, int]:
        """Return the window that holds the row before ``row`` of the epoch, and the row at which it starts."""
        return max(start for start in tuple(self._runs.starts.items()) if start[1] < row)

    @property
    def is_opening_confirmed(self) -> bool:
        """Whether the coordinator has confirmed the opening of the epoch."""
        return self._opening is None

    def leave_epoch(self) -> None:
        """Acknowledge the whole epoch."""
        self._client.acknowledge(Place(self._epoch + 1, 0))

    def close(self, *, continues: bool) -> None:
        """Release everything; stop the prefetch loop, unless it ``continues`` with a next epoch."""
        latest, self._latest = self._latest, None
        self._run = None
        if continues and self._prefetch_loop.has_next_epoch:
            self._prefetch_loop.last_run = latest
            return
        self._prefetch_loop.stop()
        self._prefetch_loop.release_consumed()
        self._prefetch_loop.join(_LOOK_SECONDS)
        self._runs.discard()

    def _next(self) -> PlacedRun | None:
        began, warned = time.monotonic(), False
        future: Future[PlacedRun | None] | None = None
        while True:
            try:
                if future is None:
                    future = self._runs.queue.get(timeout=_LOOK_SECONDS)
                if not future.done():
                    self._prefetch_loop.release_consumed()
                return future.result(timeout=_LOOK_SECONDS)
            except CancelledError:
                self.raise_closed()
            except (queue.Empty, FutureTimeoutError):
                if future is not None and future.done():
                    return future.result()
                self.send_heartbeat()
                warned = self._check_stall(began, warned)

    def send_heartbeat(self) -> None:
        """Tell the coordinator, about once a second, that the consumer takes batches or waits for them."""
        now = time.monotonic()
        if now - self._heartbeat_at >= _HEARTBEAT_SECONDS:
            self._heartbeat_at = now
            self._client.heartbeat()

    def raise_closed(self) -> NoReturn:
        """Raise PlanError because reading was stopped from outside."""
        raise PlanError(f"shard {self._shard} was closed while epoch {self._epoch} was being read")

    def _check_stall(self, began: float, warned: bool) -> bool:
        waited = time.monotonic() - began
        if waited < self._waiting.warn_seconds:
            return False
        reason, still_seconds = self._client.diagnose()
        text = f"shard {self._shard} has waited {waited:,.0f} s (epoch {self._epoch}).\n  {reason}"
        if min(waited, still_seconds) >= self._waiting.fail_seconds:
            raise StallError(text)
        if not warned:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return True

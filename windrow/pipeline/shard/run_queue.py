"""The queue of one epoch's runs, from the prefetch loop to the consumer."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.executors.base import EpochFacts, WindowData

__all__ = ["Converter", "EpochRuns", "PlacedRun"]


@dataclass(frozen=True)
class Converter:
    """Converts a run to batches; equal to any other converter to the same batches.

    Attributes
    ----------
    key
        Identifies the batch format and size.
    function
        Converts the rows of a run.
    """

    key: object
    function: Callable[[pa.RecordBatch], list[Any]] = field(compare=False)


@dataclass
class PlacedRun:
    """A run whose rows have been placed.

    Attributes
    ----------
    rows, window
        Its rows, and the window that they come from.
    takes_slot
        Whether it counts against the loop's ``depth``. Repeated rows at the end of an epoch do not, so that
        the end becomes known however few runs are taken.
    converted, converter
        The batches that the rows were converted to, if any, and the converter.
    """

    rows: pa.RecordBatch
    window: int
    takes_slot: bool = True
    converted: list[Any] | None = None
    converter: Converter | None = None


class EpochRuns:
    """The runs and facts that the prefetch loop has gathered of an epoch, which may not be opened yet.

    Parameters
    ----------
    facts
        The properties of the epoch.

    Attributes
    ----------
    queue
        Futures of runs in stream order; a result of None marks the end.
    starts, total, corrupt
        From the windows so far: their first rows, the rows of the epoch, and the skipped blocks.
    handed_rows, is_complete
        Rows of the submitted runs, and whether they are all rows of the shard.
    failed, ended
        Whether prefetching ended before the last run; whether it ended at all.
    user_warnings
        Warnings for the user, one line each.
    converter
        Converts runs in the worker threads; None: the consumer converts. Until the consumer opens the epoch,
        the converter of the epoch before.
    """

    def __init__(self, facts: EpochFacts, converter: Converter | None) -> None:
        self.facts = facts
        self.queue: queue.SimpleQueue[Future[PlacedRun | None]] = queue.SimpleQueue()
        self.starts: dict[int, int] = {}
        self.total = facts.total
        self.corrupt: frozenset[int] = frozenset()
        self.user_warnings: deque[str] = deque()
        self.handed_rows = 0
        self.is_complete = self.failed = False
        self.converter = converter
        self.ended = False
        self._changed = threading.Condition()
        self._report: Callable[[Place], None] | None = None
        self._acknowledged: Place | None = None

    # --- the consumer's side

    def begin(self, converter: Converter | None, report: Callable[[Place], None]) -> None:
        """Note that the consumer has opened the epoch; acknowledgements go to ``report`` from now on."""
        self.converter = converter
        with self._changed:
            self._report = report
            place = self._acknowledged
        if place is not None:
            report(place)

    def wait_for_rows(self, rows: int, timeout: float) -> bool:
        """Wait until more than ``rows`` rows are submitted, or prefetching ends; returns False on timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended or self.handed_rows > rows, timeout)

    def discard(self) -> None:
        """Release the runs that the consumer has not taken, and cancel its wait for the next one."""
        while not self.queue.empty():
            with suppress(queue.Empty):
                self.queue.get_nowait()
        end: Future[PlacedRun | None] = Future()
        end.cancel()
        self.queue.put(end)

    # --- the prefetch loop's side

    def add_window(self, data: WindowData) -> None:
        """Add the facts and warnings that come with a window."""
        self.user_warnings.extend(data.user_warnings)
        self.starts.update(data.starts)
        self.corrupt = self.corrupt.union(data.corrupt)
        if data.layout is not None and self.total is None:
            self.total = data.layout.total

    def put(self, run: Future[PlacedRun | None], rows: int) -> None:
        """Append a run and its number of rows."""
        self.queue.put(run)
        with self._changed:
            self.handed_rows += rows
            self._changed.notify_all()

    def end(self, end: Future[PlacedRun | None]) -> None:
        """End the queue with a future that has the result None, an error, or is cancelled."""
        self.failed = end.cancelled() or end.exception() is not None
        self.is_complete = not self.failed
        self.queue.put(end)
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def acknowledge(self, place: Place) -> None:
        """Acknowledge everything before a place; deferred until the consumer opens the epoch.

        Until then, the consumer can still request the whole epoch, for example with another batch size.
        """
        with self._changed:
            report = self._report
            if report is None:
                self._acknowledged = place if self._acknowledged is None else max(place, self._acknowledged)
        if report is not None:
            report(place)

"""The runs of one epoch, on their way from the thread that walks its windows to the consumer."""

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
    """Makes the batches of a run; equal to another that makes them alike.

    Attributes
    ----------
    form
        What tells the batches from others.
    call
        Makes them.
    """

    key: object
    function: Callable[[pa.RecordBatch], list[Any]] = field(compare=False)


@dataclass
class PlacedRun:
    """A run in its place.

    Attributes
    ----------
    rows, window
        Its rows, and the window that they come from.
    takes_slot
        Whether it counts among those that wait for the consumer; repeated rows, which end an epoch, do
        not: that an epoch ends is told however little is taken of it.
    converted, convert
        The batches that were made of the rows, if any, and how.
    """

    rows: pa.RecordBatch
    window: int
    takes_slot: bool = True
    converted: list[Any] | None = None
    converter: Converter | None = None


class EpochRuns:
    """What a walk has told of an epoch; the consumer may not have begun it yet.

    Parameters
    ----------
    facts
        The epoch.

    Attributes
    ----------
    queue
        Runs in the order of the stream, being placed or in their places; None at its end.
    starts, total, corrupt
        What the windows have told: their first rows, the rows of the epoch, blocks left out.
    handed_rows, is_complete
        Rows of the runs handed out, and whether they are all that the shard gets.
    failed, ended
        Whether the walk ended before its last run; whether it ended at all.
    look_out
        What users should know, one line each.
    convert
        Makes a run's batches where it is placed; None: they are made when they are asked for. As long
        as the consumer has not begun the epoch, that is as in the one before.
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
        """The consumer has opened the epoch: from now on ``report`` is told how far it has come."""
        self.converter = converter
        with self._changed:
            self._report = report
            acknowledge = self._acknowledged
        if acknowledge is not None:
            report(acknowledge)

    def wait_for_rows(self, rows: int, timeout: float) -> bool:
        """Wait until more than ``rows`` rows have been handed out, or none follow; returns whether so."""
        with self._changed:
            return self._changed.wait_for(lambda: self.ended or self.handed_rows > rows, timeout)

    def discard(self) -> None:
        """Let go of the runs that the consumer has not taken; whoever waits for one is told that none comes."""
        while not self.queue.empty():
            with suppress(queue.Empty):
                self.queue.get_nowait()
        end: Future[PlacedRun | None] = Future()
        end.cancel()
        self.queue.put(end)

    # --- the walk's side

    def add_window(self, data: WindowData) -> None:
        """Note what a window tells."""
        self.user_warnings.extend(data.user_warnings)
        self.starts.update(data.starts)
        self.corrupt = self.corrupt.union(data.corrupt)
        if data.layout is not None and self.total is None:
            self.total = data.layout.total

    def put(self, run: Future[PlacedRun | None], rows: int) -> None:
        """Hand out a run."""
        self.queue.put(run)
        with self._changed:
            self.handed_rows += rows
            self._changed.notify_all()

    def end(self, end: Future[PlacedRun | None]) -> None:
        """Hand out nothing more: None, or why."""
        self.failed = end.cancelled() or end.exception() is not None
        self.is_complete = not self.failed
        self.queue.put(end)
        with self._changed:
            self.ended = True
            self._changed.notify_all()

    def acknowledge(self, place: Place) -> None:
        """Nothing before a place is needed any more; held back while the consumer has not begun.

        Until then the run may yet be asked for all of the epoch.
        """
        with self._changed:
            report = self._report
            if report is None:
                self._acknowledged = place if self._acknowledged is None else max(place, self._acknowledged)
        if report is not None:
            report(place)

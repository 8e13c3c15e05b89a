"""The runs of an epoch, between the prefetch loop that submits them and the reader that takes them."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.shard.waits import Placing
from windrow.pipeline.statistics.phases import Interval
from windrow.shuffle.order.step_runs import Pieces, StepRuns


@dataclass(frozen=True)
class Converter:
    """Converts the rows of a run to batches; equal to any other whose ``key`` names the same format and size."""

    key: object
    function: Callable[[pa.RecordBatch], list[Any]] = field(compare=False)


@dataclass
class PlacedRun:
    """A run whose rows have been placed, and the batches that they were converted to, if any.

    ``takes_slot``: whether it counts against the loop's ``depth``. Repeated rows at the end of an epoch do
    not, so that the end becomes known however few runs are taken. If it was measured, ``produced`` is what its window
    took, and ``placing`` what it took itself.
    """

    rows: pa.RecordBatch
    window: int
    takes_slot: bool = True
    converted: list[Any] | None = None
    converter: Converter | None = None
    # where costs divide steps, the parts of steps that its rows are
    pieces: Pieces | None = None
    produced: Sequence[Interval] = ()
    placing: Placing | None = None


class EpochRuns:
    """The runs and facts that the prefetch loop has gathered of an epoch, which may not be opened yet."""

    def __init__(self, facts: EpochFacts, converter: Converter | None) -> None:
        self.facts = facts
        # in stream order; a result of None marks the end
        self.queue: queue.SimpleQueue[Future[PlacedRun | None]] = queue.SimpleQueue()
        # from the windows so far: their first rows, the rows of the epoch, the corrupt blocks, warnings
        self.starts: dict[int, int] = {}
        self.total = facts.total
        # Where steps end by their tokens: the epoch's row behind each of those so far, from the one on that the facts
        # begin with, and how many there are once all are known.
        self.step_ends: list[int] = []
        self.steps: int | None = None
        self.corrupt: frozenset[int] = frozenset()
        self.user_warnings: deque[str] = deque()
        # rows of the submitted runs, and whether they are all rows of the shard
        self.handed_rows = 0
        self.is_complete = False
        # whether prefetching ended before the last run; whether it ended at all
        self.failed = self.ended = False
        # converts runs in the worker threads; until the consumer opens the epoch, that of the epoch before
        self.converter = converter
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
        cuts = data.layout.cuts if isinstance(data.layout, StepRuns) else None
        if cuts is not None:
            last = self.step_ends[-1] if self.step_ends else self.facts.assignment.start_row
            self.step_ends += [row for row in cuts.starts.tolist() if row > last]
            if cuts.is_end:
                self.steps = len(self.step_ends)

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

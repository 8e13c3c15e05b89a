"""The consumer of a shard: its pace, what is done for it, what it waits for, and these as spans of the timeline."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count, starmap
from typing import Any

from windrow.pipeline.executors.base import Pace
from windrow.pipeline.shard.waits import SHORT_WAIT_SECONDS, Totals, WaitLog
from windrow.pipeline.statistics.phases import COLLATE, DEVICE, START, Span, TrainerStats, scale_to

_MAX_SPANS = 20_000
# what one report carries at most; older ones are dropped
_MAX_UNSENT = 5_000


class SpanLog:
    """The latest spans of one shard's process, and those that were not reported to the coordinator yet.

    Several threads add spans, as tuples of their fields, which become spans when they are read. The trainer's own work
    is merged until it waits, or begins another window. Unless spans are ``kept``, there are none.
    """

    def __init__(self, shard: int, *, kept: bool = True, replica: str = "") -> None:
        self._kept = kept
        # that of the timeline
        self.lane = f"shard {TrainerStats(shard, replica=replica).name}"
        self._sent: deque[Span] = deque(maxlen=_MAX_SPANS)
        self._unsent: deque[tuple[Any, ...]] = deque(maxlen=_MAX_UNSENT)
        # of reading: `add` needs none
        self._lock = threading.RLock()
        # epoch and window of the rows that are being converted, and of the batch that the trainer has
        self.converting = self._trained = (0, 0)
        # when the work began that no span has yet
        self._started: float | None = None

    def __iter__(self) -> Iterator[Span]:
        with self._lock:
            return iter((*self._sent, *starmap(Span, tuple(self._unsent))))

    def add(
        self,
        kind: str,
        epoch: int,
        window: int,
        start: float,
        stop: float,
        lane: str,
        submitted: float,
        phases: tuple[tuple[str, float], ...] = (),
    ) -> None:
        """Add a span, given its fields."""
        if self._kept:
            self._unsent.append((kind, epoch, window, start, stop, lane, submitted, phases))

    def add_conversion(self, start: float, stop: float, phases: Mapping[str, float]) -> None:
        """Add the making of a batch, or its copy to a device."""
        if stop - start >= SHORT_WAIT_SECONDS:
            kind = DEVICE if DEVICE in phases else COLLATE
            pairs = tuple(scale_to(stop - start, phases).items())
            self.add(kind, *self.converting, start, stop, self.lane, start, pairs)

    def add_batch(self, window: tuple[int, int], began: float, now: float) -> None:
        """Note that the trainer worked until ``began``, and waited to ``now`` for a batch of a window.

        Of batches of the same window that came nearly at once, only the first has to be noted.
        """
        self.end_work(began)
        self._trained, self._started = window, now

    def add_wait(
        self, window: tuple[int, int], began: float, stopped: float, phases: Mapping[str, float]
    ) -> None:
        """Add a trainer's wait for a window's batch, when it is known what it was for."""
        self.add("wait", *window, began, stopped, self.lane, began, tuple(phases.items()))

    def add_opening(self, window: tuple[int, int], seconds: float) -> None:
        """Note that opening an epoch, which has just ended, took the trainer this long."""
        self._trained = self.converting = window
        self._started = now = time.time()
        if seconds > SHORT_WAIT_SECONDS:
            self.add("wait", *window, now - seconds, now, self.lane, 0.0, ((START, seconds),))

    def end_work(self, stop: float) -> None:
        """Add the work until ``stop`` as one span."""
        start, self._started = self._started, None
        if start is not None and stop > start:
            self.add("work", *self._trained, start, stop, self.lane, start)

    def take_unsent(self) -> tuple[Span, ...]:
        """Return what was added since the last call; other threads may add meanwhile."""
        with self._lock:
            found = tuple([Span(*self._unsent.popleft()) for _ in range(len(self._unsent))])
            self._sent += found
        return found


class CoreTime:
    """CPU seconds of a thread since it started to count."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start to count, in the calling thread."""
        self._thread, self._from = threading.get_ident(), time.thread_time()

    def seconds(self) -> float:
        """CPU seconds; 0 if another thread started to count."""
        # thread ids are reused, so another thread's smaller time must not give a negative difference
        return max(0.0, time.thread_time() - self._from) if self._thread == threading.get_ident() else 0.0


class Consumer:
    """The consumer of a shard, across epochs: its pace, the latest spans of work done for it, and its waits.

    ``profiled``: whether to measure what is done for it, and what it waits for. ``replica``: the one of the shard that
    it reads for, if there are several.
    """

    def __init__(self, shard: int, profiled: bool = True, replica: str = "") -> None:
        self.shard, self.profiled = shard, profiled
        self.pace = Pace()
        self.spans = SpanLog(shard, kept=profiled, replica=replica)
        self.log = WaitLog(self.spans.add_conversion, kept=profiled)
        self.totals = Totals(shard, self.log.take, self.log.divide_short, self.spans.add_wait, replica)
        self._began, self._numbers = time.time(), count()
        # reentrant, for signal handlers that close a shard
        self._lock = threading.RLock()

    def report(self) -> TrainerStats:
        """Return what the coordinator shall know: the totals, and the spans since the last report."""
        with self._lock:
            sent = self._began, next(self._numbers)
            return replace(self.totals.stats(), spans=self.spans.take_unsent(), sent=sent)

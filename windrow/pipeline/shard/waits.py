"""Where a trainer's waiting time goes: intervals that the preparing threads log, and the shard's totals by phase."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from windrow.core.phase_clock import PhaseClock, measuring
from windrow.pipeline.coordinator.phases import (
    COLLATE,
    OTHER,
    PREPARE,
    START,
    TRANSFORM_PREFIX,
    Interval,
    TrainerStats,
    add_seconds,
    attribute,
    scale_to,
)

__all__ = ["SHORT_WAIT_SECONDS", "Totals", "WaitLog", "phases_of"]

T = TypeVar("T")
# Work that takes less is not logged: a batch that is a view takes as long.
_MIN_SECONDS = 20e-6
# Shorter waits are divided together, since dividing one takes 20 µs, which is a hundredth of a small batch.
SHORT_WAIT_SECONDS = 1e-3
_CONVERTING: Mapping[str, float] = {COLLATE: 1.0}
# an interval is taken by the wait that it overlaps; without one, older ones are dropped
_MAX_INTERVALS = 1_000
_END: Any = object()


def phases_of(clock: PhaseClock) -> dict[str, float]:
    """The phases that a trainer's process has measured; its transforms are those after the shuffle."""
    found: dict[str, float] = {}
    for name, seconds in clock.seconds.items():
        found = add_seconds(found, {PREPARE if name.startswith(TRANSFORM_PREFIX) else name: seconds})
    return found


class WaitLog:
    """What the thread that prepares a shard's batches did, as intervals in order of time.

    One thread adds intervals, and the consumer takes those of a wait. Both may be the same thread.
    Unless intervals are ``kept``, no wait has a known reason.
    """

    def __init__(
        self, note: Callable[[float, float, Mapping[str, float]], None] | None = None, *, kept: bool = True
    ) -> None:
        self._kept = kept
        self._intervals: deque[Interval] = deque(maxlen=_MAX_INTERVALS)
        # An interval that the next wait overlaps too. It is not put back: the deque may have filled up meanwhile, and
        # would drop its newest interval.
        self._unfinished: Interval | None = None
        # is told of what was added
        self._note = note
        # seconds by phase of what was too short to be waited for long
        self._short: dict[str, float] = {}

    def add(self, start: float, phases: Mapping[str, float]) -> None:
        """Add the interval from ``start`` until now."""
        if not self._kept:
            return
        stop = time.time()
        seconds = stop - start
        if seconds >= SHORT_WAIT_SECONDS:
            self._intervals.append(Interval(start, stop, phases))
            if self._note is not None:
                self._note(start, stop, phases)
        elif seconds >= _MIN_SECONDS:
            for name, share in (
                scale_to(seconds, phases).items() if len(phases) > 1 else ((next(iter(phases)), seconds),)
            ):
                self._short[name] = self._short.get(name, 0.0) + share

    def add_wait(self, start: float, history: Iterable[Interval]) -> None:
        """Add a wait for rows that has lasted from ``start`` until now, given what their preparation went to."""
        if not self._kept:
            return
        stop = time.time()
        if stop - start >= _MIN_SECONDS:
            self._intervals.append(Interval(start, stop, attribute(start, stop, history)))

    def take(self, start: float, stop: float) -> dict[str, float]:
        """Divide a wait by what happened in it, and forget what ended before it did."""
        found: list[Interval] = []
        interval, self._unfinished = self._unfinished or self._pop(), None
        while interval is not None:
            if interval.start < stop:
                found.append(interval)
            if interval.stop > stop:
                self._unfinished = interval
                break
            interval = self._pop()
        return attribute(start, stop, found)

    def divide_short(self, seconds: float) -> dict[str, float]:
        """Divide the sum of short waits by what took as short."""
        logged = dict(self._short)
        total = sum(logged.values())
        found = scale_to(min(seconds, total), logged) if total else {}
        return add_seconds(found, {OTHER: seconds - total}) if seconds > total else found

    def _pop(self) -> Interval | None:
        try:
            return self._intervals.popleft()
        except IndexError:
            return None

    def timed(self, batches: Iterable[T], *, profiled: bool) -> Iterator[T]:
        """Yield converted batches, and log the time of converting; ``profiled``: by phase, which costs microseconds."""
        if not self._kept:
            yield from batches
            return
        iterator = iter(batches)
        while True:
            began = time.time()
            if profiled:
                clock = PhaseClock()
                with measuring(clock, COLLATE):
                    batch = next(iterator, _END)
                self.add(began, phases_of(clock))
            else:
                batch = next(iterator, _END)
                self.add(began, _CONVERTING)
            if batch is _END:
                return
            yield batch
            # the consumer alone holds it while the next one is made
            del batch


class Received(Protocol):
    """What a reader of an epoch has delivered."""

    @property
    def steps(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


class Totals:
    """What a shard's consumer has received, how long it worked, and how long it waited for what.

    ``divide_short`` tells what short waits went to, given their sum.
    """

    def __init__(
        self,
        shard: int,
        divide_short: Callable[[float], Mapping[str, float]] = lambda seconds: {OTHER: seconds},
    ) -> None:
        self.shard = shard
        self._divide_short = divide_short
        self._ended = TrainerStats(shard)
        # not the reader itself, which refers to this
        self._reader: Callable[[], Received | None] = lambda: None
        self.work_seconds = 0.0
        self.waits: dict[str, float] = {}
        self._short_seconds = 0.0

    def begin(self, reader: Received, opening_seconds: float) -> None:
        """An epoch has been opened, which took this long."""
        self._reader = weakref.ref(reader)
        self._wait({START: opening_seconds})

    def note(self, *, worked: float, waited: Mapping[str, float]) -> None:
        """The consumer has worked, and then waited for a batch."""
        self.work_seconds += worked
        if OTHER in waited and not self._has_batches:
            # until the first batch, what has no other reason is the start of the run
            waited = {START if name == OTHER else name: seconds for name, seconds in waited.items()}
        self._wait(waited)

    def note_short(self, *, worked: float, waited: float) -> None:
        """The consumer has worked, and got a batch nearly at once."""
        self.work_seconds += worked
        self._short_seconds += waited

    @property
    def _has_batches(self) -> bool:
        reader = self._reader()
        return bool(self._ended.batches or (reader is not None and reader.steps))

    def _wait(self, seconds: Mapping[str, float]) -> None:
        for name, value in seconds.items():
            self.waits[name] = self.waits.get(name, 0.0) + value

    def _divided_waits(self) -> Mapping[str, float]:
        """The waits, of which the short ones and what has no reason went to what took as short."""
        unknown = self._short_seconds + self.waits.get(OTHER, 0.0)
        known = {name: seconds for name, seconds in self.waits.items() if name != OTHER}
        return add_seconds(known, self._divide_short(unknown)) if unknown else known

    def end(self, reader: Received) -> None:
        """The open epoch has ended."""
        if self._reader() is reader:
            self._ended, self._reader = self.stats(), lambda: None

    def stats(self) -> TrainerStats:
        """Everything so far."""
        ended, reader = self._ended, self._reader()
        return TrainerStats(
            ended.shard,
            ended.batches + (reader.steps if reader else 0),
            ended.rows + (reader.rows if reader else 0),
            ended.bytes + (reader.size_bytes if reader else 0),
            self.work_seconds,
            self._divided_waits(),
        )

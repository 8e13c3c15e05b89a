"""Where a trainer's waiting time goes: intervals that the preparing threads log, and the shard's totals by phase."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from windrow.core.phase_clock import PhaseClock, measuring
from windrow.pipeline.statistics.phases import (
    COLLATE,
    OTHER,
    PREPARE,
    START,
    TRANSFORM_PREFIX,
    Dividable,
    Interval,
    TrainerStats,
    add_seconds,
    attribute,
    scale_to,
)

T = TypeVar("T")
# Work that takes less is not logged: a batch that is a view takes as long.
_MIN_SECONDS = 20e-6
# Shorter waits are divided together, since dividing one takes 20 µs, which is a hundredth of a small batch. What is
# shorter gets no span of its own either.
SHORT_WAIT_SECONDS = 1e-3
# what waits for a free thread for longer waits for something else
QUEUE_SECONDS = 1e-3
_CONVERTING: Mapping[str, float] = {COLLATE: 1.0}
# an interval is taken by the wait that it overlaps; without one, older ones are dropped
_MAX_INTERVALS = 10_000
# waits that are divided together
_MAX_UNDIVIDED = 200
_END: Any = object()


def phases_of(clock: PhaseClock) -> dict[str, float]:
    """The phases that a trainer's process has measured; its transforms are those after the shuffle."""
    found: dict[str, float] = {}
    for name, seconds in clock.seconds.items():
        found = add_seconds(found, {PREPARE if name.startswith(TRANSFORM_PREFIX) else name: seconds})
    return found


# pairs of a phase and its seconds
Spent = tuple[tuple[str, float], ...]
# when a run was submitted, when placing it began and ended, and what that took
Placing = tuple[float, float, float, Spent]


class DescribeQueue(Protocol):
    """What tasks did from one time to another, while a run waited for a free thread; None if nobody knows any more."""

    def __call__(self) -> Callable[[float, float], Mapping[str, float]] | None: ...


class _RunWait(NamedTuple):
    """A wait for the rows of a run: ``produced`` tells how its window was made, ``placing`` how the run was.

    The wait is divided by phase when its statistics are read.
    """

    start: float
    stop: float
    produced: Sequence[Interval]
    placing: Placing
    # a weak reference: this must not keep a run alive
    describe_queue: DescribeQueue

    def divide(self, start: float, stop: float) -> Mapping[str, float]:
        submitted, began, stopped, spent = self.placing
        placing = dict(spent)
        if began <= start and stop <= stopped:
            # all of it went to placing, as many do
            return scale_to(stop - start, placing)
        found = [interval for interval in self.produced if interval.stop > start]
        if start < began:
            queued_from = start if start > submitted else submitted
            describe = self.describe_queue() if began - submitted > QUEUE_SECONDS else None
            queued = describe(queued_from, began) if describe is not None else {}
            found.append(Interval(queued_from, began, queued or placing))
        found.append(Interval(began, stopped, placing))
        return attribute(start, stop, found)


class WaitLog:
    """What the thread that prepares a shard's batches did, as intervals in order of time.

    One thread adds intervals, and the consumer takes those of a wait. Both may be the same thread.
    Unless intervals are ``kept``, no wait has a known reason.
    """

    def __init__(
        self, note: Callable[[float, float, Mapping[str, float]], None] | None = None, *, kept: bool = True
    ) -> None:
        self._kept = kept
        self._intervals: deque[Dividable] = deque(maxlen=_MAX_INTERVALS)
        # An interval that the next wait overlaps too. It is not put back: the deque may have filled up meanwhile, and
        # would drop its newest interval.
        self._unfinished: Dividable | None = None
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

    def add_wait(
        self,
        start: float,
        stop: float,
        produced: Sequence[Interval],
        placing: Placing | None,
        describe_queue: DescribeQueue,
    ) -> None:
        """Add a wait for rows, given how their window was made, and when and how they were placed."""
        if self._kept and placing is not None and stop - start >= _MIN_SECONDS:
            # a run is submitted when its window is there; what described the window can then be freed
            produced = produced if start < placing[0] else ()
            self._intervals.append(_RunWait(start, stop, produced, placing, describe_queue))

    def add_conversion(self, start: float, stop: float) -> None:
        """Add the making of a batch in the consumer's thread, as part of a wait that is not short."""
        if self._kept and stop - start >= _MIN_SECONDS:
            self._intervals.append(Interval(start, stop, _CONVERTING))
            if self._note is not None:
                self._note(start, stop, _CONVERTING)

    def take(self, start: float, stop: float) -> dict[str, float]:
        """Divide a wait by what happened in it, and forget what ended before it did."""
        if not self._kept:
            return {OTHER: stop - start}
        found: list[Dividable] = []
        interval, self._unfinished = self._unfinished or self._pop(), None
        while interval is not None:
            if interval.start < stop:
                found.append(interval)
            if interval.stop > stop:
                self._unfinished = interval
                break
            interval = self._pop()
        return attribute(start, stop, found)

    def divide_short(self, seconds: float, converting: float = 0.0) -> dict[str, float]:
        """Divide the sum of short waits, of which ``converting`` made batches, by what took as short."""
        logged = dict(self._short)
        if converting and self._kept:
            logged = add_seconds(logged, {COLLATE: converting})
        total = sum(logged.values())
        found = scale_to(min(seconds, total), logged) if total else {}
        return add_seconds(found, {OTHER: seconds - total}) if seconds > total else found

    def _pop(self) -> Dividable | None:
        # no other thread takes any
        return self._intervals.popleft() if self._intervals else None

    def timed(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield converted batches, and log the time of converting by phase."""
        iterator = iter(batches)
        while True:
            began, clock = time.time(), PhaseClock()
            with measuring(clock, COLLATE):
                batch = next(iterator, _END)
            self.add(began, phases_of(clock))
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
    @property
    def place(self) -> tuple[int, int] | None: ...


class Totals:
    """What a shard's consumer has received, how long it worked, and how long it waited for what.

    ``divide`` divides the time between two times by phase, ``divide_short`` the sum of short waits, given how much of
    it made batches. ``note`` is told of each wait that is not short: the window, when it began and ended, and its
    seconds by phase. Waits are divided together, when statistics are read or after many waits: one by one, between
    batches, that takes several times as long.
    """

    def __init__(
        self,
        shard: int,
        divide: Callable[[float, float], Mapping[str, float]] = lambda start, stop: {OTHER: stop - start},
        divide_short: Callable[[float, float], Mapping[str, float]] = lambda seconds, _: {OTHER: seconds},
        note: Callable[[tuple[int, int], float, float, Mapping[str, float]], None] = lambda *_: None,
        replica: str = "",
    ) -> None:
        self.shard, self._replica = shard, replica
        self._divide, self._divide_short, self._note = divide, divide_short, note
        # batches, rows and bytes of the epochs that have ended
        self._ended = (0, 0, 0)
        self._place: tuple[int, int] | None = None
        # not the reader itself, which refers to this
        self._reader: Callable[[], Received | None] = lambda: None
        self.work_seconds = 0.0
        self._waits: dict[str, float] = {}
        # window, begin and end of waits that are not divided yet, and whether the trainer had a batch before
        self._undivided: deque[tuple[tuple[int, int], float, float, bool]] = deque()
        # reentrant, for signal handlers that close a shard
        self._lock, self._settles = threading.RLock(), False
        self._short_seconds = self._short_converting = 0.0

    def begin(self, reader: Received, opening_seconds: float) -> None:
        """An epoch has been opened, which took this long."""
        self._reader = weakref.ref(reader)
        with self._lock:
            self._wait({START: opening_seconds})

    def note_wait(self, window: tuple[int, int], began: float, stopped: float, *, worked: float) -> None:
        """The consumer has worked, and then waited for a window's batch."""
        self.work_seconds += worked
        self._undivided.append((window, began, stopped, self._has_batches))
        if len(self._undivided) >= _MAX_UNDIVIDED:
            self.settle()

    def settle(self) -> None:
        """Divide all waits so far by what they were for."""
        with self._lock:
            if self._settles:
                return
            self._settles = True
            try:
                self._settle()
            finally:
                self._settles = False

    def _settle(self) -> None:
        while self._undivided:
            window, began, stopped, had_batches = self._undivided.popleft()
            waited = self._divide(began, stopped)
            self._note(window, began, stopped, waited)
            if OTHER in waited and not had_batches:
                # until the first batch, what has no other reason is the start of the run
                waited = {START if name == OTHER else name: value for name, value in waited.items()}
            self._wait(waited)

    def note_short(self, *, worked: float, waited: float, converting: float = 0.0) -> None:
        """The consumer has worked, and got a batch nearly at once; ``converting``: what is known to have made it."""
        self.work_seconds += worked
        self._short_seconds += waited
        self._short_converting += converting

    @property
    def _has_batches(self) -> bool:
        reader = self._reader()
        return bool(self._ended[0] or (reader is not None and reader.steps))

    def _wait(self, seconds: Mapping[str, float]) -> None:
        for name, value in seconds.items():
            self._waits[name] = self._waits.get(name, 0.0) + value

    def _divided_waits(self) -> Mapping[str, float]:
        """The waits, of which the short ones and what has no reason went to what took as short."""
        self.settle()
        with self._lock:
            known = dict(self._waits)
        unknown = self._short_seconds + known.pop(OTHER, 0.0)
        return add_seconds(known, self._divide_short(unknown, self._short_converting)) if unknown else known

    def move(self) -> None:
        """The shard goes on from a state: it has not read up to the place of before any more."""
        self._place = None

    def end(self, reader: Received) -> None:
        """The open epoch has ended."""
        if self._reader() is reader:
            self._place = reader.place or self._place
            self._ended, self._reader = self._received(), lambda: None

    def stats(self) -> TrainerStats:
        """Everything so far."""
        reader = self._reader()
        if reader is not None:
            self._place = reader.place or self._place
        return TrainerStats(
            self.shard,
            *self._received(),
            self.work_seconds,
            self._divided_waits(),
            self._replica,
            self._place,
        )

    def _received(self) -> tuple[int, int, int]:
        """Batches, rows and bytes of all epochs."""
        (batches, rows, size_bytes), reader = self._ended, self._reader()
        if reader is None:
            return self._ended
        return batches + reader.steps, rows + reader.rows, size_bytes + reader.size_bytes

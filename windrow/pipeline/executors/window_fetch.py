"""The protocol by which a shard fetches windows from a coordinator, as a state machine without I/O.

It decides which window to fetch next, what to ask the coordinator, and what to do when objects are lost or
do not arrive. Nothing here waits or runs threads; a driver does: a thread on Ray, a simulation in tests.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from windrow.core.errors import StallError
from windrow.pipeline.coordinator.requests import Ask, WindowReply
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.shuffle.kernels.close_gaps import close_gaps
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.ordered_rows import OrderedOutputs, OrderedRows
from windrow.shuffle.order.runs import WindowRuns
from windrow.shuffle.order.step_runs import StepRuns

# the window being consumed, and the next one
_WINDOWS_NEEDED = 2
# If two threads of a process hold references to one object and one drops its reference, Ray can fail to
# notify the other that the object is available. A fresh reference from the coordinator is notified.
_LOAD_TIMEOUT_SECONDS = 2.0
_MAX_LOAD_TIMEOUT_SECONDS = 60.0
# about two minutes in total, more than Ray takes to recompute lost objects
_MAX_LOST = 30
# After about half a minute, a new attempt at the whole window is requested: Ray waits indefinitely for
# objects whose spill files are lost.
_LOSSES_PER_ATTEMPT = 10
_MAX_ATTEMPT_TIMEOUT_SECONDS = 16.0
_MAX_PAUSE_SECONDS = 5.0


class Ahead:
    """Read-ahead of windows: those that a shard has fetched, by (epoch, window), and which one is next.

    ``windows`` is their number per epoch; ``leads_on`` continues with those of the next epoch. The coordinator
    buffers ``extra_windows``: the acknowledgement of up to this many consumed windows can wait for the next
    request, and as many more are fetched ahead.

    The consumer has acknowledged everything before ``place``. ``cursor`` is where the shard opened the latest
    epoch, with all blocks known so far to be skipped as corrupt.
    """

    def __init__(self, cursor: Cursor, windows: int, *, leads_on: bool, extra_windows: int = 0) -> None:
        self.place = self._reported = Place(cursor.epoch, cursor.window)
        self.fetched: dict[Key, WindowData] = {}
        self._windows = windows
        self._extra_windows = extra_windows
        self._requested: Key | None = None
        self._last_taken = self._last_asked = self._index(cursor.epoch, cursor.window) - 1
        self._paused = False
        self.open(cursor, leads_on=leads_on)

    def open(self, cursor: Cursor, *, leads_on: bool) -> None:
        """Note that the shard opens an epoch: its first one, or the next."""
        self.cursor = cursor
        self._stop = self._index(cursor.epoch + 1 + leads_on, 0)

    def _index(self, epoch: int, window: int) -> int:
        """Return a window's index among the windows of all epochs."""
        return epoch * self._windows + window

    def want(self, key: Key) -> None:
        """Note that the consumer waits for a window."""
        self._requested, self._paused = key, False

    def keep(self, key: Key, data: WindowData) -> None:
        """Store a fetched window, unless the consumer has acknowledged all of it meanwhile."""
        if self._index(*key) >= self._passed:
            self.fetched[key] = data
        self.cursor = self.cursor.skipping(data.corrupt)

    def take(self, key: Key) -> WindowData | None:
        """Remove and return a window if it has been fetched, else None."""
        if key not in self.fetched:
            return None
        self._requested, self._last_taken = None, max(self._last_taken, self._index(*key))
        return self.fetched.pop(key)

    def release(self) -> None:
        """Drop the fetched windows, and pause."""
        self.pause()
        self.fetched.clear()

    def pause(self) -> None:
        """Fetch nothing until the consumer waits for a window."""
        self._paused, self._requested = True, None

    def acknowledge(self, place: Place) -> bool:
        """Note how far the consumer has come; returns whether the place has advanced."""
        if place <= self.place:
            return False
        self.place = place
        for key in [key for key in self.fetched if self._index(*key) < self._passed]:
            del self.fetched[key]
        return True

    def ask(self, key: Key) -> Place:
        """Note that the coordinator is asked for a window; returns the place to report with the request."""
        self._last_asked, self._reported = max(self._last_asked, self._index(*key)), self.place
        return self.place

    def take_news(self, *, waits: bool = False) -> Place | None:
        """Return the place if it must be reported now instead of with the next request; else None.

        A returned place counts as reported. ``waits``: the consumer waits for a window, whose production may
        need the memory of windows that it has already consumed.
        """
        passed, reported = self._passed, self._index(self._reported.epoch, self._reported.window)
        more_to_ask = not self._paused and max(passed, self._last_asked + 1) < self._fetch_stop
        can_wait = more_to_ask and not waits and 0 < self._extra_windows >= passed - reported
        if self.place == self._reported or can_wait:
            return None
        self._reported = self.place
        return self.place

    def next(self) -> Key | None:
        """Return the window to fetch: the one the consumer waits for, else the next one ahead; None for none."""
        if self._paused:
            return None
        requested, passed = self._requested, self._passed
        # a request for a window that has been acknowledged since is obsolete
        if requested is not None and requested not in self.fetched and self._index(*requested) >= passed:
            return requested
        ahead = range(max(passed, self._last_taken + 1), self._fetch_stop)
        keys = (divmod(number, self._windows) for number in ahead)
        return next((key for key in keys if key not in self.fetched), None)

    @property
    def _passed(self) -> int:
        return self._index(self.place.epoch, self.place.window)

    @property
    def _fetch_stop(self) -> int:
        return min(self._passed + max(_WINDOWS_NEEDED, 1 + self._extra_windows), self._stop)


class WindowCollector:
    """The outputs of one window's latest attempt that have arrived so far, by input split (``part``)."""

    def __init__(self) -> None:
        self._attempt: object = None
        # the latest one
        self._reply: WindowReply | None = None
        self.outputs: dict[int, list[Any]] = {}
        self._runs: dict[int, tuple[int, int]] = {}

    def add(self, reply: WindowReply, attempt: object) -> None:
        """Add the outputs of a reply; those of an earlier attempt are discarded."""
        if attempt != self._attempt:
            self._attempt, self.outputs, self._runs = attempt, {}, {}
        self._reply = reply
        self.outputs.update(reply.outputs)
        self._runs.update(reply.runs)

    @property
    def complete(self) -> bool:
        """Whether the outputs of every part have arrived."""
        return self._reply is not None and len(self.outputs) == self._reply.parts

    def window(self, user_warnings: Sequence[str]) -> WindowData:
        """Return the complete window; its handles must have been replaced by map outputs."""
        reply = self._reply
        assert reply is not None, "a complete window has a reply"
        slices: list[Any]
        if self._runs:
            slices = [self._join_round(reply.layout)]
        else:
            by_slice = zip(*(self.outputs[part] for part in sorted(self.outputs)), strict=True)
            slices = [_join_outputs(chain.from_iterable(filter(None, of_slice))) for of_slice in by_slice]
        return WindowData(
            reply.layout,
            slices,
            user_warnings,
            reply.starts,
            reply.corrupt,
            reply.row_bytes,
            reply.history,
        )

    def _join_round(self, layout: WindowRuns | StepRuns | None) -> MapOutputs:
        """The map outputs of a mixture's round, each with the runs of the round alone."""
        found = []
        for part in sorted(self.outputs):
            (map_outputs,) = self.outputs[part]
            found += [map_output.of_runs(*self._runs[part]) for map_output in map_outputs or ()]
        if isinstance(layout, StepRuns) and layout.has_gaps:
            found = close_gaps(found, layout.own_runs, layout.assignment.sequence_rows, layout.moves)
        return MapOutputs(found)


def _join_outputs(outputs: Iterable[MapOutput | OrderedRows]) -> MapOutputs | OrderedOutputs:
    found: list[Any] = list(outputs)
    # all tasks of a window make outputs of one kind
    return OrderedOutputs(found) if found and isinstance(found[0], OrderedRows) else MapOutputs(found)


@dataclass(frozen=True)
class Load:
    """Get the objects of a reply; send the reply with their values, `Lost`, or `UNHEARD` on timeout."""

    reply: WindowReply
    patience_seconds: float


@dataclass(frozen=True)
class Pause:
    """Wait for ``seconds``, and send None."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """Signals that objects are lost."""

    error: Exception


# signals that no object arrived within ``patience_seconds``
UNHEARD = object()


def fetch_window(shard: int, epoch: int, window: int) -> Generator[Ask | Load | Pause, Any, WindowData]:
    """Fetch a window, part by part: yields what the driver must do next, and is sent the result.

    To `Ask`, that is the coordinator's answer, or None if there is none yet. Raises StallError if objects are lost
    repeatedly.
    """
    collector, attempt, abandoned = WindowCollector(), "", ""
    lost, patience = 0, _LOAD_TIMEOUT_SECONDS
    # keep replies whose objects did not arrive: dropping their references would cancel transfers
    timed_out: list[WindowReply] = []
    user_warnings: list[str] = []
    while not collector.complete:
        answer = yield Ask(attempt, frozenset(collector.outputs), abandoned)
        if answer is None:
            continue
        attempt, reply = answer
        abandoned = ""
        user_warnings += reply.user_warnings
        loaded = yield Load(reply, patience)
        if loaded is UNHEARD:
            timed_out.append(reply)
            if patience >= _MAX_ATTEMPT_TIMEOUT_SECONDS:
                abandoned = attempt
                timed_out.clear()
            patience = min(2 * patience, _MAX_LOAD_TIMEOUT_SECONDS)
            collector, attempt = WindowCollector(), ""
        elif isinstance(loaded, Lost):
            # either the coordinator that owned the objects died, and its successor recomputes them;
            # or their node died, and Ray recomputes them
            lost += 1
            if lost >= _MAX_LOST:
                raise StallError(
                    f"shard {shard}: map outputs of epoch {epoch}, window {window} were lost {lost} times and "
                    "could not be recomputed: look for nodes that die, or whose disks or object stores "
                    f"are full ({loaded.error})"
                ) from loaded.error
            yield Pause(min(0.1 * 2**lost, _MAX_PAUSE_SECONDS))
            abandoned = attempt if lost % _LOSSES_PER_ATTEMPT == 0 else ""
            collector, attempt = WindowCollector(), ""
        else:
            collector.add(loaded, attempt)
    return collector.window(user_warnings)

"""What a shard does to get the windows of an epoch from a coordinator, without the waiting.

Which window to fetch next, what to ask, and what to do when objects are lost or not heard
of. Nothing here waits or runs: a host does, which is a thread on Ray, and a simulation in tests.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from windrow.core.errors import StallError
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.buffered_window import WindowReply
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.shard.window_collector import WindowCollector

__all__ = ["UNHEARD", "Ahead", "Ask", "Load", "Lost", "Pause", "Unheard", "fetch_window"]

# the window being consumed, and the next
_WINDOWS_NEEDED = 2
# Where two threads of a process hold references to one object and one lets go, Ray can forget to
# tell the other that the object is here. A reference that is asked for anew is told.
_LOAD_TIMEOUT_SECONDS = 2.0
_MAX_LOAD_TIMEOUT_SECONDS = 60.0
# together about two minutes, more than Ray takes to compute lost objects again
_MAX_LOST = 30
# After about half a minute in vain the whole window is asked for anew: Ray waits for ever for
# what it had spilled to a file that is gone.
_LOSSES_PER_ATTEMPT = 10
_MAX_ATTEMPT_TIMEOUT_SECONDS = 16.0
_MAX_PAUSE_SECONDS = 5.0


class Ahead:
    """The windows that a shard has fetched, by (epoch, window), and which one is next.

    Parameters
    ----------
    cursor
        Where the shard opens its first epoch.
    windows
        How many an epoch has.
    leads_on
        Whether those of the next epoch follow.
    spare
        How many windows the run holds beyond those that were asked for. So many may have been passed
        without its being told at once, and more are fetched ahead.

    Attributes
    ----------
    place
        Nothing before it is needed any more.
    fetched
        What waits to be taken.
    cursor
        Where the shard opened the latest epoch, and all blocks that it knows by now to be left out as
        corrupt.
    """

    def __init__(self, cursor: Cursor, windows: int, *, leads_on: bool, spare: int = 0) -> None:
        self.place = self._reported = Place(cursor.epoch, cursor.window)
        self.fetched: dict[Key, WindowData] = {}
        self._windows = windows
        self._spare = spare
        self._requested: Key | None = None
        self._last_taken = self._last_asked = self._index(cursor.epoch, cursor.window) - 1
        self._paused = False
        self.open(cursor, leads_on=leads_on)

    def open(self, cursor: Cursor, *, leads_on: bool) -> None:
        """The shard opens an epoch: the first, or the one after."""
        self.cursor = cursor
        self._stop = self._index(cursor.epoch + 1 + leads_on, 0)

    def _index(self, epoch: int, window: int) -> int:
        """Where a window stands among those of all epochs."""
        return epoch * self._windows + window

    def want(self, key: Key) -> None:
        """The consumer asks for a window."""
        self._requested, self._paused = key, False

    def keep(self, key: Key, data: WindowData) -> None:
        """A window has been fetched; it may have been passed meanwhile."""
        if self._index(*key) >= self._passed:
            self.fetched[key] = data
        self.cursor = self.cursor.skipping(data.corrupt)

    def take(self, key: Key) -> WindowData | None:
        """A window, if it is here."""
        if key not in self.fetched:
            return None
        self._requested, self._last_taken = None, max(self._last_taken, self._index(*key))
        return self.fetched.pop(key)

    def release(self) -> None:
        """Drop what is here; there is no next window until one is asked for."""
        self.pause()
        self.fetched.clear()

    def pause(self) -> None:
        """Nothing is fetched until a window is asked for."""
        self._paused, self._requested = True, None

    def acknowledge(self, place: Place) -> bool:
        """Note how far the consumer has come; returns whether that is news."""
        if place <= self.place:
            return False
        self.place = place
        for key in [key for key in self.fetched if self._index(*key) < self._passed]:
            del self.fetched[key]
        return True

    def ask(self, key: Key) -> Place:
        """A question about a window is asked, and tells the place that is returned."""
        self._last_asked, self._reported = max(self._last_asked, self._index(*key)), self.place
        return self.place

    def take_news(self, *, waits: bool = False) -> Place | None:
        """The place, if it is to be told now and not with the next question; then it counts as told.

        ``waits``: the consumer has been waiting for a window, which may wait for what it has passed.
        """
        passed, reported = self._passed, self._index(self._reported.epoch, self._reported.window)
        more_to_ask = not self._paused and max(passed, self._last_asked + 1) < self._fetch_stop
        can_wait = more_to_ask and not waits and 0 < self._spare >= passed - reported
        if self.place == self._reported or can_wait:
            return None
        self._reported = self.place
        return self.place

    def next(self) -> Key | None:
        """The window to fetch: the one that is asked for, else the next one ahead."""
        if self._paused:
            return None
        requested, passed = self._requested, self._passed
        # who asked for what has been passed since is not there any more
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
        return min(self._passed + max(_WINDOWS_NEEDED, 1 + self._spare), self._stop)


@dataclass(frozen=True)
class Ask:
    """Ask the coordinator for what is lacking; send its answer, or None for none.

    Attributes
    ----------
    attempt, have
        The parts that are here, and of which attempt.
    lost
        An attempt whose objects do not come any more.
    """

    attempt: str
    have: frozenset[int]
    lost: str = ""


@dataclass(frozen=True)
class Load:
    """Get the objects of a reply; send the reply with their values, `Lost` or `UNHEARD`."""

    reply: WindowReply
    patience_seconds: float


@dataclass(frozen=True)
class Pause:
    """Wait so long, and send None."""

    seconds: float


@dataclass(frozen=True)
class Lost:
    """Objects are lost."""

    error: Exception


class Unheard:
    """None of the objects has been heard of for as long as patience lasts."""


UNHEARD = Unheard()


def fetch_window(shard: int, epoch: int, window: int) -> Generator[Ask | Load | Pause, Any, WindowData]:
    """Fetch a window, part by part.

    Yields
    ------
    Ask, Load or Pause
        What to do next.

    Returns
    -------
    WindowData

    Raises
    ------
    StallError
        If objects are lost again and again.
    """
    collector, attempt, abandoned = WindowCollector(), "", ""
    lost, patience = 0, _LOAD_TIMEOUT_SECONDS
    # replies that nothing was heard of: to drop their references would cancel transfers
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
        if isinstance(loaded, Unheard):
            timed_out.append(reply)
            if patience >= _MAX_ATTEMPT_TIMEOUT_SECONDS:
                abandoned = attempt
                timed_out.clear()
            patience = min(2 * patience, _MAX_LOAD_TIMEOUT_SECONDS)
            collector, attempt = WindowCollector(), ""
        elif isinstance(loaded, Lost):
            # the coordinator that owned them is gone, and its successor computes them
            # again; or they went with their node, and Ray does
            lost += 1
            if lost >= _MAX_LOST:
                raise StallError(
                    f"shard {shard}: map outputs of epoch {epoch}, window {window} were lost {lost} times and "
                    "could not be computed again: look for nodes that die, or whose disks or object stores "
                    f"are full ({loaded.error})"
                ) from loaded.error
            yield Pause(min(0.1 * 2**lost, _MAX_PAUSE_SECONDS))
            abandoned = attempt if lost % _LOSSES_PER_ATTEMPT == 0 else ""
            collector, attempt = WindowCollector(), ""
        else:
            collector.add(loaded, attempt)
    return collector.window(user_warnings)

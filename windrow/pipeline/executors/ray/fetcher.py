"""Fetches an epoch's windows in a thread of its own, one ahead of the consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import ray

from windrow.core.errors import StallError
from windrow.pipeline.collector import WindowCollector
from windrow.pipeline.executors.ray.asking import LOOK_SECONDS, ask_until
from windrow.pipeline.executors.ray.requests import OpenRequest
from windrow.pipeline.executors.seam import EpochFacts, WindowData
from windrow.pipeline.scheduling.events import Place

__all__ = ["Fetcher"]

# the window being consumed, and the next
_WINDOWS_AHEAD = 2
# Where two threads of a process hold references to one object and one lets go, Ray can forget to
# tell the other that the object is here. A reference that is asked for anew is told.
_UNHEARD_SECONDS = 2.0
_LONGEST_UNHEARD_SECONDS = 60.0
# together about two minutes, more than Ray takes to compute lost objects again
_LOST_TRIES = 30
_LONGEST_PAUSE_SECONDS = 5.0


class Fetcher:
    """The windows of one epoch, for one shard.

    One thread gets all objects, since gets of several threads can cancel each other's
    transfers.
    """

    def __init__(self, coordinator: Any, request: OpenRequest, facts: EpochFacts) -> None:
        self._coordinator = coordinator
        self._request = request
        self._windows = facts.windows
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        self._place = Place(facts.epoch, facts.first_window)
        self._fetched: dict[int, WindowData] = {}
        self._wanted: int | None = None
        self._taken = facts.first_window - 1
        self._paused = False
        # set when what is being fetched is no longer to be kept
        self._void = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"windrow-fetch-{request.shard}", daemon=True)
        self._thread.start()

    @property
    def epoch(self) -> int:
        """The epoch that it fetches."""
        return self._request.cursor.epoch

    def take(self, window: int, stop: threading.Event) -> WindowData | None:
        """Wait for a window; None when ``stop`` is set first. What was let go comes anew."""
        with self._changed:
            self._wanted, self._paused = window, False
            self._changed.notify_all()
            while not stop.is_set() and not self._stopped.is_set():
                if window in self._fetched:
                    self._wanted, self._taken = None, max(self._taken, window)
                    self._changed.notify_all()
                    return self._fetched.pop(window)
                if self._error is not None:
                    raise self._error
                self._changed.wait(LOOK_SECONDS)
        return None

    def let_go(self) -> None:
        """Drop what is fetched, and fetch nothing until a window is asked for."""
        with self._changed:
            self._paused, self._wanted = True, None
            self._fetched.clear()
            self._void.set()

    def reached(self, place: Place) -> None:
        """Make room for as many windows as have been passed."""
        with self._changed:
            if place > self._place:
                self._place = place
                self._changed.notify_all()

    def stop(self) -> None:
        """Drop what is fetched; the thread ends at its next look."""
        self._stopped.set()
        self._void.set()
        with self._changed:
            self._fetched.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait a bounded time for the thread's end."""
        if self._thread is not threading.current_thread():
            self._thread.join(LOOK_SECONDS)

    def _run(self) -> None:
        try:
            while (window := self._choose()) is not None:
                self._keep(window, self._fetch(window))
        except BaseException as error:
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _choose(self) -> int | None:
        """Wait for a window to fetch: the one that is asked for, else the next one ahead."""
        with self._changed:
            while not self._stopped.is_set():
                window = self._next()
                if window is not None:
                    self._void.clear()
                    # stop() sets its events in this order, so one of them is seen
                    return None if self._stopped.is_set() else window
                self._changed.wait(LOOK_SECONDS)
        return None

    def _next(self) -> int | None:
        if self._paused:
            return None
        if self._wanted is not None and self._wanted not in self._fetched:
            return self._wanted
        passed = self._place.window if self._place.epoch == self.epoch else self._windows
        ahead = range(max(passed, self._taken + 1), min(passed + _WINDOWS_AHEAD, self._windows))
        return next((window for window in ahead if window not in self._fetched), None)

    def _keep(self, window: int, data: WindowData | None) -> None:
        with self._changed:
            if data is not None and not self._void.is_set():
                self._fetched[window] = data
                self._changed.notify_all()

    def _fetch(self, window: int) -> WindowData | None:
        collector = WindowCollector()
        attempt, lost, patience = "", 0, _UNHEARD_SECONDS
        # replies that nothing was heard of: to drop their references would cancel transfers
        unheard: list[Any] = []
        look_out: list[str] = []
        while not self._void.is_set():
            answer = self._ask(window, attempt, frozenset(collector.outputs))
            if answer is None:
                continue
            attempt, reply = answer
            look_out += reply.look_out
            try:
                loaded = self._load(reply, patience)
            except ray.exceptions.GetTimeoutError:
                unheard.append(reply)
                patience = min(2 * patience, _LONGEST_UNHEARD_SECONDS)
                collector, attempt = WindowCollector(), ""
                continue
            except ray.exceptions.ObjectLostError as error:
                # the coordinator that owned them is gone, and its successor computes them
                # again; or they went with their node, and Ray does
                lost += 1
                self._await_rebuilt(window, lost, error)
                collector, attempt = WindowCollector(), ""
                continue
            if loaded is not None:
                collector.add(loaded, attempt)
            if collector.complete:
                slices = [list(chain.from_iterable(handles)) for handles in collector.slices()]
                return WindowData(collector.layout, slices, look_out)
        return None

    def _await_rebuilt(self, window: int, lost: int, error: Exception) -> None:
        if lost >= _LOST_TRIES:
            raise StallError(
                f"shard {self._request.shard}: map outputs of epoch {self.epoch}, window {window} were lost "
                f"{lost} times and could not be computed again: look for nodes that die, or whose disks or "
                f"object stores are full ({error})"
            ) from error
        self._void.wait(min(0.1 * 2**lost, _LONGEST_PAUSE_SECONDS))

    def _ask(self, window: int, attempt: str, have: frozenset[int]) -> Any:
        ref = self._coordinator.poll.remote(self._request, self._place, window, attempt, have)
        return ask_until(ref, f"shard {self._request.shard}", self._void)

    def _load(self, reply: Any, patience_seconds: float) -> Any:
        """Map the outputs of a reply into this process, without a copy; None when stopped first."""
        # a slice that every shard has passed is no longer there
        kept = [ref for handles in reply.outputs.values() for ref in handles if ref is not None]
        values = self._get(kept, patience_seconds)
        if values is None:
            return None
        loaded = {
            part: [[] if ref is None else values[ref] for ref in handles]
            for part, handles in reply.outputs.items()
        }
        return replace(reply, outputs=loaded)

    def _get(self, refs: Sequence[Any], patience_seconds: float) -> dict[Any, Any] | None:
        """Get objects as they arrive, so that a pause of the transfer loses none of them.

        Raises
        ------
        ray.exceptions.GetTimeoutError
            When none arrives for ``patience_seconds``.
        """
        values: dict[Any, Any] = {}
        left, heard_at = list(refs), time.monotonic()
        while left:
            if self._void.is_set():
                return None
            ready, left = ray.wait(left, num_returns=len(left), timeout=LOOK_SECONDS)
            if ready:
                # what is here is mapped at once, where Ray knows that it is here
                values.update(zip(ready, ray.get(ready, timeout=patience_seconds), strict=True))
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > patience_seconds:
                raise ray.exceptions.GetTimeoutError(f"{len(left)} map outputs have not been heard of")
        return values

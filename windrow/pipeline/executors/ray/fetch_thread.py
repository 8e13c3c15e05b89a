"""Fetches windows in a thread of its own, ahead of the consumer."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray

from windrow.pipeline.coordinator.requests import OpenRequest
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import EpochFacts, WindowData
from windrow.pipeline.executors.ray.coordinator_calls import (
    POLL_SECONDS,
    PendingCalls,
    await_answer_until,
    notify,
)
from windrow.pipeline.shard.window_fetch import UNHEARD, Ahead, Ask, Load, Lost, Pause, fetch_window

__all__ = ["Fetcher"]

# who waits so long for a window tells what it has passed, lest the window wait for that memory
_ACKNOWLEDGE_SECONDS = 0.2


class Fetcher:
    """The windows of an epoch and of those that follow it, for one shard.

    One thread gets all objects, since gets of several threads can cancel each other's
    transfers.
    """

    def __init__(
        self,
        coordinator: Any,
        request: OpenRequest,
        facts: EpochFacts,
        pending_calls: PendingCalls,
        *,
        leads_on: bool,
    ) -> None:
        self._coordinator = coordinator
        self._pending_calls = pending_calls
        self._request = request
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        spare = facts.extra_windows
        self._ahead = Ahead(request.cursor, facts.windows, leads_on=leads_on, spare=spare)
        # set when what is being fetched is no longer to be kept
        self._cancelled = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"windrow-fetch-{request.shard}", daemon=True)
        self._thread.start()

    def open_next_epoch(self, request: OpenRequest, *, leads_on: bool) -> None:
        """The shard opens the next epoch; what was fetched of it ahead is still good."""
        with self._changed:
            self._request = request
            self._ahead.open(request.cursor, leads_on=leads_on)
            self._changed.notify_all()

    def take(self, key: Key, stop: threading.Event) -> WindowData | None:
        """Wait for a window; None when ``stop`` is set first. What was let go comes anew."""
        with self._changed:
            if not stop.is_set() and self._error is None:
                self._ahead.want(key)
                self._changed.notify_all()
        while True:
            with self._changed:
                if self._changed.wait_for(partial(self._wait_ended, key, stop), _ACKNOWLEDGE_SECONDS):
                    if stop.is_set() or self._stopped.is_set():
                        return None
                    data = self._ahead.take(key)
                    if data is None and self._error is not None:
                        raise self._error
                    self._changed.notify_all()
                    return data
                passed = self._ahead.take_news(waits=True)
            self._send_acknowledgement(passed)

    def _wait_ended(self, key: Key, stop: threading.Event) -> bool:
        ended = stop.is_set() or self._stopped.is_set() or self._error is not None
        return ended or key in self._ahead.fetched

    def release(self, stop: threading.Event) -> None:
        """Drop what is fetched, and fetch nothing until a window is asked for; not when ``stop`` is set."""
        with self._changed:
            if stop.is_set():
                return
            self._ahead.release()
            self._cancelled.set()
            passed = self._ahead.take_news()
        self._send_acknowledgement(passed)

    def acknowledge(self, place: Place) -> None:
        """Make room for as many windows as have been passed, and tell the run, now or with the next question."""
        with self._changed:
            if self._ahead.acknowledge(place):
                self._changed.notify_all()
            passed = self._ahead.take_news()
        self._send_acknowledgement(passed)

    def _send_acknowledgement(self, place: Place | None) -> None:
        if place is not None:
            notify(self._coordinator.acknowledge, self._request.shard, self._request.token, place)

    def stop(self) -> None:
        """Drop what is fetched; the thread ends at its next look."""
        self._stopped.set()
        self._cancelled.set()
        with self._changed:
            self._ahead.fetched.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait a bounded time for the thread's end."""
        if self._thread is not threading.current_thread():
            self._thread.join(POLL_SECONDS)

    def _run(self) -> None:
        try:
            while (key := self._next_key()) is not None:
                self._store(key, self._fetch(key))
        except BaseException as error:
            with self._changed:
                self._error = error
                # no question follows
                self._ahead.pause()
                passed = self._ahead.take_news()
                self._changed.notify_all()
            self._send_acknowledgement(passed)

    def _next_key(self) -> Key | None:
        """Wait for a window to fetch: the one that is asked for, else the next one ahead."""
        with self._changed:
            while not self._stopped.is_set():
                # the answers to what was asked before all was let go, and their objects
                self._pending_calls.await_answers(0.0)
                key = self._ahead.next()
                if key is not None:
                    self._cancelled.clear()
                    # stop() sets its events in this order, so one of them is seen
                    return None if self._stopped.is_set() else key
                self._changed.wait(POLL_SECONDS)
        return None

    def _store(self, key: Key, data: WindowData | None) -> None:
        with self._changed:
            if data is not None and not self._cancelled.is_set():
                self._ahead.keep(key, data)
                self._changed.notify_all()

    def _fetch(self, key: Key) -> WindowData | None:
        fetching = fetch_window(self._request.shard, *key)
        result: Any = None
        while not self._cancelled.is_set():
            try:
                step = fetching.send(result)
            except StopIteration as end:
                data: WindowData = end.value
                return data
            result = self._perform(key, step)
        return None

    def _perform(self, key: Key, step: Ask | Load | Pause) -> Any:
        if isinstance(step, Ask):
            return self._poll(key, step.attempt, step.have, step.lost)
        if isinstance(step, Pause):
            return self._cancelled.wait(step.seconds)
        try:
            return self._load(step.reply, step.patience_seconds)
        except ray.exceptions.GetTimeoutError:
            return UNHEARD
        except ray.exceptions.ObjectLostError as error:
            return Lost(error)

    def _poll(self, key: Key, attempt: str, have: frozenset[int], lost: str) -> Any:
        with self._changed:
            request, place = replace(self._request, cursor=self._ahead.cursor), self._ahead.ask(key)
        ref = self._coordinator.poll.remote(request, place, key, attempt, have, lost)
        self._pending_calls.add(ref)
        answer = await_answer_until(ref, f"shard {request.shard}", self._cancelled)
        if not self._cancelled.is_set():
            self._pending_calls.remove(ref)
        return answer

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
        left, arrived_at = list(refs), time.monotonic()
        while left:
            if self._cancelled.is_set():
                return None
            ready, left = ray.wait(left, num_returns=len(left), timeout=POLL_SECONDS)
            if ready:
                # what is here is mapped at once, where Ray knows that it is here
                values.update(zip(ready, ray.get(ready, timeout=patience_seconds), strict=True))
                arrived_at = time.monotonic()
            elif time.monotonic() - arrived_at > patience_seconds:
                raise ray.exceptions.GetTimeoutError(f"{len(left)} map outputs have not been heard of")
        return values

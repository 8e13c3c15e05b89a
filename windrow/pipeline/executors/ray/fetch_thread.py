"""The background thread that fetches a shard's windows from the coordinator, ahead of the consumer."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import ray

from windrow.core.errors import PlanError
from windrow.pipeline.coordinator.requests import Ask, EpochFacts, OpenRequest, WindowReply
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.delivery.wanted import Wanted
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.ray.coordinator_calls import (
    POLL_SECONDS,
    PendingCalls,
    await_answer_until,
    notify,
)
from windrow.pipeline.executors.ray.narrowed_objects import Narrower
from windrow.pipeline.executors.window_fetch import UNHEARD, Ahead, Load, Lost, Pause, fetch_window
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.statistics.phases import TRANSFER, Interval, cover
from windrow.pipeline.tasks.narrow_outputs import narrow_outputs
from windrow.shuffle.order.step_runs import find_run_places

logger = logging.getLogger(__name__)

# A consumer that waits this long sends a pending acknowledgement: the window may be waiting for that memory.
_ACKNOWLEDGE_SECONDS = 0.2


class Fetcher:
    """Fetches one shard's windows, of an epoch and those after it.

    A single thread gets all objects, since concurrent gets can cancel each other's transfers.
    """

    def __init__(
        self,
        coordinator: Any,
        request: OpenRequest,
        facts: EpochFacts,
        pending_calls: PendingCalls,
        *,
        shard: int,
        leads_on: bool,
        wanted: Wanted,
        narrower: Narrower,
    ) -> None:
        self._coordinator = coordinator
        # which the request names by its client
        self._shard = shard
        self._wanted = wanted
        self._narrower = narrower
        self._pending_calls = pending_calls
        self._request = request
        self._stopped = threading.Event()
        self._changed = threading.Condition()
        extra_windows = facts.extra_windows
        self._ahead = Ahead(request.cursor, facts.windows, leads_on=leads_on, extra_windows=extra_windows)
        # set when the fetch in progress is no longer needed
        self._cancelled = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"windrow-fetch-{request.shard}", daemon=True)
        self._thread.start()

    def open_next_epoch(self, request: OpenRequest, *, leads_on: bool) -> None:
        """The shard opens the next epoch; its prefetched windows stay valid."""
        with self._changed:
            self._request = request
            self._ahead.open(request.cursor, leads_on=leads_on)
            self._changed.notify_all()

    def want(self, wanted: Wanted) -> None:
        """Fetch only this of each row from now on, and what was fetched once more when it is requested."""
        with self._changed:
            self._wanted = wanted
            self._ahead.fetched.clear()
            self._cancelled.set()
            self._changed.notify_all()

    def take(self, key: Key, stop: threading.Event) -> WindowData | None:
        """Wait for a window; None if ``stop`` is set first. A released window is fetched again."""
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
        """Release fetched windows, and fetch nothing until one is requested; does nothing if ``stop`` is set."""
        with self._changed:
            if stop.is_set():
                return
            self._ahead.release()
            self._cancelled.set()
            passed = self._ahead.take_news()
        self._send_acknowledgement(passed)

    def acknowledge(self, place: Place) -> None:
        """Release the windows before ``place``, and notify the coordinator, now or with the next poll."""
        with self._changed:
            if self._ahead.acknowledge(place):
                self._changed.notify_all()
            passed = self._ahead.take_news()
        self._send_acknowledgement(passed)

    def _send_acknowledgement(self, place: Place | None) -> None:
        if place is not None:
            notify(self._coordinator.acknowledge, self._request.shard, self._request.token, place)

    def stop(self) -> None:
        """Release fetched windows, and stop the thread at its next check."""
        self._stopped.set()
        self._cancelled.set()
        with self._changed:
            self._ahead.fetched.clear()
            self._changed.notify_all()

    def join(self) -> None:
        """Wait a bounded time for the thread to end."""
        if self._thread is not threading.current_thread():
            self._thread.join(POLL_SECONDS)

    def _run(self) -> None:
        try:
            while (key := self._next_key()) is not None:
                self._store(key, self._fetch(key))
        except BaseException as error:
            with self._changed:
                self._error = error
                # no poll follows that would carry the acknowledgement
                self._ahead.pause()
                passed = self._ahead.take_news()
                self._changed.notify_all()
            self._send_acknowledgement(passed)

    def _next_key(self) -> Key | None:
        """Wait for a window to fetch: the requested one, else the next one ahead."""
        with self._changed:
            while not self._stopped.is_set():
                # release late answers to polls from before a release, with their objects
                self._pending_calls.await_answers(0.0)
                key = self._ahead.next()
                if key is not None:
                    self._cancelled.clear()
                    # stop() sets _stopped before _cancelled, so clearing _cancelled first loses neither
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
        # the same for all parts; a change cancels this fetch
        wanted = self._wanted
        result: Any = None
        transfers: list[Interval] = []
        while not self._cancelled.is_set():
            try:
                step = fetching.send(result)
            except StopIteration as end:
                data: WindowData = end.value
                _add_transfers(data, transfers)
                data.wanted = wanted
                return data
            began = time.time()
            result = self._perform(key, step, wanted)
            if not isinstance(step, Ask):
                transfers.append(Interval(began, time.time(), {TRANSFER: 1.0}))
        return None

    def _perform(self, key: Key, step: Ask | Load | Pause, wanted: Wanted) -> Any:
        if isinstance(step, Ask):
            return self._poll(key, step)
        if isinstance(step, Pause):
            return self._cancelled.wait(step.seconds)
        try:
            return self._load(step.reply, step.patience_seconds, wanted)
        except PlanError as error:
            whole = wanted.with_whole_sequences()
            if whole == wanted:
                raise
            # some sequences cannot be cut, which their reader will say
            logger.info("epoch %d, window %d: sequences are fetched whole (%s)", *key, error)
            self.want(whole)
            return None
        except ray.exceptions.GetTimeoutError:
            logger.info("epoch %d, window %d: objects are silent, and requested again", *key)
            return UNHEARD
        except ray.exceptions.RayError as error:
            if wanted.is_everything and not isinstance(error, ray.exceptions.ObjectLostError):
                raise
            # what narrows can also fail with its node
            self._narrower.forget()
            logger.warning("epoch %d, window %d: objects are lost (%s)", *key, type(error).__name__)
            return Lost(error)

    def _poll(self, key: Key, ask: Ask) -> Any:
        with self._changed:
            request, place = replace(self._request, cursor=self._ahead.cursor), self._ahead.ask(key)
        ref = self._coordinator.poll.remote(request, place, key, ask)
        self._pending_calls.add(ref)
        answer = await_answer_until(ref, f"shard {request.shard}", self._cancelled)
        if not self._cancelled.is_set():
            self._pending_calls.remove(ref)
        return answer

    def _load(self, reply: Any, patience_seconds: float, wanted: Wanted) -> Any:
        """Map the outputs of a reply into this process, without a copy; None if cancelled first."""
        # a slice that every shard has acknowledged is released
        refs = [ref for handles in reply.outputs.values() for ref in handles if ref is not None]
        sent: Mapping[Any, Any] = {}
        if refs and not wanted.is_everything:
            sent = self._narrower.send(_find_places(reply, self._shard), wanted)
        values = self._get([sent.get(ref, ref) for ref in refs], patience_seconds)
        if values is None:
            return None
        found = {
            ref: _check(values[sent[ref]]) if ref in sent else _narrow(values[ref], wanted) for ref in refs
        }
        loaded = {
            part: [[] if ref is None else found[ref] for ref in handles]
            for part, handles in reply.outputs.items()
        }
        return replace(reply, outputs=loaded)

    def _get(self, refs: Sequence[Any], patience_seconds: float) -> dict[Any, Any] | None:
        """Get objects as they arrive, so that a pause of the transfer loses none of them.

        Raises Ray's `GetTimeoutError` if none arrives within ``patience_seconds``.
        """
        values: dict[Any, Any] = {}
        left, arrived_at = list(refs), time.monotonic()
        while left:
            if self._cancelled.is_set():
                return None
            ready, left = ray.wait(left, num_returns=len(left), timeout=POLL_SECONDS)
            if ready:
                # local objects are mapped without delay, unless Ray missed that they are local
                values.update(zip(ready, ray.get(ready, timeout=patience_seconds), strict=True))
                arrived_at = time.monotonic()
            elif time.monotonic() - arrived_at > patience_seconds:
                raise ray.exceptions.GetTimeoutError(f"{len(left)} map outputs did not arrive")
        return values


def _find_places(reply: WindowReply, shard: int) -> dict[Any, Any]:
    """By handle of a reply, where each run in it starts in the stream of a shard, as for `narrow_outputs`."""
    assert reply.layout is not None, "there are outputs"
    by_slice = find_run_places(reply.layout, shard)
    found = {}
    for part, handles in reply.outputs.items():
        # runs of a mixture's other rounds
        before = [-1] * (reply.runs[part][0] if part in reply.runs else 0)
        for ref, places in zip(handles, by_slice, strict=True):
            if ref is not None:
                found[ref] = np.append(np.array(before, np.int64), places)
    return found


def _check(narrowed: Any) -> Any:
    """Map outputs that were narrowed on their node; raises the error that they could not be."""
    if isinstance(narrowed, PlanError):
        raise narrowed
    return narrowed


def _narrow(outputs: Any, wanted: Wanted) -> Any:
    """What is wanted of whole map outputs."""
    return outputs if wanted.is_everything else narrow_outputs(outputs, wanted, copies=False)


def _add_transfers(data: WindowData, transfers: Sequence[Interval]) -> None:
    """Add to a window's history when it was transferred; also the way of the last answer."""
    now = time.time()
    complete = max((interval.stop for interval in data.history), default=now)
    last = [Interval(complete, now, {TRANSFER: 1.0})] if complete < now else []
    data.history = cover(transfers, [*data.history, *last])
    data.transfers = [one for one in data.history if TRANSFER in one.phases]

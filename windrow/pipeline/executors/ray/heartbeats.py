"""Heartbeats of tasks: a task that takes longer than a second tells the coordinator that it runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import ray

__all__ = ["Heartbeat", "sending_heartbeats"]

_INTERVAL_SECONDS = 1.0


@dataclass(frozen=True)
class Heartbeat:
    """Whom a copy of a task tells that it runs, and what.

    Attributes
    ----------
    coordinator
        The name of the coordinator's actor; "" for nobody.
    run
        The coordinator's process, which another one may have replaced since.
    key, copy
        The task's number there, and the copy's.
    """

    coordinator: str
    incarnation: str
    key: int
    copy: int


@contextmanager
def sending_heartbeats(heartbeat: Heartbeat) -> Iterator[None]:
    """Tell every second that a copy of a task runs, while it does."""
    thread = _heartbeat_thread()
    thread.current = heartbeat, time.monotonic()
    try:
        yield
    finally:
        thread.current = None


class _HeartbeatThread:
    """One thread for all tasks of a worker process, so that short ones cost nothing."""

    def __init__(self) -> None:
        self.current: tuple[Heartbeat, float] | None = None
        threading.Thread(target=self._run, name="windrow-heartbeat", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_INTERVAL_SECONDS)
            current = self.current
            if current is not None and time.monotonic() - current[1] >= _INTERVAL_SECONDS:
                # who is gone needs no heartbeat, and a process that ends has none
                with suppress(Exception):
                    _send(current[0])


def _send(heartbeat: Heartbeat) -> None:
    if heartbeat.coordinator:
        _find_coordinator(heartbeat.coordinator).task_heartbeat.remote(
            heartbeat.incarnation, heartbeat.key, heartbeat.copy
        )


@cache
def _heartbeat_thread() -> _HeartbeatThread:
    return _HeartbeatThread()


@lru_cache(maxsize=1)
def _find_coordinator(name: str) -> Any:
    # a handle that was looked up does not keep the actor alive
    return ray.get_actor(name)

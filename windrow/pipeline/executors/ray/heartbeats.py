"""Task heartbeats: a task that runs longer than a second reports to the coordinator every second."""

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
    """The content and recipient of a task copy's heartbeats."""

    # name of the coordinator actor
    coordinator: str
    # the coordinator process that submitted the task; a restarted one ignores its heartbeats
    incarnation: str
    # the task's number in that process, and the copy's number
    key: int
    copy: int


@contextmanager
def sending_heartbeats(heartbeat: Heartbeat) -> Iterator[None]:
    """Send heartbeats of a task copy inside the with block."""
    thread = _heartbeat_thread()
    thread.current = heartbeat, time.monotonic()
    try:
        yield
    finally:
        thread.current = None


class _HeartbeatThread:
    """One thread for all tasks of a worker process, so that short tasks cost nothing."""

    def __init__(self) -> None:
        self.current: tuple[Heartbeat, float] | None = None
        threading.Thread(target=self._run, name="windrow-heartbeat", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_INTERVAL_SECONDS)
            current = self.current
            if current is not None and time.monotonic() - current[1] >= _INTERVAL_SECONDS:
                # fails if the coordinator has ended or this process exits; neither needs heartbeats
                with suppress(Exception):
                    _send(current[0])


def _send(heartbeat: Heartbeat) -> None:
    method = _find_coordinator(heartbeat.coordinator).task_heartbeat
    method.remote(heartbeat.incarnation, heartbeat.key, heartbeat.copy)


@cache
def _heartbeat_thread() -> _HeartbeatThread:
    return _HeartbeatThread()


@lru_cache(maxsize=1)
def _find_coordinator(name: str) -> Any:
    # a handle from get_actor does not keep the actor alive
    return ray.get_actor(name)

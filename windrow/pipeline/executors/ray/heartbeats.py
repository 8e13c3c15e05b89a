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

__all__ = ["Beat", "beating"]

_EVERY_SECONDS = 1.0


@dataclass(frozen=True)
class Beat:
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
    run: str
    key: int
    copy: int


@contextmanager
def beating(beat: Beat) -> Iterator[None]:
    """Tell every second that a copy of a task runs, while it does."""
    heart = _heart()
    heart.current = beat, time.monotonic()
    try:
        yield
    finally:
        heart.current = None


class _Heart:
    """One thread for all tasks of a worker process, so that short ones cost nothing."""

    def __init__(self) -> None:
        self.current: tuple[Beat, float] | None = None
        threading.Thread(target=self._run, name="windrow-heartbeat", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_EVERY_SECONDS)
            current = self.current
            if current is not None and time.monotonic() - current[1] >= _EVERY_SECONDS:
                # who is gone needs no heartbeat, and a process that ends has none
                with suppress(Exception):
                    _tell(current[0])


def _tell(beat: Beat) -> None:
    if beat.coordinator:
        _find(beat.coordinator).task_runs.remote(beat.run, beat.key, beat.copy)


@cache
def _heart() -> _Heart:
    return _Heart()


@lru_cache(maxsize=1)
def _find(name: str) -> Any:
    # a handle that was looked up does not keep the actor alive
    return ray.get_actor(name)

"""Measures what a thread spends its time on, by phase: reading, decoding, transforms and the like.

Phases nest, and the time of an inner phase does not count in the outer one. What has no clock is not measured:
`phase` then costs one look at a thread-local variable. A clock is not passed down, because it would have to go
through every file format and every library's callback in between.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["PhaseClock", "count_request", "count_retry", "counting", "current_clock", "measuring", "phase"]

_local = threading.local()


class PhaseClock:
    """Seconds by phase of the thread that runs under `measuring`, and counts of requests from all threads.

    With ``counts_cpu``, also the CPU time of that thread outside of phases that are ``aside``. It is not counted by
    phase, because threads are preempted where they ask for it: with the GIL, all others would wait.

    Examples
    --------
    >>> clock = PhaseClock()
    >>> with measuring(clock, "shuffle"):
    ...     with phase("decode"):
    ...         count_request(100)
    >>> sorted(clock.seconds), clock.requests, clock.requested_bytes
    (['decode', 'shuffle'], 1, 100)
    """

    def __init__(self, *, counts_cpu: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds = 0.0
        # requests to object storage, their bytes, and repeated attempts
        self.requests = self.requested_bytes = self.retries = 0
        # seconds by phase that other threads spent on behalf of this one, which waited for them meanwhile
        self.elsewhere: dict[str, float] = {}
        self._lock = threading.Lock()
        self._stack: list[str] = []
        self._wall = self._cpu = 0.0
        self._counts_cpu = counts_cpu
        self._asides = 0

    def enter(self, name: str, *, aside: bool = False) -> None:
        """Begin a phase inside the current one; in the measured thread."""
        self._add()
        if aside or not self._stack:
            self._add_cpu()
        self._stack.append(name)
        self._asides += aside

    def leave(self, *, aside: bool = False) -> None:
        """End the current phase, ``aside`` as it began."""
        self._add()
        if aside or len(self._stack) == 1:
            self._add_cpu()
        self._stack.pop()
        self._asides -= aside

    def _add(self) -> None:
        wall = time.perf_counter()
        if self._stack:
            name = self._stack[-1]
            self.seconds[name] = self.seconds.get(name, 0.0) + wall - self._wall
        self._wall = wall

    def _add_cpu(self) -> None:
        if not self._counts_cpu:
            return
        cpu = time.thread_time()
        if self._stack and not self._asides:
            self.cpu_seconds += cpu - self._cpu
        self._cpu = cpu

    def count(self, *, requests: int = 0, size_bytes: int = 0, retries: int = 0) -> None:
        """Count requests; in any thread."""
        with self._lock:
            self.requests += requests
            self.requested_bytes += size_bytes
            self.retries += retries

    def add_elsewhere(self, name: str, seconds: float) -> None:
        """Add seconds that another thread spent in a phase; in any thread."""
        with self._lock:
            self.elsewhere[name] = self.elsewhere.get(name, 0.0) + seconds


class phase:  # noqa: N801
    """Count the time inside a ``with`` block as one phase of the thread's clock, if it has one.

    The CPU time of a phase ``aside`` does not count.
    """

    __slots__ = ("_aside", "_began", "_clock", "_name")

    def __init__(self, name: str, *, aside: bool = False) -> None:
        self._name, self._aside = name, aside

    def __enter__(self) -> None:
        clock = self._clock = getattr(_local, "clock", None)
        if clock is not None:
            clock.enter(self._name, aside=self._aside)
            return
        self._began = time.perf_counter() if getattr(_local, "counts", None) is not None else 0.0

    def __exit__(self, *error: Any) -> None:
        if self._clock is not None:
            self._clock.leave(aside=self._aside)
        elif self._began and (clock := getattr(_local, "counts", None)) is not None:
            clock.add_elsewhere(self._name, (time.perf_counter() - self._began) / _local.lanes)


@contextmanager
def measuring(clock: PhaseClock, name: str) -> Iterator[None]:
    """Measure this thread with a clock; time outside of inner phases counts as the phase ``name``."""
    before = getattr(_local, "clock", None), getattr(_local, "counts", None), getattr(_local, "lanes", 1)
    _local.clock, _local.counts, _local.lanes = clock, clock, 1
    clock.enter(name)
    try:
        yield
    finally:
        clock.leave()
        _local.clock, _local.counts, _local.lanes = before


@contextmanager
def counting(clock: PhaseClock | None, lanes: int = 0) -> Iterator[None]:
    """Count the requests of this thread, which works for the thread that a clock measures.

    With ``lanes``, that thread waits for as many threads like this one, and their phases are its own.
    """
    before = getattr(_local, "clock", None), getattr(_local, "counts", None), getattr(_local, "lanes", 1)
    _local.clock, _local.counts, _local.lanes = None, clock, lanes or float("inf")
    try:
        yield
    finally:
        _local.clock, _local.counts, _local.lanes = before


def current_clock() -> PhaseClock | None:
    """The clock for which this thread works, if any."""
    return getattr(_local, "counts", None)


def count_request(size_bytes: int) -> None:
    """Count a request to object storage."""
    clock = getattr(_local, "counts", None)
    if clock is not None:
        clock.count(requests=1, size_bytes=size_bytes)


def count_retry() -> None:
    """Count a request that is made once more after a transient error."""
    clock = getattr(_local, "counts", None)
    if clock is not None:
        clock.count(retries=1)

"""Measures what a thread spends its time on, by phase: reading, decoding, transforms and the like.

Phases nest, and the time of an inner phase does not count in the outer one. What has no clock is not measured:
`phase` then costs one look at a thread-local variable. A clock is not passed down, because it would have to go
through every file format and every library's callback in between.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class _Local(threading.local):
    """A thread's clock, the clock that its requests count for, and between how many threads like it time is divided."""

    clock: PhaseClock | None = None
    counts: PhaseClock | None = None
    lanes: float = 1


_local = _Local()


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
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.cpu_seconds = 0.0
        # requests to object storage, their bytes, and repeated attempts
        self.requests = self.requested_bytes = self.retries = 0
        # seconds by phase that other threads spent on behalf of this one, which waited for them meanwhile
        self.elsewhere: defaultdict[str, float] = defaultdict(float)
        self._lock = threading.Lock()
        self._stack: list[str] = []
        self._wall = self._cpu = 0.0
        self._counts_cpu = counts_cpu
        self._asides = 0

    def enter(self, name: str, *, aside: bool = False) -> None:
        """Begin a phase inside the current one; in the measured thread."""
        wall, stack = time.perf_counter(), self._stack
        if stack:
            self.seconds[stack[-1]] += wall - self._wall
        self._wall = wall
        if self._counts_cpu and (aside or not stack):
            self._add_cpu()
        stack.append(name)
        self._asides += aside

    def leave(self, *, aside: bool = False) -> None:
        """End the current phase, ``aside`` as it began."""
        wall, stack = time.perf_counter(), self._stack
        self.seconds[stack[-1]] += wall - self._wall
        self._wall = wall
        if self._counts_cpu and (aside or len(stack) == 1):
            self._add_cpu()
        stack.pop()
        self._asides -= aside

    def _add_cpu(self) -> None:
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
            self.elsewhere[name] += seconds


class phase:  # noqa: N801
    """Count the time inside a ``with`` block as one phase of the thread's clock, if it has one.

    The CPU time of a phase ``aside`` does not count.
    """

    __slots__ = ("_aside", "_began", "_clock", "_name")

    def __init__(self, name: str, *, aside: bool = False) -> None:
        self._name, self._aside = name, aside

    def __enter__(self) -> None:
        clock = self._clock = _local.clock
        if clock is not None:
            clock.enter(self._name, aside=self._aside)
            return
        self._began = time.perf_counter() if _local.counts is not None else 0.0

    def __exit__(self, *error: Any) -> None:
        if self._clock is not None:
            self._clock.leave(aside=self._aside)
        elif self._began and (clock := _local.counts) is not None:
            clock.add_elsewhere(self._name, (time.perf_counter() - self._began) / _local.lanes)


def timed(name: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function so that its calls are a phase of the thread's clock, if it has one.

    It costs less than a ``with`` block, but it does not measure what other threads do for a thread with a clock.
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @wraps(function)
        def call(*args: P.args, **options: P.kwargs) -> T:
            clock = _local.clock
            if clock is None:
                return function(*args, **options)
            # As `enter` and `leave`: between kernels that stream gigabytes, each Python call has to fetch its code
            # from memory.
            seconds, stack, wall = clock.seconds, clock._stack, time.perf_counter()
            seconds[stack[-1]] += wall - clock._wall
            clock._wall = wall
            stack.append(name)
            try:
                return function(*args, **options)
            finally:
                wall = time.perf_counter()
                seconds[name] += wall - clock._wall
                clock._wall = wall
                stack.pop()

        return call

    return decorate


class measuring:  # noqa: N801
    """Measure this thread with a clock; time outside of inner phases counts as the phase ``name``."""

    __slots__ = ("_before", "_clock", "_name")

    def __init__(self, clock: PhaseClock, name: str) -> None:
        self._clock, self._name = clock, name

    def __enter__(self) -> None:
        local, clock = _local, self._clock
        self._before = local.clock, local.counts, local.lanes
        local.clock, local.counts, local.lanes = clock, clock, 1
        clock.enter(self._name)

    def __exit__(self, *error: Any) -> None:
        self._clock.leave()
        _local.clock, _local.counts, _local.lanes = self._before


@contextmanager
def counting(clock: PhaseClock | None, lanes: int = 0) -> Iterator[None]:
    """Count the requests of this thread, which works for the thread that a clock measures.

    With ``lanes``, that thread waits for as many threads like this one, and their phases are its own.
    """
    before = _local.clock, _local.counts, _local.lanes
    _local.clock, _local.counts, _local.lanes = None, clock, lanes or float("inf")
    try:
        yield
    finally:
        _local.clock, _local.counts, _local.lanes = before


def current_clock() -> PhaseClock | None:
    """The clock for which this thread works, if any."""
    return _local.counts


def count_request(size_bytes: int) -> None:
    """Count a request to object storage."""
    clock = _local.counts
    if clock is not None:
        clock.count(requests=1, size_bytes=size_bytes)


def count_retry() -> None:
    """Count a request that is made once more after a transient error."""
    clock = _local.counts
    if clock is not None:
        clock.count(retries=1)

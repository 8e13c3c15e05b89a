"""Simulated time: a queue of timed events, processed in order without waiting."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

__all__ = ["Clock"]

Call = Callable[[], None]


class Clock:
    """The time of a simulation and its event queue.

    Attributes
    ----------
    now
        Simulated seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Call]] = []
        self._numbers = count()

    def after(self, seconds: float, call: Call) -> None:
        """Schedule a call after some seconds; calls due at the same time run in the order of scheduling."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), call))

    def run(self, done: Callable[[], bool]) -> None:
        """Process events until ``done`` returns true.

        Raises
        ------
        RuntimeError
            If no events are left, which means a deadlock.
        """
        while not done():
            if not self._due:
                raise RuntimeError("the simulation is deadlocked: no events are left")
            self.now, _, call = heapq.heappop(self._due)
            call()

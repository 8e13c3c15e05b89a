"""Simulated time: what is due happens in order, and nothing waits for it."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

__all__ = ["Clock"]

Call = Callable[[], None]


class Clock:
    """The time of a simulation, and what will happen.

    Attributes
    ----------
    now
        Seconds since the beginning.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Call]] = []
        self._numbers = count()

    def after(self, seconds: float, call: Call) -> None:
        """Call something so much later; what is due at the same time happens in the given order."""
        heapq.heappush(self._due, (self.now + seconds, next(self._numbers), call))

    def run(self, done: Callable[[], bool]) -> None:
        """Let time pass until it is done.

        Raises
        ------
        RuntimeError
            If nothing more would ever happen: somebody waits for what never comes.
        """
        while not done():
            if not self._due:
                raise RuntimeError("the simulation stands still: everybody waits")
            self.now, _, call = heapq.heappop(self._due)
            call()

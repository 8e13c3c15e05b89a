"""A worker pool with priorities."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

__all__ = ["Slots"]

Start = Callable[[Callable[[], None]], None]


class Slots:
    """Workers of a pool, or CPU slots for tasks; ``start`` receives a function that frees the slot."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting: list[tuple[int, int, Start]] = []
        self._numbers = count()
        self.load = 0

    def submit(self, start: Start, urgency: int = 0) -> None:
        """Start work as soon as a slot is free; lower values of ``urgency`` go first."""
        self.load += 1
        heapq.heappush(self._waiting, (urgency, next(self._numbers), start))
        self._next()

    def _next(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            _, _, start = heapq.heappop(self._waiting)
            start(self._release)

    def _release(self) -> None:
        self._free += 1
        self.load -= 1
        self._next()

"""A resource shared fairly by its users: the cores of a node, or a network interface."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

from bench.scale.clock import Clock

__all__ = ["SharedResource"]

# tolerance for rounding: finishing times are sums of many small numbers
_NEARLY = 1e-9


class SharedResource:
    """Weighted fair sharing with a total capacity and a limit per user.

    Progress is kept in virtual time: the amount that a user of weight 1 would have received since the start.
    A change in the number of users changes its rate, but not the virtual time at which each user ends.

    Parameters
    ----------
    clock
        The simulated clock.
    capacity
        Total amount per second.
    limit
        Maximum amount per second of a user of weight 1.
    """

    def __init__(self, clock: Clock, capacity: float, limit: float) -> None:
        self._clock = clock
        self._capacity = capacity
        self._limit = limit
        self._progress = 0.0
        self._weight = 0.0
        self._updated = 0.0
        self._ends: list[tuple[float, int, float, Callable[[], None]]] = []
        self._numbers = count()
        self._version = 0
        self.used = 0.0

    @property
    def users(self) -> int:
        """Current number of users."""
        return len(self._ends)

    def use(self, amount: float, done: Callable[[], None], weight: float = 1.0) -> None:
        """Use it until ``amount`` has been received; then ``done`` is called."""
        self._advance()
        heapq.heappush(self._ends, (self._progress + amount / weight, next(self._numbers), weight, done))
        self._weight += weight
        self._plan()

    def settle(self) -> None:
        """Update ``used`` to the current time."""
        self._advance()

    def _rate(self) -> float:
        return min(self._limit, self._capacity / self._weight) if self._weight > _NEARLY else 0.0

    def _advance(self) -> None:
        rate, seconds = self._rate(), self._clock.now - self._updated
        self._progress += rate * seconds
        self.used += rate * seconds * self._weight
        self._updated = self._clock.now

    def _plan(self) -> None:
        self._version += 1
        if self._ends:
            version = self._version
            seconds = max(0.0, self._ends[0][0] - self._progress) / self._rate()
            self._clock.after(seconds, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self._advance()
        # the first user is due by definition, despite rounding
        self._progress = max(self._progress, self._ends[0][0])
        finished = []
        while self._ends and self._ends[0][0] <= self._progress * (1 + _NEARLY):
            _, _, weight, done = heapq.heappop(self._ends)
            self._weight -= weight
            finished.append(done)
        self._plan()
        for done in finished:
            done()

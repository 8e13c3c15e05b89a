"""Simulated resources: cores and network cards that are shared, pools of workers, and the memory of nodes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from itertools import count

from bench.simulation.world import World

Start = Callable[[Callable[[], None]], None]
# tolerance for rounding: finishing times are sums of many small numbers
_NEARLY = 1e-9


class SharedResource:
    """Weighted fair sharing with a capacity per second, and a limit per second of a user of weight 1.

    Progress is kept in virtual time: the amount that a user of weight 1 would have received since the start.
    A change in the number of users changes its rate, but not the virtual time at which each user ends.
    """

    def __init__(self, world: World, capacity: float, limit: float) -> None:
        self._world = world
        self._capacity = capacity
        self._limit = limit
        self._progress = 0.0
        self._weight = 0.0
        self._updated = 0.0
        self._ends: list[tuple[float, int, float, Callable[[], None]]] = []
        self._numbers = count()
        self._version = 0
        self.used = 0.0

    def use(self, amount: float, done: Callable[[], None], weight: float = 1.0) -> None:
        """Use it until ``amount`` has been received; then ``done`` is called."""
        self.advance()
        heapq.heappush(self._ends, (self._progress + amount / weight, next(self._numbers), weight, done))
        self._weight += weight
        self._plan()

    def _rate(self) -> float:
        return min(self._limit, self._capacity / self._weight) if self._weight > _NEARLY else 0.0

    def advance(self) -> None:
        """Count what was used until now."""
        rate, seconds = self._rate(), self._world.now - self._updated
        self._progress += rate * seconds
        self.used += rate * seconds * self._weight
        self._updated = self._world.now

    def _plan(self) -> None:
        self._version += 1
        if self._ends:
            version = self._version
            seconds = max(0.0, self._ends[0][0] - self._progress) / self._rate()
            self._world.after(seconds, lambda: self._end(version))

    def _end(self, version: int) -> None:
        if version != self._version:
            return
        self.advance()
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


class Slots:
    """Workers of a pool, or CPU slots for tasks; ``start`` receives a function that frees the slot."""

    def __init__(self, slots: int) -> None:
        self._free = slots
        self._waiting = deque[Start]()
        self.load = 0

    def submit(self, start: Start) -> None:
        self.load += 1
        self._waiting.append(start)
        self._next()

    def _next(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            self._waiting.popleft()(self._release)

    def _release(self) -> None:
        self._free += 1
        self.load -= 1
        self._next()


class Ledger:
    """Bytes held on each node, in its object store and by its processes."""

    def __init__(self, nodes: int) -> None:
        self.store = [0.0] * nodes
        self.peak_store = [0.0] * nodes
        self.heap = [0.0] * nodes
        self.peak = [0.0] * nodes

    def put(self, node: int, size_bytes: float) -> None:
        self.store[node] += size_bytes
        self.peak_store[node] = max(self.peak_store[node], self.store[node])
        self._note(node)

    def take(self, node: int, size_bytes: float) -> None:
        """Add heap memory of a process; negative values release it."""
        self.heap[node] += size_bytes
        self._note(node)

    def release(self, node: int, size_bytes: float) -> None:
        self.store[node] -= size_bytes

    def _note(self, node: int) -> None:
        self.peak[node] = max(self.peak[node], self.store[node] + self.heap[node])


class Output:
    """One object: the map output of a task for one destination and slice, alive as long as driver or shards hold it."""

    __slots__ = ("copy", "ledger", "node", "size_bytes")

    @property
    def map_output(self) -> Output:
        """What a shard holds of it: the object itself, which is mapped into its process."""
        return self

    def __init__(self, ledger: Ledger, node: int, size_bytes: float) -> None:
        self.ledger = ledger
        self.node = node
        self.size_bytes = size_bytes
        self.copy: int | None = None
        ledger.put(node, size_bytes)

    def lacks(self, node: int) -> bool:
        """Whether it must be copied to a node to be read there; if so, the copy is recorded."""
        if node in (self.node, self.copy):
            return False
        self.copy = node
        self.ledger.put(node, self.size_bytes)
        return True

    def __del__(self) -> None:
        self.ledger.release(self.node, self.size_bytes)
        if self.copy is not None:
            self.ledger.release(self.copy, self.size_bytes)

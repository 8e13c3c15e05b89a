"""Memory accounting of the simulated nodes: as in Ray, an object exists until its last handle is dropped."""

from __future__ import annotations

__all__ = ["Ledger", "Output"]


class Ledger:
    """Bytes held on each node, in its object store and by its processes.

    Attributes
    ----------
    store, peak_store
        Current and peak bytes in each node's object store.
    heap, peak
        Current bytes of running tasks and of runs; peak of object store and heap together.
    objects, peak_objects
        Current and peak number of objects.
    """

    def __init__(self, nodes: int) -> None:
        self.store = [0.0] * nodes
        self.peak_store = [0.0] * nodes
        self.heap = [0.0] * nodes
        self.peak = [0.0] * nodes
        self.objects = self.peak_objects = 0

    def put(self, node: int, size_bytes: float) -> None:
        """Add an object, or a copy of one."""
        self.store[node] += size_bytes
        self.peak_store[node] = max(self.peak_store[node], self.store[node])
        self._note(node)

    def take(self, node: int, size_bytes: float) -> None:
        """Add heap memory of a process; negative values release it."""
        self.heap[node] += size_bytes
        self._note(node)

    def count(self, objects: int) -> None:
        """Add to the number of objects."""
        self.objects += objects
        self.peak_objects = max(self.peak_objects, self.objects)

    def release(self, node: int, size_bytes: float) -> None:
        """Remove an object whose last handle was dropped."""
        self.store[node] -= size_bytes

    def _note(self, node: int) -> None:
        self.peak[node] = max(self.peak[node], self.store[node] + self.heap[node])


class Output:
    """One object: the map output of a task for one destination and slice.

    The driver and the shards keep it alive; the ledger counts its bytes until they drop it.
    """

    __slots__ = ("copy", "ledger", "node", "size_bytes")

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
        self.ledger.objects -= 1
        self.ledger.release(self.node, self.size_bytes)
        if self.copy is not None:
            self.ledger.release(self.copy, self.size_bytes)

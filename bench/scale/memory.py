"""Who holds how many bytes: objects live, as in Ray, until nobody holds a handle any more."""

from __future__ import annotations

__all__ = ["Ledger", "Output"]


class Ledger:
    """Bytes held on each node, in its object store and by its processes.

    Attributes
    ----------
    store, peak_store
        Bytes in each node's object store, now and at most.
    heap, peak
        Bytes of running tasks and of runs; and the most that both together were.
    objects, peak_objects
        Objects that exist.
    """

    def __init__(self, nodes: int) -> None:
        self.store = [0.0] * nodes
        self.peak_store = [0.0] * nodes
        self.heap = [0.0] * nodes
        self.peak = [0.0] * nodes
        self.objects = self.peak_objects = 0

    def put(self, node: int, size_bytes: float) -> None:
        """An object, or a copy of one, is written."""
        self.store[node] += size_bytes
        self.peak_store[node] = max(self.peak_store[node], self.store[node])
        self._note(node)

    def take(self, node: int, size_bytes: float) -> None:
        """A process takes memory, or gives it back."""
        self.heap[node] += size_bytes
        self._note(node)

    def count(self, objects: int) -> None:
        """Objects come into being."""
        self.objects += objects
        self.peak_objects = max(self.peak_objects, self.objects)

    def release(self, node: int, size_bytes: float) -> None:
        """An object's last handle is gone."""
        self.store[node] -= size_bytes

    def _note(self, node: int) -> None:
        self.peak[node] = max(self.peak[node], self.store[node] + self.heap[node])


class Output:
    """One object: what a map task puts out for one destination and slice.

    Its holders, the driver and the shards that use it, account for its bytes.
    """

    __slots__ = ("copy", "ledger", "node", "size_bytes")

    def __init__(self, ledger: Ledger, node: int, size_bytes: float) -> None:
        self.ledger = ledger
        self.node = node
        self.size_bytes = size_bytes
        self.copy: int | None = None
        ledger.put(node, size_bytes)

    def lacks(self, node: int) -> bool:
        """Whether it must be copied to be read on a node; from now on it will be there."""
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

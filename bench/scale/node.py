"""The simulated nodes: cores, task slots and network interfaces."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.scale.clock import Clock
from bench.scale.cluster import Cluster
from bench.scale.memory import Ledger, Output
from bench.scale.shared_resource import SharedResource
from bench.scale.slots import Slots

__all__ = ["Nodes"]

Floats = NDArray[np.float64]


class Nodes:
    """All nodes of a cluster.

    Attributes
    ----------
    cpus
        The cores of each node.
    slots
        Slots for the map tasks that each node may run at once.
    ingress
        Receive bandwidth of each network interface; a user's limit is that of one connection.
    crossed_bytes, read_bytes
        Bytes sent between nodes, and bytes read from object storage.
    """

    def __init__(self, clock: Clock, cluster: Cluster) -> None:
        self._clock = clock
        self._cluster = cluster
        self.ledger = Ledger(cluster.nodes)
        self.cpus = [SharedResource(clock, cluster.cpus, 1.0) for _ in range(cluster.nodes)]
        self.slots = [Slots(cluster.cpus) for _ in range(cluster.nodes)]
        self.ingress = [
            SharedResource(clock, cluster.nic_bytes, cluster.connection_bytes) for _ in range(cluster.nodes)
        ]
        self._sent_until = np.zeros(cluster.nodes)
        self.sent_bytes = np.zeros(cluster.nodes)
        self.crossed_bytes = self.read_bytes = 0.0

    def work(self, node: int, core_seconds: float, done: Callable[[], None], threads: int = 1) -> None:
        """Compute on one core or several."""
        self.cpus[node].use(core_seconds / self._cluster.cpu_speed, done, float(threads))

    def least_loaded(self) -> int:
        """The node to which Ray's SPREAD strategy would send the next task."""
        return min(range(len(self.slots)), key=lambda node: self.slots[node].load)

    def read(self, node: int, size_bytes: float, done: Callable[[], None]) -> None:
        """Read from object storage over a task's connections."""
        if not self._cluster.connections:
            self._clock.after(0.0, done)
            return
        self.read_bytes += size_bytes
        weight = float(self._cluster.connections)
        receive = lambda: self.ingress[node].use(size_bytes, done, weight)  # noqa: E731
        self._clock.after(self._cluster.first_byte_seconds, receive)

    def pull(self, node: int, outputs: list[Output], transfer: float, done: Callable[[], None]) -> None:
        """Copy missing objects to a node; ``transfer`` is core seconds per byte at each end.

        A sender's interface serves one node after another. The transfer is complete when the
        senders, the receiver and their cores are all done.
        """
        lacking = [output for output in outputs if output.lacks(node)]
        if not lacking:
            self._clock.after(0.0, done)
            return
        sizes = np.bincount(
            [output.node for output in lacking],
            [output.size_bytes for output in lacking],
            minlength=len(self.cpus),
        ).astype(np.float64)
        del lacking, outputs
        self._move(node, sizes, transfer, done)

    def _move(self, node: int, sizes: Floats, transfer: float, done: Callable[[], None]) -> None:
        total = float(sizes.sum())
        self.crossed_bytes += total
        self.sent_bytes += sizes
        senders = np.flatnonzero(sizes)
        sent = (
            np.maximum(self._sent_until[senders], self._clock.now) + sizes[senders] / self._cluster.nic_bytes
        )
        self._sent_until[senders] = sent
        left = [3 + len(senders)]

        def arrive() -> None:
            left[0] -= 1
            if left[0] == 0:
                done()

        self._clock.after(float(sent.max()) - self._clock.now, arrive)
        # each sender uses several connections, so that the interface is the bottleneck
        self.ingress[node].use(total, arrive, weight=float(max(4 * len(senders), 16)))
        self.work(node, total * transfer, arrive)
        for sender in senders.tolist():
            self.work(sender, float(sizes[sender]) * transfer, arrive)

"""How a simulated shard gets its windows: one asked for at a time, and one fetched ahead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.scale.cluster import Costs
from bench.scale.coordinator import Coordinator
from bench.scale.memory import Output
from bench.scale.node import Nodes
from windrow.pipeline.collector import WindowCollector
from windrow.pipeline.held import WindowReply
from windrow.shuffle.runs import WindowRuns

__all__ = ["Fetched", "Fetcher"]

# As in windrow.pipeline.executors.ray: the window being consumed, and the next.
_WINDOWS_AHEAD = 2


class Fetched:
    """A window that is on the shard's node: its runs, and the objects of each slice."""

    def __init__(self, layout: WindowRuns | None, slices: list[list[Output]]) -> None:
        self.layout = layout
        self.slices = slices


class Fetcher:
    """The windows of all epochs for one shard, as the thread of `executors.ray.fetcher` gets them.

    Windows are numbered through all epochs; the next epoch's may be fetched before that is open.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        nodes: Nodes,
        costs: Costs,
        *,
        shard: int,
        node: int,
        windows: int,
        epochs: int,
        arrived: Callable[[], None],
    ) -> None:
        self._coordinator, self._nodes, self._costs = coordinator, nodes, costs
        self._shard, self._node, self._windows, self._epochs = shard, node, windows, epochs
        self._arrived = arrived
        self._stop = 0
        self._busy = False
        self._next = 0
        self._passed = 0
        self._ready: dict[int, Fetched] = {}

    def open(self, epoch: int) -> None:
        """An epoch has been opened."""
        self._stop = min(epoch + 2, self._epochs) * self._windows
        self._go_on()

    def take(self, number: int) -> Fetched | None:
        """A window, if it is there; else ``arrived`` is called when one has come."""
        return self._ready.pop(number, None)

    def passed(self, windows: int) -> None:
        """So many windows are used up."""
        self._passed = windows
        self._go_on()

    def _go_on(self) -> None:
        if self._busy or self._next >= min(self._passed + _WINDOWS_AHEAD, self._stop):
            return
        self._busy = True
        self._ask(self._next, WindowCollector())

    def _ask(self, number: int, collector: WindowCollector) -> None:
        key, have = divmod(number, self._windows), set(collector.outputs)
        self._coordinator.poll(self._shard, key, have, lambda reply: self._load(number, collector, reply))

    def _load(self, number: int, collector: WindowCollector, reply: WindowReply) -> None:
        # a slice that every shard has passed is no longer there
        outputs = [output for slices in reply.outputs.values() for output in slices if output is not None]

        def mapped() -> None:
            collector.add(replace(reply), reply.attempt)
            if collector.complete:
                self._keep(number, collector)
            else:
                self._ask(number, collector)

        get_seconds = len(outputs) * self._costs.get
        work = self._nodes.work
        self._nodes.pull(
            self._node, outputs, self._costs.transfer, lambda: work(self._node, get_seconds, mapped)
        )

    def _keep(self, number: int, collector: WindowCollector) -> None:
        slices = [[output for output in slice_ if output is not None] for slice_ in collector.slices()]
        self._ready[number] = Fetched(collector.layout, slices)
        self._next, self._busy = number + 1, False
        self._arrived()
        self._go_on()

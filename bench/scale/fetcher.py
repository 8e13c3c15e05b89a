"""Window fetches of a simulated shard: chosen by the real `Ahead`, one request at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.scale.cluster import Costs
from bench.scale.coordinator import Coordinator
from bench.scale.node import Nodes
from windrow.pipeline.coordinator.requests import EpochFacts, WindowReply
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.window_fetch import Ahead, WindowCollector
from windrow.pipeline.plan.cursor import Cursor

__all__ = ["Fetcher"]


class Fetcher:
    """Fetches the windows of all epochs for one shard, like the thread in `executors.ray.fetch_thread`.

    Its map outputs are the objects that the ledger counts on the shard's node.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        nodes: Nodes,
        costs: Costs,
        facts: EpochFacts,
        *,
        shard: int,
        node: int,
        epochs: int,
        arrived: Callable[[], None],
    ) -> None:
        self._coordinator, self._nodes, self._costs = coordinator, nodes, costs
        self._shard, self._node, self._epochs = shard, node, epochs
        self._arrived = arrived
        self._busy = False
        self._ahead = Ahead(
            Cursor(facts.epoch),
            facts.windows,
            leads_on=self._leads_on(facts.epoch),
            extra_windows=facts.extra_windows,
        )
        self._fetch_next()

    def open(self, epoch: int) -> None:
        """Continue with the next epoch, which was opened."""
        self._ahead.open(Cursor(epoch), leads_on=self._leads_on(epoch))
        self._fetch_next()

    def _leads_on(self, epoch: int) -> bool:
        return epoch + 1 < self._epochs

    def take(self, key: Key) -> WindowData | None:
        """Take a window if it has arrived; otherwise ``arrived`` is called when a window arrives."""
        self._ahead.want(key)
        data = self._ahead.take(key)
        self._fetch_next()
        return data

    def acknowledge(self, place: Place) -> None:
        """Acknowledge that nothing before a place is needed any more."""
        self._ahead.acknowledge(place)
        acknowledged = self._ahead.take_news()
        if acknowledged is not None:
            self._coordinator.acknowledge(self._shard, acknowledged)
        self._fetch_next()

    def _fetch_next(self) -> None:
        key = None if self._busy else self._ahead.next()
        if key is not None:
            self._busy = True
            self._request(key, WindowCollector())

    def _request(self, key: Key, collector: WindowCollector) -> None:
        place, have = self._ahead.ask(key), set(collector.outputs)
        self._coordinator.poll(self._shard, place, key, have, lambda reply: self._load(key, collector, reply))

    def _load(self, key: Key, collector: WindowCollector, reply: WindowReply) -> None:
        # slices that every shard has acknowledged are gone
        outputs = [output for slices in reply.outputs.values() for output in slices if output is not None]

        def mapped() -> None:
            collector.add(replace(reply), reply.attempt)
            if collector.complete:
                self._keep(key, collector)
            else:
                self._request(key, collector)

        get_seconds = len(outputs) * self._costs.get
        work = self._nodes.work
        self._nodes.pull(
            self._node, outputs, self._costs.transfer, lambda: work(self._node, get_seconds, mapped)
        )

    def _keep(self, key: Key, collector: WindowCollector) -> None:
        slices: list[Any] = [
            [output for output in slice_ if output is not None] for slice_ in collector.slices()
        ]
        self._ahead.keep(key, WindowData(collector.layout, slices))
        self._busy = False
        self._arrived()
        self._fetch_next()

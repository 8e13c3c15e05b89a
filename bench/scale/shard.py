"""A simulated trainer and its shard: fetch windows, place runs ahead, consume them, acknowledge slices."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby

from bench.scale.clock import Clock
from bench.scale.cluster import Cluster, Costs
from bench.scale.coordinator import Coordinator
from bench.scale.fetcher import Fetcher
from bench.scale.node import Nodes
from bench.scale.slots import Slots
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.plan.cursor import Cursor
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import Run

__all__ = ["Shard", "Times"]

_HEARTBEAT_SECONDS = 1.0
_RUNS_AHEAD = 2
_URGENCY = 0


@dataclass
class Times:
    """Times of one window at one trainer: when it was consumed, and how long the trainer waited."""

    epoch: int
    window: int
    began: float
    ended: float = 0.0
    waited: float = 0.0
    rows: int = 0


@dataclass
class _Group:
    """Runs of one slice that are simulated as one."""

    window: int
    slice: int
    place: int
    rows: int
    runs: int
    placed: bool = False


class Shard:
    """The stream of one trainer over all epochs.

    ``grain`` is the maximum number of groups in which a slice's runs are simulated; None: each run
    separately.
    """

    def __init__(
        self,
        clock: Clock,
        cluster: Cluster,
        costs: Costs,
        nodes: Nodes,
        coordinator: Coordinator,
        *,
        shard: int,
        batch_rows: int,
        row_bytes: int,
        epochs: int,
        grain: int | None,
        pool: Slots,
    ) -> None:
        self._clock, self._cluster, self._costs = clock, cluster, costs
        self._nodes, self._coordinator = nodes, coordinator
        self._shard, self._node = shard, shard % cluster.nodes
        self._batch_rows, self._row_bytes, self._epochs, self._grain = batch_rows, row_bytes, epochs, grain
        self._pool = pool
        self._fetcher: Fetcher | None = None
        self._waiting_since: float | None = 0.0
        self.windows: list[Times] = []
        self.delivered: list[int] = []
        self.done = False
        self.first_rows = 0.0
        self.consumed_windows = 0
        self._groups: dict[int, int] = {}
        self._window_groups_left = 0
        self._waited = 0.0
        self._open(0)
        clock.after(_HEARTBEAT_SECONDS, self._send_heartbeat)

    @property
    def waiting(self) -> float:
        """Seconds that the trainer has waited so far."""
        since = self._waiting_since
        return self._waited + (0.0 if since is None or self.done else self._clock.now - since)

    # --- epochs

    def _open(self, epoch: int) -> None:
        self._epoch = epoch
        self._coordinator.open_epoch(self._shard, Cursor(epoch=epoch), self._batch_rows, self._begin)

    def _begin(self, facts: EpochFacts) -> None:
        self._facts = facts
        self._depth = max(_RUNS_AHEAD, -(-self._batch_rows // facts.run_rows) + 1)
        self._free_slots = self._depth
        self._window = 0
        self._expected = 0
        self._ahead: deque[_Group] = deque()
        self._submitted: deque[_Group] = deque()
        self._fetched: dict[int, WindowData] = {}
        self._unplaced_runs: dict[int, list[int]] = {}
        self._released_slices: dict[int, int] = {}
        self.delivered.append(0)
        if self._fetcher is None:
            self._fetcher = Fetcher(
                self._coordinator,
                self._nodes,
                self._costs,
                facts,
                shard=self._shard,
                node=self._node,
                epochs=self._epochs,
                arrived=self._prefetch_loop,
            )
        else:
            self._fetcher.open(facts.epoch)
        # windows fetched in advance are already available
        self._prefetch_loop()

    def _end(self) -> None:
        self._acknowledged(Place(self._epoch + 1, 0))
        if self._epoch + 1 < self._epochs:
            self._open(self._epoch + 1)
        else:
            self.done = True

    def _send_heartbeat(self) -> None:
        if not self.done:
            self._coordinator.heartbeat(self._shard)
            self._clock.after(_HEARTBEAT_SECONDS, self._send_heartbeat)

    # --- the prefetch loop

    def _prefetch_loop(self) -> None:
        """Take the next window once all runs of the previous one have been submitted."""
        while self._fetcher is not None and not self._ahead and self._window < self._facts.windows:
            fetched = self._fetcher.take((self._facts.epoch, self._window))
            if fetched is None:
                return
            window, self._window = self._window, self._window + 1
            if fetched.layout is None:
                self._acknowledged(Place(self._epoch, self._window))
                continue
            groups = list(self._group(window, fetched.layout.runs(self._shard)))
            self._fetched[window], self._released_slices[window] = fetched, 0
            self._unplaced_runs[window] = [0] * len(fetched.slices)
            for group in groups:
                self._unplaced_runs[window][group.slice] += 1
            self._groups[window] = len(groups)
            self._ahead.extend(groups)
            self._submit_runs()

    def _acknowledged(self, place: Place) -> None:
        assert self._fetcher is not None, "an epoch has been opened"
        self._fetcher.acknowledge(place)

    def _group(self, window: int, runs: list[Run]) -> Iterator[_Group]:
        for number, some in groupby(runs, lambda run: run.slice):
            of_slice = list(some)
            step = 1 if self._grain is None else max(1, len(of_slice) // self._grain)
            for first in range(0, len(of_slice), step):
                joined = of_slice[first : first + step]
                rows = sum(run.rows for run in joined)
                yield _Group(window, number, joined[0].place, rows, len(joined))

    def _submit_runs(self) -> None:
        while self._free_slots and self._ahead:
            self._free_slots -= 1
            group = self._ahead.popleft()
            self._submitted.append(group)
            self._pool.submit(lambda free, group=group: self._place(group, free), _URGENCY)  # type: ignore[misc]
        if not self._ahead:
            self._prefetch_loop()

    def _place(self, group: _Group, free: Callable[[], None]) -> None:
        size = group.rows * self._row_bytes
        self._nodes.ledger.take(self._node, size / group.runs)

        def placed() -> None:
            group.placed = True
            free()
            self._release_slices(group)
            self._consume()

        seconds = size * self._costs.place + group.runs * self._costs.run
        # all placers work on a group, because they place several runs at the same time
        threads = 1 if self._grain is None else self._cluster.placers
        self._nodes.work(self._node, seconds, placed, threads)

    def _release_slices(self, group: _Group) -> None:
        """Release slices whose runs are all placed, and acknowledge the progress."""
        window, left = group.window, self._unplaced_runs[group.window]
        left[group.slice] -= 1
        before = self._released_slices[window]
        while self._released_slices[window] < len(left) and left[self._released_slices[window]] == 0:
            self._fetched[window].slices[self._released_slices[window]] = MapOutputs()
            self._released_slices[window] += 1
        if self._released_slices[window] == before:
            return
        ended = self._released_slices[window] == len(left)
        place = (
            Place(self._epoch, window + 1)
            if ended
            else Place(self._epoch, window, self._released_slices[window])
        )
        if ended:
            del self._fetched[window], self._unplaced_runs[window], self._released_slices[window]
        self._acknowledged(place)

    # --- the trainer

    def _consume(self) -> None:
        """Take the next run, if the trainer waits and the run is placed."""
        if self._waiting_since is None or not self._submitted or not self._submitted[0].placed:
            return
        group = self._submitted.popleft()
        assert group.place == self._expected, "a shard's rows arrive in order, each once"
        self._expected += group.rows
        self.delivered[-1] += group.rows
        waited, self._waiting_since = self._clock.now - self._waiting_since, None
        self._waited += waited
        self.first_rows = self.first_rows or self._clock.now
        times = self._times(group, waited)
        self._free_slots += 1
        self._submit_runs()
        size = group.rows * self._row_bytes
        least = size / self._cluster.trainer_bytes if self._cluster.trainer_bytes else 0.0

        def consumed() -> None:
            self._clock.after(max(0.0, least), taken)

        def taken() -> None:
            self._nodes.ledger.take(self._node, -size / group.runs)
            times.ended = self._clock.now
            self._waiting_since = self._clock.now
            self._window_groups_left -= 1
            self.consumed_windows += self._window_groups_left == 0
            last = not self._submitted and not self._ahead and self._window == self._facts.windows
            if last:
                self._end()
            else:
                self._consume()

        self._nodes.work(self._node, size * self._costs.consume, consumed)

    def _times(self, group: _Group, waited: float) -> Times:
        last = self.windows[-1] if self.windows else None
        if last is None or (last.epoch, last.window) != (self._epoch, group.window):
            began = last.ended if last is not None else 0.0
            self.windows.append(Times(self._epoch, group.window, began))
            self._window_groups_left = self._groups.pop(group.window)
        times = self.windows[-1]
        times.waited += waited
        times.rows += group.rows
        return times

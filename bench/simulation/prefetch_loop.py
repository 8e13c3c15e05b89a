"""The prefetch loop as events: fetches windows and places runs like `windrow.pipeline.shard.prefetch_loop`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.simulation.client import CoordinatorClient
from bench.simulation.machines import Machines
from bench.simulation.world import Violation, World
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.shard.partial_runs import SliceUses
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import Run, WindowRuns

# as in windrow: shorter than the coordinator's timeout for silent shards
_RELEASE_SECONDS = 4.0
_RUNS_AHEAD = 2


@dataclass(eq=False)
class _PlacedRun:
    """A run submitted for placing; ``rows`` is set once it is placed."""

    place: int
    takes_slot: bool
    rows: Sequence[int] | None = None


@dataclass(eq=False)
class _Epoch:
    """An epoch and its placed runs; progress is not reported before the trainer has opened the epoch."""

    facts: EpochFacts
    queue: deque[_PlacedRun] = field(default_factory=deque)
    ended: bool = False
    begun: bool = False
    acknowledged: Place | None = None
    next: _Epoch | None = None


class PrefetchLoop:
    """Prefetches one reader's epochs, at most one epoch ahead of the trainer."""

    def __init__(
        self,
        world: World,
        machines: Machines,
        shard_client: CoordinatorClient,
        facts: EpochFacts,
        shard: int,
        *,
        batch_rows: int,
        notify: Callable[[], None],
        leads_on: Callable[[int], bool],
    ) -> None:
        self._world, self._machines, self._client, self._shard = world, machines, shard_client, shard
        # its depth: the number of runs that are placed ahead of the trainer
        self._free_slots = max(_RUNS_AHEAD, -(-batch_rows // facts.run_rows) + 1)
        self._notify = notify
        self._leads_on = leads_on
        self._submitted = 0
        self._data: WindowData | None = None
        self._runs: deque[Run] = deque()
        self._padding: list[_PlacedRun] = []
        self._paused = self._stopped = False
        self._full_since: float | None = None
        self._prefetch_epoch = self._consumer_epoch = _Epoch(facts)
        self._window = facts.first_window
        self._begin(self._consumer_epoch)

    # --- the trainer's side

    def take(self) -> Sequence[int] | None:
        queue = self._consumer_epoch.queue
        if not queue or queue[0].rows is None:
            return None
        placed = queue.popleft()
        rows = placed.rows
        self._free_slots += placed.takes_slot
        self._full_since = None
        self._paused = False
        self._advance()
        return rows

    @property
    def empty(self) -> bool:
        return self._consumer_epoch.ended and not self._consumer_epoch.queue

    @property
    def next(self) -> EpochFacts | None:
        return None if self._consumer_epoch.next is None else self._consumer_epoch.next.facts

    def begin_next(self) -> None:
        assert self._consumer_epoch.next is not None, "there is a next epoch"
        self._consumer_epoch = self._consumer_epoch.next
        self._begin(self._consumer_epoch)

    def stop(self) -> None:
        self._stopped = True

    # --- the thread's side

    def _begin(self, epoch: _Epoch) -> None:
        number = epoch.facts.epoch
        epoch.begun = True
        epoch.next = _Epoch(epoch.facts.next_epoch) if self._leads_on(number) else None
        if epoch.acknowledged is not None:
            self._client.acknowledge(epoch.acknowledged)
        self._advance()

    def _advance(self) -> None:
        while not (self._stopped or self._paused):
            if self._prefetch_epoch.ended:
                if self._prefetch_epoch.next is None:
                    return
                self._prefetch_epoch, self._window = self._prefetch_epoch.next, 0
            elif self._window == self._prefetch_epoch.facts.windows:
                self._end()
            elif self._data is None:
                self._data = self._client.window(
                    self._prefetch_epoch.facts.epoch, self._window, self._advance
                )
                if self._data is None:
                    return
                self._begin_window(self._data)
            elif not self._submit_runs(self._data):
                return

    def _end(self) -> None:
        """Queue the padding rows that end an epoch; they do not count against the depth."""
        self._prefetch_epoch.queue.extend(sorted(self._padding, key=lambda placed: placed.place))
        self._padding.clear()
        self._prefetch_epoch.ended = True
        self._world.after(0.0, self._notify)

    def _begin_window(self, data: WindowData) -> None:
        layout, facts = data.layout, self._prefetch_epoch.facts
        self._report = self._make_report(self._prefetch_epoch, self._window)
        if layout is None:
            self._report(0, True)
            self._next_window()
            return
        if layout.assignment != facts.assignment.whole:
            raise Violation(
                f"shard {self._shard}, epoch {facts.epoch}: rows are placed for a different shard assignment"
            )
        runs = self._machines.join_runs(layout.runs_from(facts.assignment.start_row, self._shard))
        runs = runs[self._submitted :]
        padding = layout.padding_runs(self._shard)
        self._uses = SliceUses(data, self._report)
        self._uses.expect([run.slice for run in (*runs, *padding)])
        self._runs.extend(runs)

    def _submit_runs(self, data: WindowData) -> bool:
        """Submit runs up to the depth; returns whether all runs of the window were submitted."""
        layout = data.layout
        assert isinstance(layout, WindowRuns), "windows without a layout are skipped before"
        while self._runs:
            if not self._free_slots:
                if self._full_since is None:
                    self._full_since = self._world.now
                    self._world.after(_RELEASE_SECONDS, self._release, self._full_since, data)
                return False
            self._free_slots -= 1
            self._submitted += 1
            self._prefetch_epoch.queue.append(self._submit(data, self._runs.popleft(), takes_slot=True))
        self._padding.extend(
            self._submit(data, run, takes_slot=False) for run in layout.padding_runs(self._shard)
        )
        self._uses.finish()
        self._next_window()
        return True

    def _next_window(self) -> None:
        self._data, self._submitted = None, 0
        self._window += 1

    def _release(self, since: float, data: WindowData) -> None:
        """Release the window if the consumer has not taken a run for a while."""
        if self._full_since != since or self._stopped or self._data is not data or not self._client.alive:
            return
        self._world.record("released", self._shard, self._window)
        data.slices[:] = [MapOutputs()] * len(data.slices)
        self._runs.clear()
        self._data, self._paused = None, True
        self._client.release()

    def _make_report(self, epoch: _Epoch, window: int) -> Callable[[int, bool], None]:
        def report(slices: int, finished: bool) -> None:
            number = epoch.facts.epoch
            place = Place(number, window + 1) if finished else Place(number, window, slices)
            if epoch.begun:
                self._client.acknowledge(place)
            else:
                epoch.acknowledged = place if epoch.acknowledged is None else max(place, epoch.acknowledged)

        return report

    def _submit(self, data: WindowData, run: Run, *, takes_slot: bool) -> _PlacedRun:
        placed = _PlacedRun(run.place, takes_slot)
        place = partial(self._place, placed, data.slices[run.slice], run, self._uses)
        self._machines.spend_placing(self._shard, run, place)
        return placed

    def _place(self, placed: _PlacedRun, map_outputs: Sequence[Any], run: Run, uses: SliceUses) -> None:
        if not self._client.alive:
            return
        try:
            placed.rows = self._machines.place_rows(map_outputs, run)[run.skip :]
        except ValueError as error:
            raise Violation(
                f"shard {self._shard}, epoch {self._prefetch_epoch.facts.epoch}: {error}"
            ) from error
        uses.used(run.slice)
        self._notify()

"""Walks the windows of epochs, as the thread of `windrow.pipeline.shard.prefetch_loop` does."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bench.simulate.shard_client import CoordinatorClient
from bench.simulate.work import place_rows
from bench.simulate.world import Violation, World
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.executors.base import EpochFacts, WindowData
from windrow.pipeline.shard.slice_uses import SliceUses
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import Run, WindowRuns

__all__ = ["PrefetchLoop"]

# as in the reader: before the run's patience with a silent shard ends
_RELEASE_SECONDS = 4.0
_PLACE_SECONDS = 0.02


@dataclass(eq=False)
class _Placed:
    """A run in the shard's stream; its rows once it is placed."""

    place: int
    takes_room: bool
    rows: list[int] | None = None


@dataclass(eq=False)
class _Epoch:
    """What is told of an epoch, and how far it is, which is held back until the trainer has begun it."""

    facts: EpochFacts
    queue: deque[_Placed] = field(default_factory=deque)
    ended: bool = False
    begun: bool = False
    acknowledged: Place | None = None
    next: _Epoch | None = None


class PrefetchLoop:
    """One reader's way through the epochs, at most one ahead of the trainer."""

    def __init__(
        self,
        world: World,
        shard_client: CoordinatorClient,
        facts: EpochFacts,
        shard: int,
        *,
        depth: int,
        news: Callable[[], None],
        leads_on: Callable[[int], bool],
    ) -> None:
        self._world, self._client, self._shard = world, shard_client, shard
        self._room = depth
        self._news = news
        self._leads_on = leads_on
        self._handed = 0
        self._data: WindowData | None = None
        self._runs: deque[Run] = deque()
        self._stash: list[_Placed] = []
        self._paused = self._stopped = False
        self._full_since: float | None = None
        self._walked = self._open = _Epoch(facts)
        self._window = facts.first_window
        self._begin(self._open)

    # --- the trainer's side

    def take(self) -> list[int] | None:
        """The next run's rows, if it is there."""
        queue = self._open.queue
        if not queue or queue[0].rows is None:
            return None
        placed = queue.popleft()
        rows = placed.rows
        self._room += placed.takes_room
        self._full_since = None
        self._paused = False
        self._go_on()
        return rows

    @property
    def empty(self) -> bool:
        """Whether nothing of this epoch will come any more."""
        return self._open.ended and not self._open.queue

    @property
    def next(self) -> EpochFacts | None:
        """The epoch that it goes on to, if any."""
        return None if self._open.next is None else self._open.next.facts

    def begin_next(self) -> None:
        """The trainer has opened the epoch that this one goes on to."""
        assert self._open.next is not None, "there is a next epoch"
        self._open = self._open.next
        self._begin(self._open)

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True

    # --- the thread's side

    def _begin(self, epoch: _Epoch) -> None:
        number = epoch.facts.epoch
        epoch.begun = True
        epoch.next = _Epoch(epoch.facts.next_epoch) if self._leads_on(number) else None
        if epoch.acknowledged is not None:
            self._client.acknowledge(epoch.acknowledged)
        self._go_on()

    def _go_on(self) -> None:
        while not (self._stopped or self._paused):
            if self._walked.ended:
                if self._walked.next is None:
                    return
                self._walked, self._window = self._walked.next, 0
            elif self._window == self._walked.facts.windows:
                self._end()
            elif self._data is None:
                self._data = self._client.window(self._walked.facts.epoch, self._window, self._go_on)
                if self._data is None:
                    return
                self._begin_window(self._data)
            elif not self._hand_out(self._data):
                return

    def _end(self) -> None:
        """Hand out repeated rows, which end an epoch, and for which no room is needed."""
        self._walked.queue.extend(sorted(self._stash, key=lambda placed: placed.place))
        self._stash.clear()
        self._walked.ended = True
        self._world.after(0.0, self._news)

    def _begin_window(self, data: WindowData) -> None:
        layout, facts = data.layout, self._walked.facts
        self._report = self._make_report(self._walked, self._window)
        if layout is None:
            self._report(0, True)
            self._pass()
            return
        if layout.assignment != facts.assignment.whole:
            raise Violation(f"shard {self._shard}, epoch {facts.epoch}: rows are placed as for another deal")
        runs = layout.runs_from(facts.assignment.start_row, self._shard)[self._handed :]
        padding = layout.padding_runs(self._shard)
        self._uses = SliceUses(data, self._report)
        self._uses.expect([run.slice for run in (*runs, *padding)])
        self._runs.extend(runs)

    def _hand_out(self, data: WindowData) -> bool:
        """Hand out what there is room for; returns whether that was all of the window."""
        layout = data.layout
        assert isinstance(layout, WindowRuns), "what has no layout has been passed"
        while self._runs:
            if not self._room:
                if self._full_since is None:
                    self._full_since = self._world.now
                    self._world.after(_RELEASE_SECONDS, self._release, self._full_since, data)
                return False
            self._room -= 1
            self._handed += 1
            self._walked.queue.append(self._submit(data, self._runs.popleft(), takes_room=True))
        self._stash.extend(
            self._submit(data, run, takes_room=False) for run in layout.padding_runs(self._shard)
        )
        self._uses.finish()
        self._pass()
        return True

    def _pass(self) -> None:
        self._data, self._handed = None, 0
        self._window += 1

    def _release(self, since: float, data: WindowData) -> None:
        """Hold no window for a consumer that takes nothing."""
        if self._full_since != since or self._stopped or self._data is not data or not self._client.alive:
            return
        self._world.note("released", self._shard, self._window)
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

    def _submit(self, data: WindowData, run: Run, *, takes_room: bool) -> _Placed:
        placed = _Placed(run.place, takes_room)
        seconds = _PLACE_SECONDS * self._world.chance.random()
        self._world.after(seconds, self._place, placed, data.slices[run.slice], run, self._uses)
        return placed

    def _place(self, placed: _Placed, map_outputs: list[Any], run: Run, uses: SliceUses) -> None:
        if not self._client.alive:
            return
        try:
            placed.rows = place_rows(map_outputs, run)[run.skip :]
        except ValueError as error:
            raise Violation(f"shard {self._shard}, epoch {self._walked.facts.epoch}: {error}") from error
        uses.used(run.slice)
        self._news()

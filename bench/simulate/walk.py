"""Walks the windows of an epoch and places runs a little ahead, as the thread of `windrow.pipeline.walk`."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bench.simulate.feed import Feed
from bench.simulate.work import place_rows
from bench.simulate.world import Violation, World
from windrow.pipeline.executors.seam import EpochFacts, WindowData
from windrow.pipeline.scheduling.events import Place
from windrow.pipeline.slice_uses import SliceUses
from windrow.shuffle.runs import Run, WindowRuns

__all__ = ["Placed", "Walk"]

# as in the reader: before the run's patience with a silent shard ends
_LET_GO_SECONDS = 4.0
_PLACE_SECONDS = 0.02


@dataclass(eq=False)
class Placed:
    """A run in the shard's stream; its rows once it is placed."""

    place: int
    rows: list[int] | None = None


class Walk:
    """One epoch of one reader.

    Attributes
    ----------
    ended
        Whether all runs have been handed out.
    """

    def __init__(
        self,
        world: World,
        feed: Feed,
        facts: EpochFacts,
        shard: int,
        *,
        depth: int,
        news: Callable[[], None],
    ) -> None:
        self._world, self._feed, self._facts, self._shard = world, feed, facts, shard
        self._room = depth
        self._news = news
        self._window = facts.first_window
        self._handed = 0
        self._data: WindowData | None = None
        self._runs: deque[Run] = deque()
        self._stash: list[Placed] = []
        self._queue: deque[Placed] = deque()
        self._paused = self._stopped = False
        self._full_since: float | None = None
        self.ended = False
        self._go_on()

    def take(self) -> list[int] | None:
        """The next run's rows, if it is there."""
        if not self._queue or self._queue[0].rows is None:
            return None
        rows = self._queue.popleft().rows
        self._room += 1
        self._full_since = None
        self._paused = False
        self._go_on()
        return rows

    @property
    def empty(self) -> bool:
        """Whether nothing will come any more."""
        return self.ended and not self._queue

    def stop(self) -> None:
        """Hand out nothing more."""
        self._stopped = True

    def _go_on(self) -> None:
        while not (self._stopped or self._paused or self.ended):
            if self._data is None:
                if self._window == self._facts.windows:
                    self._queue.extend(sorted(self._stash, key=lambda placed: placed.place))
                    self.ended = True
                    self._world.after(0.0, self._news)
                    return
                self._data = self._feed.window(self._window, self._go_on)
                if self._data is None:
                    return
                self._begin(self._data)
            elif not self._hand_out(self._data):
                return

    def _begin(self, data: WindowData) -> None:
        layout = data.layout
        self._report = self._make_report(self._window)
        if layout is None:
            self._report(0, True)
            self._pass()
            return
        runs = layout.runs_from(self._facts.deal.start_row, self._shard)[self._handed :]
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
                    self._world.after(_LET_GO_SECONDS, self._let_go, self._full_since, data)
                return False
            self._room -= 1
            self._handed += 1
            self._queue.append(self._submit(data, self._runs.popleft()))
        self._stash.extend(self._submit(data, run) for run in layout.padding_runs(self._shard))
        self._uses.finish()
        self._pass()
        return True

    def _pass(self) -> None:
        self._data, self._handed = None, 0
        self._window += 1

    def _let_go(self, since: float, data: WindowData) -> None:
        """Hold no window for a consumer that takes nothing."""
        if self._full_since != since or self._stopped or self._data is not data or not self._feed.alive:
            return
        self._world.note("let go", self._shard, self._window)
        data.slices[:] = [[] for _ in data.slices]
        self._runs.clear()
        self._data, self._paused = None, True
        self._feed.let_go()

    def _make_report(self, window: int) -> Callable[[int, bool], None]:
        def report(slices: int, finished: bool) -> None:
            epoch = self._facts.epoch
            self._feed.reached(Place(epoch, window + 1) if finished else Place(epoch, window, slices))

        return report

    def _submit(self, data: WindowData, run: Run) -> Placed:
        placed = Placed(run.place)
        seconds = _PLACE_SECONDS * self._world.chance.random()
        self._world.after(seconds, self._place, placed, data.slices[run.slice], run, self._uses)
        return placed

    def _place(self, placed: Placed, pieces: list[Any], run: Run, uses: SliceUses) -> None:
        if not self._feed.alive:
            return
        try:
            placed.rows = place_rows(pieces, run)[run.skip :]
        except ValueError as error:
            raise Violation(f"shard {self._shard}, epoch {self._facts.epoch}: {error}") from error
        uses.used(run.slice)
        self._news()

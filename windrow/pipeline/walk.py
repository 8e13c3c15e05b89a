"""The thread behind a reader: walks the windows of an epoch and has their runs placed a little ahead."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.core.memory import BufferPool
from windrow.pipeline.batches import one_batch
from windrow.pipeline.executors.seam import EpochFacts, Feed, WindowData
from windrow.pipeline.pace import Pace
from windrow.pipeline.scheduling.events import Place
from windrow.pipeline.slice_uses import SliceUses
from windrow.pipeline.stats import Span
from windrow.pipeline.transforms import MapBatches, apply_maps
from windrow.shuffle.piece import Piece
from windrow.shuffle.place import place_rows
from windrow.shuffle.runs import Run, WindowRuns

__all__ = ["PlacedRun", "Walk"]

# before the run's patience with a silent shard ends, so that what it drops is held by nobody
_LET_GO_SECONDS = 4.0


@dataclass
class PlacedRun:
    """A run in its place: its rows, and the batches that were made of them, if any."""

    rows: pa.RecordBatch
    window: int
    converted: list[Any] | None = None


class Walk:
    """What a reader's thread does: hands runs to the feed's workers; it knows the queue but not the reader.

    Parameters
    ----------
    feed, facts, shard
        The line to the run, the epoch, and the shard.
    after
        Transforms after the shuffle.
    convert
        Makes a run's batches where it is placed; None: they are made when they are asked for.
    depth
        Placed runs that wait for the consumer, at most.
    pace
        The consumer's, over all epochs.
    spans
        Takes what was done and when.

    Attributes
    ----------
    queue
        Runs in the order of the stream, being placed or in their places; None at its end.
    starts, total, damaged
        What the windows have told: their first rows, the rows of the epoch, blocks left out.
    handed_rows, is_whole
        Rows of the runs handed out, and whether they are all that the shard gets.
    look_out
        What users should know, one line each.
    """

    def __init__(
        self,
        feed: Feed,
        facts: EpochFacts,
        shard: int,
        *,
        after: tuple[MapBatches, ...],
        convert: Callable[[pa.RecordBatch], list[Any]] | None,
        depth: int,
        pace: Pace,
        spans: deque[Span],
    ) -> None:
        self._feed = feed
        self._facts = facts
        self._shard = shard
        self._after = after
        self._convert = convert
        self._spans = spans
        self._room = threading.Semaphore(depth)
        self._pace = pace
        self._stopped = threading.Event()
        self.starts: dict[int, int] = {}
        self.total = facts.total
        self.damaged: frozenset[int] = frozenset()
        self.look_out: deque[str] = deque()
        self.handed_rows = 0
        self.is_whole = False
        self._ended = False
        self._handed = threading.Condition()
        self._stash: list[tuple[int, Future[PlacedRun | None]]] = []
        self.queue: queue.SimpleQueue[Future[PlacedRun | None]] = queue.SimpleQueue()
        self._before: deque[PlacedRun | None] = deque()

    def taken(self, before: PlacedRun | None) -> None:
        """The consumer has taken a run, and is done with the one before."""
        self._before.append(before)
        self._room.release()

    def drop(self) -> None:
        """Let go of runs that the consumer is done with.

        Who lets go last of a run that was converted where it was placed frees its tensors, and
        torch gives up the interpreter's lock for each: a trainer would have to get it back from busy
        workers again and again, a millisecond for 21 columns.
        """
        self._before.clear()

    def stop(self) -> None:
        """End the walk at the next step."""
        self._stopped.set()
        self._room.release()

    def run(self) -> None:
        """Walk all windows; what goes wrong reaches the consumer in the place of a run."""
        end: Future[PlacedRun | None] = Future()
        try:
            for window in range(self._facts.first_window, self._facts.windows):
                if not self._walk_window(window):
                    end.cancel()
                    return
            for _, future in sorted(self._stash, key=lambda entry: entry[0]):
                self.queue.put(future)
            self.is_whole = True
            end.set_result(None)
        except BaseException as error:
            end.set_exception(error)
        finally:
            self.queue.put(end)
            with self._handed:
                self._ended = True
                self._handed.notify_all()

    def tells(self, rows: int, timeout: float) -> bool:
        """Wait until more than ``rows`` rows have been handed out, or none follow; returns whether so."""
        with self._handed:
            return self._handed.wait_for(lambda: self._ended or self.handed_rows > rows, timeout)

    def _hand(self, future: Future[PlacedRun | None], rows: int) -> None:
        self.queue.put(future)
        with self._handed:
            self.handed_rows += rows
            self._handed.notify_all()

    def _walk_window(self, window: int) -> bool:
        """Hand out the runs of a window; returns False when reading has been stopped."""
        handed: int | None = 0
        while handed is not None:
            data = self._feed.window(self._facts.epoch, window, self._stopped)
            if data is None:
                return False
            self.look_out.extend(data.look_out)
            if data.layout is None:
                self._report(window)(0, True)
                return True
            self.starts.update(data.starts)
            self.damaged = self.damaged.union(data.damaged)
            self.total = data.layout.total if self.total is None else self.total
            handed = self._hand_out(window, data, data.layout, handed)
            if self._stopped.is_set():
                return False
        return True

    def _hand_out(self, window: int, data: WindowData, layout: WindowRuns, first: int) -> int | None:
        """Hand out the runs from the first on; returns where to go on once the window is there again."""
        # the rows of earlier steps are there for shards that are behind this one
        runs = layout.runs_from(self._facts.deal.start_row, self._shard)[first:]
        padding = layout.padding_runs(self._shard)
        uses = SliceUses(data, self._report(window))
        uses.expect([run.slice for run in (*runs, *padding)])
        for number, run in enumerate(runs, first):
            if not self._room.acquire(timeout=_LET_GO_SECONDS):
                self._let_go(data)
                return number
            if self._stopped.is_set():
                return None
            self.drop()
            self._hand(self._submit(window, data, run, uses), run.rows - run.skip)
        self._stash.extend((run.place, self._submit(window, data, run, uses)) for run in padding)
        uses.finish()
        return None

    def _let_go(self, data: WindowData) -> None:
        """Hold no window for a consumer that takes nothing; returns when it has taken something.

        The run may have dropped the window for such a consumer, and counts on its memory.
        """
        data.slices[:] = [[] for _ in data.slices]
        self._feed.let_go()
        self._room.acquire()
        self._room.release()

    def _report(self, window: int) -> Callable[[int, bool], None]:
        def report(slices: int, finished: bool) -> None:
            at = (
                Place(self._facts.epoch, window + 1) if finished else Place(self._facts.epoch, window, slices)
            )
            self._feed.reached(at)

        return report

    def _submit(self, window: int, data: WindowData, run: Run, uses: SliceUses) -> Future[PlacedRun | None]:
        assert data.layout is not None, "a run belongs to a layout"
        # in a list that is emptied, so that nobody holds pieces when their slice is told to be free
        place = partial(self._place, window, [data.slices[run.slice]], run, uses)
        return self._feed.submit(place, urgent=self._pace.works)

    def _place(self, window: int, pieces: list[list[Piece]], run: Run, uses: SliceUses) -> PlacedRun:
        began = time.time()
        rows = _place(pieces.pop(), run, self._feed.pool)
        uses.used(run.slice)
        rows = rows.slice(run.skip) if run.skip else rows
        if self._after:
            origin = f"epoch {self._facts.epoch}, window {window}, rows from place {run.place} of shard {self._shard}"
            table = apply_maps(pa.Table.from_batches([rows]), self._after, origin)
            rows = one_batch(table, origin) if table.num_rows else rows
        converted = None if self._convert is None else self._convert(rows)
        self._spans.append(
            Span("reduce", self._facts.epoch, window, began, time.time(), f"shard {self._shard}")
        )
        return PlacedRun(rows, window, converted)


def _place(pieces: list[Piece], run: Run, pool: BufferPool) -> pa.RecordBatch:
    return place_rows(pieces, run.index, run.rows, pieces[0].schema, pool)

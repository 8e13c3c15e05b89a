"""The shard's side of an epoch: walks its windows and places its runs, a little ahead."""

from __future__ import annotations

import queue
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import pyarrow as pa

from windrow.core.errors import StallError
from windrow.core.memory import BufferPool
from windrow.pipeline.batches import one_batch
from windrow.pipeline.executors.seam import EpochFacts, Feed, WindowData
from windrow.pipeline.scheduling.events import Place
from windrow.pipeline.slice_uses import SliceUses
from windrow.pipeline.stats import Span
from windrow.pipeline.transforms import MapBatches, apply_maps, check_schema
from windrow.pipeline.waiting import Waiting
from windrow.shuffle.piece import Piece
from windrow.shuffle.place import place_rows
from windrow.shuffle.runs import Run, WindowRuns

__all__ = ["Pace", "RunReader"]

_LOOK_SECONDS = 1.0
_SIGN_SECONDS = 1.0
# of about eight runs; a wait counts as so many times the work at most
_PACE_WEIGHT, _LONGEST_WAIT = 1 / 8, 2
# before the run's patience with a silent shard ends, so that what it drops is held by nobody
_LET_GO_SECONDS = 4.0


@dataclass
class _PlacedRun:
    rows: pa.RecordBatch
    window: int
    converted: list[Any] | None = None


class RunReader:
    """The runs of one shard in one epoch, in order, as record batches.

    A thread walks the windows and hands runs to the feed's workers; at most
    ``depth`` placed runs wait for the consumer.

    Parameters
    ----------
    feed, facts, shard
        The line to the run, the epoch, and the shard.
    after
        Transforms after the shuffle.
    convert
        Makes a run's batches where it is placed; None: they are made when they are asked for.
    depth
        Runs placed ahead.
    waiting
        The bounds of waiting.
    pace
        The consumer's, over all epochs.
    spans
        Takes what was done and when.

    Attributes
    ----------
    rows, size_bytes
        What the consumer has taken; the bytes as a first run's rows take.
    window
        The window of the latest run taken.
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
        waiting: Waiting,
        pace: Pace,
        spans: deque[Span],
    ) -> None:
        self._pace = pace
        self._walk = _Walk(feed, facts, shard, after, convert, depth, pace, spans)
        self._run: _PlacedRun | None = None
        self._latest: _PlacedRun | None = None
        self._waiting = waiting
        self._feed = feed
        self._shard = shard
        self._epoch = facts.epoch
        self._signed = time.monotonic()
        self.rows = 0
        self.size_bytes = 0
        self._row_bytes = 0.0
        self.window = facts.first_window
        self._schema: pa.Schema | None = None
        self._thread = threading.Thread(target=self._walk.run, name=f"windrow-shard-{shard}", daemon=True)
        self._thread.start()

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        while (run := self._next()) is not None:
            self._pace.end_run()
            latest, self._latest = self._latest, run
            self._walk.taken(latest)
            del latest
            self.rows += run.rows.num_rows
            self.size_bytes += self._size_of(run.rows)
            self.window = run.window
            self._check_schema(run)
            self._warn()
            self._run = run
            yield run.rows

    def converted(self, rows: pa.RecordBatch) -> list[Any] | None:
        """The batches of the latest run, once, where they were made of just these rows."""
        run, self._run = self._run, None
        return run.converted if run is not None and run.rows is rows else None

    def _size_of(self, rows: pa.RecordBatch) -> int:
        # asking Arrow costs half a millisecond, so one run speaks for all
        if not self._row_bytes and rows.num_rows:
            self._row_bytes = rows.nbytes / rows.num_rows
        return round(self._row_bytes * int(rows.num_rows))

    def _check_schema(self, run: _PlacedRun) -> None:
        if self._schema is None:
            self._schema = run.rows.schema
        elif self._schema != run.rows.schema:
            check_schema(self._schema, run.rows.schema, f"epoch {self._epoch}, window {run.window}")

    def _warn(self) -> None:
        while self._walk.look_out:
            warnings.warn(self._walk.look_out.popleft(), RuntimeWarning, stacklevel=2)

    @property
    def total(self) -> int | None:
        """Rows of the epoch, as far as its windows have told."""
        return self._walk.total

    @property
    def damaged(self) -> frozenset[int]:
        """The blocks that are left out as damaged, as far as its windows have told."""
        return self._walk.damaged

    def has_more(self, rows: int) -> bool:
        """Whether this shard has rows after its first ``rows``; waits until that is certain.

        True where reading was ended, or failed, before it was.
        """
        began, warned = time.monotonic(), False
        while not self._walk.tells(rows, timeout=_LOOK_SECONDS):
            self.give_sign()
            warned = self._check_stall(began, warned)
        return self._walk.handed_rows > rows or not self._walk.is_whole

    def window_before(self, row: int) -> tuple[int, int]:
        """The window that holds the row before a row of the epoch, and the row at which it begins."""
        return max(start for start in tuple(self._walk.starts.items()) if start[1] < row)

    def leave_epoch(self) -> None:
        """Tell that nothing of this epoch is needed any more."""
        self._feed.reached(Place(self._epoch + 1, 0))

    def close(self) -> None:
        """Stop, and let go of everything."""
        self._walk.stop()
        if self._thread.ident != threading.get_ident():
            self._thread.join(_LOOK_SECONDS)

    def _next(self) -> _PlacedRun | None:
        began, warned = time.monotonic(), False
        future: Future[_PlacedRun | None] | None = None
        while True:
            try:
                if future is None:
                    future = self._walk.queue.get(timeout=_LOOK_SECONDS)
                if not future.done():
                    self._walk.drop()
                return future.result(timeout=_LOOK_SECONDS)
            except CancelledError:
                self.raise_closed()
            except (queue.Empty, FutureTimeoutError):
                if future is not None and future.done():
                    return future.result()
                self.give_sign()
                warned = self._check_stall(began, warned)

    def give_sign(self) -> None:
        """Tell, about once a second, that the consumer takes batches or waits for them."""
        now = time.monotonic()
        if now - self._signed >= _SIGN_SECONDS:
            self._signed = now
            self._feed.sign()

    def raise_closed(self) -> NoReturn:
        """Say that reading was ended by someone else."""
        raise StallError(f"shard {self._shard} was closed while epoch {self._epoch} was being read")

    def _check_stall(self, began: float, warned: bool) -> bool:
        waited = time.monotonic() - began
        if waited < self._waiting.warn_seconds:
            return False
        reason, still_seconds = self._feed.diagnose()
        text = f"shard {self._shard} has waited {waited:,.0f} s (epoch {self._epoch}).\n  {reason}"
        if min(waited, still_seconds) >= self._waiting.fail_seconds:
            raise StallError(text)
        if not warned:
            warnings.warn(text, RuntimeWarning, stacklevel=2)
        return True


class Pace:
    """Whether the consumer mostly works, rather than waits.

    To serve one first that takes all that it can get only puts off the next window.
    """

    def __init__(self) -> None:
        self._worked = self._waited = 0.0
        self._run_worked = self._run_waited = 0.0

    def add(self, *, worked: float, waited: float) -> None:
        """How long the consumer worked on a batch, and then waited for the next."""
        self._run_worked += worked
        self._run_waited += waited

    def end_run(self) -> None:
        """All batches of a run have been taken."""
        worked, waited = self._run_worked, self._run_waited
        self._run_worked = self._run_waited = 0.0
        self._worked += (worked - self._worked) * _PACE_WEIGHT
        # one long wait, as for the first window, tells nothing of the consumer
        waited = min(waited, _LONGEST_WAIT * self._worked)
        self._waited += (waited - self._waited) * _PACE_WEIGHT

    @property
    def works(self) -> bool:
        """Whether it worked for most of the time, of late."""
        return self._worked > 2 * self._waited


class _Walk:
    """What the reader's thread does; it knows the queue but not the reader."""

    def __init__(
        self,
        feed: Feed,
        facts: EpochFacts,
        shard: int,
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
        # rows of the runs handed out, and whether they are all that the shard gets
        self.handed_rows = 0
        self.is_whole = False
        self._ended = False
        self._handed = threading.Condition()
        self._stash: list[tuple[int, Future[_PlacedRun | None]]] = []
        self.queue: queue.SimpleQueue[Future[_PlacedRun | None]] = queue.SimpleQueue()
        self._before: deque[_PlacedRun | None] = deque()

    def taken(self, before: _PlacedRun | None) -> None:
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
        end: Future[_PlacedRun | None] = Future()
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

    def _hand(self, future: Future[_PlacedRun | None], rows: int) -> None:
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

    def _submit(self, window: int, data: WindowData, run: Run, uses: SliceUses) -> Future[_PlacedRun | None]:
        assert data.layout is not None, "a run belongs to a layout"
        # in a list that is emptied, so that nobody holds pieces when their slice is told to be free
        place = partial(self._place, window, [data.slices[run.slice]], run, uses)
        return self._feed.submit(place, urgent=self._pace.works)

    def _place(self, window: int, pieces: list[list[Piece]], run: Run, uses: SliceUses) -> _PlacedRun:
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
        return _PlacedRun(rows, window, converted)


def _place(pieces: list[Piece], run: Run, pool: BufferPool) -> pa.RecordBatch:
    return place_rows(pieces, run.index, run.rows, pieces[0].schema, pool)

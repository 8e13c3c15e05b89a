"""The thread behind a reader: walks the windows of epochs and has their runs placed a little ahead."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pyarrow as pa

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.coordinator.stats import Span
from windrow.pipeline.delivery.batch_spans import one_batch
from windrow.pipeline.executors.base import CoordinatorClient, EpochFacts, WindowData
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.partial_runs import Portions
from windrow.pipeline.shard.run_queue import Converter, EpochRuns, PlacedRun
from windrow.pipeline.shard.slice_uses import SliceUses
from windrow.pipeline.tasks.transforms import MapBatches, apply_maps
from windrow.shuffle.kernels.place_rows import MapOutputs, place_portion, place_rows
from windrow.shuffle.order.runs import Run, WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment

__all__ = ["PrefetchLoop"]

# before the run's patience with a silent shard ends, so that what it drops is held by nobody
_RELEASE_SECONDS = 4.0
# about what a sleeping thread takes to be on a core again
_YIELD_GIL_SECONDS = 50e-6


class PrefetchLoop:
    """What a reader's thread does: hands runs to the feed's workers; it knows the queues but no reader.

    From the last run of an epoch it goes on to the next one, which the consumer will most likely
    ask for: no trainer waits at the border. It is never further ahead than that, nor by more
    runs than within an epoch.

    Parameters
    ----------
    feed, consumer
        The line to the run, and who takes the runs.
    after
        Transforms after the shuffle.
    depth
        Placed runs that wait for the consumer, at most.
    portions
        How many rows of a run are placed at once.
    leads_on
        Whether to go on from an epoch, by its number, to the next one.

    Attributes
    ----------
    depth
        As above.
    last
        The last run that the consumer took, where it has come to the end of an epoch.
    """

    def __init__(
        self,
        shard_client: CoordinatorClient,
        consumer: Consumer,
        *,
        after: tuple[MapBatches, ...],
        depth: int,
        portions: Portions,
        leads_on: Callable[[int], bool],
    ) -> None:
        self.depth = depth
        self._portions = portions
        self.last_run: PlacedRun | None = None
        self._client = shard_client
        self._shard = consumer.shard
        self._after = after
        self._spans = consumer.spans
        self._leads_on = leads_on
        self._slots = threading.Semaphore(depth)
        self._pace = consumer.pace
        self._stopped = threading.Event()
        self._epoch_changed = threading.Condition()
        self._latest: EpochRuns | None = None
        self._next: EpochRuns | None = None
        self._consumed: deque[PlacedRun | None] = deque()
        self._thread: threading.Thread | None = None

    # --- the consumer's side

    def start(self, facts: EpochFacts, converter: Converter | None) -> EpochRuns:
        """Begin with an epoch that the consumer has opened."""
        runs = EpochRuns(facts, converter)
        self.begin(runs, converter)
        name = f"windrow-shard-{self._shard}"
        self._thread = threading.Thread(target=self._run, args=([runs],), name=name, daemon=True)
        self._thread.start()
        return runs

    def find_epoch(self, cursor: Cursor, assignment: ShardAssignment, depth: int) -> EpochRuns | None:
        """The runs of the epoch that begins at a cursor, if it is what the walk has gone on to, or will."""
        runs = self._next
        if runs is None or runs.failed or self._stopped.is_set():
            return None
        fits = (cursor, assignment, depth) == (Cursor(runs.facts.epoch), runs.facts.assignment, self.depth)
        return runs if fits else None

    def begin(self, runs: EpochRuns, converter: Converter | None) -> None:
        """The consumer has opened an epoch that was offered."""
        facts = runs.facts
        with self._epoch_changed:
            self._latest = runs
            self._next = EpochRuns(facts.next_epoch, converter) if self._leads_on(facts.epoch) else None
            runs.begin(converter, self._client.acknowledge)
            self._epoch_changed.notify_all()

    @property
    def stopped(self) -> bool:
        """Whether it has been told to end."""
        return self._stopped.is_set()

    @property
    def has_next_epoch(self) -> bool:
        """Whether there is an epoch after the one that the consumer has begun."""
        return self._next is not None

    def note_taken(self, run: PlacedRun, before: PlacedRun | None) -> None:
        """The consumer has taken a run, and is done with the one before."""
        self._consumed.append(before)
        if run.takes_slot:
            self._slots.release()

    def release_consumed(self) -> None:
        """Let go of runs that the consumer is done with.

        Who lets go last of a run that was converted where it was placed frees its tensors, and
        torch gives up the interpreter's lock for each: a trainer would have to get it back from busy
        workers again and again, a millisecond for 21 columns.
        """
        self._consumed.clear()

    def stop(self) -> None:
        """End the walk at the next step."""
        self._stopped.set()
        self._slots.release()
        self.last_run = None
        with self._epoch_changed:
            ahead, self._latest, self._next = self._next, None, None
            self._epoch_changed.notify_all()
        if ahead is not None:
            ahead.discard()

    def join(self, timeout: float) -> None:
        """Wait a bounded time for the thread's end."""
        if self._thread is not None and self._thread.ident != threading.get_ident():
            self._thread.join(timeout)

    # --- the thread's side

    def _run(self, first: list[EpochRuns]) -> None:
        # out of a list, since a thread holds its arguments to its end
        runs: EpochRuns | None = first.pop()
        try:
            self._client.begin_prefetch()
            while runs is not None and self._prefetch_loop(runs):
                runs = self._wait_for_next(runs)
        except BaseException as error:
            self._fail(runs, error)

    def _fail(self, runs: EpochRuns | None, error: BaseException) -> None:
        """Whoever waits for this thread, or will, is told why it has ended."""
        with self._epoch_changed:
            waiting = [runs, self._latest, self._next]
        for other in waiting:
            if other is not None and not other.ended:
                end: Future[PlacedRun | None] = Future()
                end.set_exception(error)
                other.end(end)

    def _wait_for_next(self, runs: EpochRuns) -> EpochRuns | None:
        """The epoch after one that has been walked, if any; waits until the consumer has begun the latter."""
        with self._epoch_changed:
            # ends at the latest when the shard is closed or forgotten: nobody waits for this thread
            self._epoch_changed.wait_for(lambda: runs is not self._next)
            # which it may have begun already
            return self._next if runs is self._latest else self._latest

    def _prefetch_loop(self, runs: EpochRuns) -> bool:
        """Walk all windows of an epoch; what goes wrong reaches the consumer in the place of a run.

        Returns whether all runs have been handed out.
        """
        end: Future[PlacedRun | None] = Future()
        padding_runs: list[tuple[int, Future[PlacedRun | None]]] = []
        try:
            for window in range(runs.facts.first_window, runs.facts.windows):
                if not self._prefetch_window(runs, window, padding_runs):
                    end.cancel()
                    return False
            for _, run in sorted(padding_runs, key=lambda entry: entry[0]):
                runs.queue.put(run)
            end.set_result(None)
            return True
        except BaseException as error:
            end.set_exception(error)
            return False
        finally:
            runs.end(end)

    def _prefetch_window(
        self, runs: EpochRuns, window: int, padding_runs: list[tuple[int, Future[PlacedRun | None]]]
    ) -> bool:
        """Hand out the runs of a window; returns False when reading has been stopped."""
        submitted: int | None = 0
        while submitted is not None:
            data = self._client.window(runs.facts.epoch, window, self._stopped)
            if data is None:
                return False
            runs.add_window(data)
            if data.layout is None:
                self._make_report(runs, window)(0, True)
                return True
            _check_assignment(runs.facts, data.layout.assignment)
            submitted = self._submit_runs(runs, window, data, data.layout, submitted, padding_runs)
            if self._stopped.is_set():
                return False
        self._pace.begin()
        return True

    def _submit_runs(
        self,
        runs: EpochRuns,
        window: int,
        data: WindowData,
        layout: WindowRuns,
        first: int,
        padding_runs: list[tuple[int, Future[PlacedRun | None]]],
    ) -> int | None:
        """Hand out the rows behind the first so many; returns how many have been, if the window must come again."""
        # the rows of earlier steps are there for shards that are behind this one
        remaining = deque(layout.runs_from(runs.facts.assignment.start_row, self._shard))
        _skip_rows(remaining, first)
        padding = layout.padding_runs(self._shard)
        uses = SliceUses(data, self._make_report(runs, window))
        uses.expect([run.slice for run in (*remaining, *padding)])
        while remaining:
            if not self._slots.acquire(timeout=_RELEASE_SECONDS):
                self._release(data)
                return first
            if self._stopped.is_set():
                return None
            self.release_consumed()
            run = remaining[0]
            stop = self._portions.stop(
                run,
                run_rows=layout.run_rows,
                batch_rows=runs.facts.assignment.batch_rows,
                row_bytes=data.row_bytes,
            )
            if stop < run.rows:
                uses.expect([run.slice])
            runs.put(self._submit(runs, window, data, run, uses, stop=stop), stop - run.skip)
            first += stop - run.skip
            _skip_rows(remaining, stop - run.skip)
        submit = partial(self._submit, runs, window, data, uses=uses, takes_slot=False)
        padding_runs.extend((run.place, submit(run)) for run in padding)
        uses.finish()
        return None

    def _release(self, data: WindowData) -> None:
        """Hold no window for a consumer that takes nothing; returns when it has taken something.

        The run may have dropped the window for such a consumer, and counts on its memory.
        """
        data.slices[:] = [MapOutputs()] * len(data.slices)
        self._client.release(self._stopped)
        self._slots.acquire()
        self._slots.release()

    def _make_report(self, runs: EpochRuns, window: int) -> Callable[[int, bool], None]:
        def report(slices: int, finished: bool) -> None:
            epoch = runs.facts.epoch
            runs.acknowledge(Place(epoch, window + 1) if finished else Place(epoch, window, slices))

        return report

    def _submit(
        self,
        runs: EpochRuns,
        window: int,
        data: WindowData,
        run: Run,
        uses: SliceUses,
        *,
        stop: int | None = None,
        takes_slot: bool = True,
    ) -> Future[PlacedRun | None]:
        # in a list that is emptied, so that nobody holds pieces when their slice is told to be free
        map_outputs = [data.slices[run.slice]]
        rows = slice(run.skip, run.rows if stop is None else stop)
        place = partial(self._place, runs, window, map_outputs, run, rows, uses, takes_slot=takes_slot)
        return self._client.submit(place, self._pace)

    def _place(
        self,
        runs: EpochRuns,
        window: int,
        map_outputs: list[MapOutputs],
        run: Run,
        part: slice,
        uses: SliceUses,
        *,
        takes_slot: bool,
    ) -> PlacedRun:
        began = time.time()
        epoch = runs.facts.epoch
        rows = _place(map_outputs.pop(), run, part, self._client.pool)
        uses.used(run.slice)
        self._yield_gil()
        if self._after:
            place = run.place + part.start
            origin = f"epoch {epoch}, window {window}, rows from place {place} of shard {self._shard}"
            table = apply_maps(pa.Table.from_batches([rows]), self._after, origin)
            rows = one_batch(table, origin) if table.num_rows else rows
            row_bytes = self._portions.measure(rows)
            if row_bytes is not None:
                self._client.note_delivered(row_bytes)
        converter, converted = runs.converter, None
        if converter is not None:
            # whoever asks for these batches is told what is wrong with them; it may ask for others
            with suppress(Exception):
                converted = converter.function(rows)
            self._yield_gil()
        self._spans.append(Span("reduce", epoch, window, began, time.time(), f"shard {self._shard}"))
        return PlacedRun(rows, window, takes_slot, converted, converter)

    def _yield_gil(self) -> None:
        """Let a consumer that computes have the interpreter's lock.

        Who waits for it is not awake again within the microseconds for which many calls give it up,
        and so waits for the whole time between two kernels, as often as its own operations end then.
        """
        if self._pace.computes:
            time.sleep(_YIELD_GIL_SECONDS)


def _skip_rows(runs: deque[Run], rows: int) -> None:
    """Leave of runs what lies behind their first so many wanted rows."""
    while runs and rows >= runs[0].rows - runs[0].skip:
        run = runs.popleft()
        rows -= run.rows - run.skip
    if runs and rows:
        runs[0] = replace(runs[0], skip=runs[0].skip + rows)


def _place(map_outputs: MapOutputs, run: Run, rows: slice, pool: BufferPool) -> pa.RecordBatch:
    schema = map_outputs[0].schema
    if rows == slice(0, run.rows):
        return place_rows(map_outputs, run.index, run.rows, schema, pool)
    return place_portion(map_outputs, run.index, run.rows, rows, schema, pool)


def _check_assignment(facts: EpochFacts, assignment: ShardAssignment) -> None:
    """Refuse rows that were placed as for other batches: another shard has begun the epoch otherwise."""
    if assignment != facts.assignment.whole:
        now, expected = assignment, facts.assignment
        raise PlanError(
            f"epoch {facts.epoch} is being read with batch_size={now.batch_rows}, drop_last={now.drop_last}, and was "
            f"expected with batch_size={expected.batch_rows}, drop_last={expected.drop_last}: all shards read an epoch "
            "with the same"
        )

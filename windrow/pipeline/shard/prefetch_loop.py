"""The prefetch loop of a shard: a thread that fetches windows in order and submits their runs for placing."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.phase_clock import PhaseClock, measuring
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.executors.base import CoordinatorClient, WindowData
from windrow.pipeline.executors.preparation import Preparation
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.epoch_runs import Converter, EpochRuns, PlacedRun
from windrow.pipeline.shard.partial_runs import Portions, SliceUses
from windrow.pipeline.shard.placing import place_run, prepare_rows
from windrow.pipeline.shard.step_parts import WindowPieces
from windrow.pipeline.shard.waits import QUEUE_SECONDS, Spent, phases_of
from windrow.pipeline.statistics.phases import COLLATE, PREPARE, SHUFFLE
from windrow.shuffle.kernels.place_rows import MapOutputs
from windrow.shuffle.order.runs import Run, WindowRuns
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_runs import Pieces, StepRuns

# shorter than the coordinator's timeout for silent shards: windows that it drops are then released here too
_RELEASE_SECONDS = 4.0

# repeated rows that end an epoch, by place
_PaddingRuns = list[tuple[int, Future[PlacedRun | None]]]


@dataclass(frozen=True)
class _FetchedWindow:
    """A window whose runs are submitted: its epoch's runs, its number, its data, and who still needs them."""

    runs: EpochRuns
    number: int
    data: WindowData
    uses: SliceUses


class PrefetchLoop:
    """Submits runs to the executor's workers, in a thread that refers to the queues but not to readers.

    After the last run of an epoch it continues with the next epoch, which the consumer will most likely
    open, so that trainers do not wait between epochs. It prefetches into at most one further epoch, and
    never more than ``depth`` runs ahead, or those that keep the workers of transforms after the shuffle busy, which
    ``preparation`` applies. ``leads_on`` tells whether to continue from an epoch, given by its number, into the next
    one before the consumer opens it. ``seed`` is for random numbers that transforms draw.
    """

    def __init__(
        self,
        shard_client: CoordinatorClient,
        consumer: Consumer,
        *,
        preparation: Preparation,
        seed: int,
        depth: int,
        portions: Portions,
        leads_on: Callable[[int], bool],
    ) -> None:
        self.depth = depth
        # at an epoch's end, the last run that the consumer took, which it may still be using
        self.last_run: PlacedRun | None = None
        self._portions = portions
        self._client = shard_client
        self._shard, self._lane = consumer.shard, consumer.spans.lane
        self._preparation, self._after = preparation, preparation.after
        self._seed = seed
        self._spans = consumer.spans
        self._profiled = consumer.profiled
        self._leads_on = leads_on
        self._slots, self._slot_count = threading.Semaphore(depth), depth
        self._pace = consumer.pace
        self.stopped = threading.Event()
        self._epoch_changed = threading.Condition()
        self._latest: EpochRuns | None = None
        self._next: EpochRuns | None = None
        self._consumed: deque[PlacedRun | None] = deque()
        self._thread: threading.Thread | None = None

    # --- the consumer's side

    def start(self, facts: EpochFacts, converter: Converter | None) -> EpochRuns:
        """Start the thread with an epoch that the consumer has opened."""
        runs = EpochRuns(facts, converter)
        self.begin(runs, converter)
        name = f"windrow-shard-{self._shard}"
        self._thread = threading.Thread(target=self._run, args=([runs],), name=name, daemon=True)
        self._thread.start()
        return runs

    def find_epoch(self, cursor: Cursor, assignment: ShardAssignment, depth: int) -> EpochRuns | None:
        """Return the runs of the epoch at a cursor if it is the one prefetched next, else None.

        The epoch must have been prefetched with the same assignment and depth.
        """
        runs = self._next
        if runs is None or runs.failed or self.stopped.is_set():
            return None
        fits = (cursor, assignment, depth) == (Cursor(runs.facts.epoch), runs.facts.assignment, self.depth)
        return runs if fits else None

    def begin(self, runs: EpochRuns, converter: Converter | None) -> None:
        """Note that the consumer has opened the epoch of `find_epoch`, and prepare the one after it."""
        facts = runs.facts
        with self._epoch_changed:
            self._latest = runs
            self._next = EpochRuns(facts.next_epoch, converter) if self._leads_on(facts.epoch) else None
            runs.begin(converter, self._client.acknowledge)
            self._epoch_changed.notify_all()

    @property
    def has_next_epoch(self) -> bool:
        """Whether the loop continues with an epoch after the one that the consumer has opened."""
        return self._next is not None

    def note_taken(self, run: PlacedRun, before: PlacedRun | None) -> None:
        """Note that the consumer has taken a run, and is done with the one before."""
        self._consumed.append(before)
        if run.takes_slot:
            self._slots.release()

    def release_consumed(self) -> None:
        """Drop references to runs that the consumer is done with.

        Whichever thread drops the last reference to a converted run frees its tensors, and torch releases
        the GIL for each tensor. A trainer thread would have to reacquire the GIL from busy workers each
        time, which takes about a millisecond for 21 columns.
        """
        self._consumed.clear()

    def stop(self) -> None:
        """Stop the loop at its next step."""
        self.stopped.set()
        self._slots.release()
        self.last_run = None
        with self._epoch_changed:
            ahead, self._latest, self._next = self._next, None, None
            self._epoch_changed.notify_all()
        # By now the thread can end, so an error below does not keep it alive. The callbacks run last to first, each
        # even if another raises.
        with ExitStack() as calls:
            if ahead is not None:
                calls.callback(ahead.discard)
            calls.callback(self._preparation.close)

    def join(self, timeout: float) -> None:
        """Wait at most ``timeout`` seconds for the thread to end."""
        if self._thread is not None and self._thread.ident != threading.get_ident():
            self._thread.join(timeout)

    # --- the thread's side

    def _run(self, first: list[EpochRuns]) -> None:
        # popped from a list, since a thread refers to its arguments until it ends
        runs: EpochRuns | None = first.pop()
        try:
            self._client.begin_prefetch()
            while runs is not None and self._prefetch_epoch(runs):
                runs = self._wait_for_next(runs)
        except BaseException as error:
            self._fail(runs, error)

    def _fail(self, runs: EpochRuns | None, error: BaseException) -> None:
        """Raise the error that ended this thread in all current and future waiters."""
        with self._epoch_changed:
            waiting = [runs, self._latest, self._next]
        for other in waiting:
            if other is not None and not other.ended:
                end: Future[PlacedRun | None] = Future()
                end.set_exception(error)
                other.end(end)

    def _wait_for_next(self, runs: EpochRuns) -> EpochRuns | None:
        """Return the epoch after ``runs``, if any, once the consumer has opened ``runs`` itself."""
        with self._epoch_changed:
            # ends at the latest when the shard is closed or garbage-collected; no thread waits for this one
            self._epoch_changed.wait_for(lambda: runs is not self._next)
            # the consumer can already have opened the next epoch too
            return self._next if runs is self._latest else self._latest

    def _prefetch_epoch(self, runs: EpochRuns) -> bool:
        """Prefetch all windows of an epoch; an error reaches the consumer in place of a run.

        Returns whether all runs have been submitted.
        """
        end: Future[PlacedRun | None] = Future()
        padding_runs: _PaddingRuns = []
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

    def _prefetch_window(self, runs: EpochRuns, window: int, padding_runs: _PaddingRuns) -> bool:
        """Submit the runs of a window; returns False if reading was stopped."""
        submitted: int | None = 0
        while submitted is not None:
            data = self._client.window(runs.facts.epoch, window, self.stopped)
            if data is None:
                return False
            for one in data.transfers:
                if one.stop - one.start > QUEUE_SECONDS:
                    epoch = runs.facts.epoch
                    self._spans.add("transfer", epoch, window, one.start, one.stop, self._lane, one.start)
            runs.add_window(data)
            if data.layout is None:
                _acknowledge(runs, window, 0, True)
                return True
            _check_assignment(runs.facts, data.layout.assignment)
            uses = SliceUses(data, partial(_acknowledge, runs, window))
            fetched = _FetchedWindow(runs, window, data, uses)
            submitted = self._submit_runs(fetched, data.layout, submitted, padding_runs)
            if self.stopped.is_set():
                return False
        self._pace.begin()
        return True

    def _submit_runs(
        self, window: _FetchedWindow, layout: WindowRuns | StepRuns, first: int, padding_runs: _PaddingRuns
    ) -> int | None:
        """Submit the rows of a window behind the ``first`` ones.

        Returns how many rows were submitted if the window was released and must be fetched again, else None.
        """
        runs, uses = window.runs, window.uses
        # the window also holds rows of earlier steps, for shards that are behind this one
        remaining = deque(layout.runs_from(runs.facts.assignment.start_row, self._shard))
        _skip_rows(remaining, first)
        pieces = WindowPieces(layout, runs.facts.assignment.start_row, self._shard, first)
        padding = layout.padding_runs(self._shard)
        uses.expect([run.slice for run in (*remaining, *padding)])
        while remaining:
            self._add_slots(runs.facts)
            if not self._slots.acquire(timeout=_RELEASE_SECONDS):
                self._release(window.data)
                return first
            if self.stopped.is_set():
                return None
            self.release_consumed()
            run = remaining[0]
            stop = self._portions.stop(
                run,
                run_rows=layout.run_rows,
                batch_rows=runs.facts.assignment.batch_rows,
                row_bytes=window.data.row_bytes,
            )
            if stop < run.rows:
                uses.expect([run.slice])
            part = slice(run.skip, stop)
            submitted = self._submit(window, run, part, pieces.take(stop - run.skip), takes_slot=True)
            runs.put(submitted, stop - run.skip)
            first += stop - run.skip
            _skip_rows(remaining, stop - run.skip)
        for run in padding:
            part = slice(run.skip, run.rows)
            repeated = pieces.repeated(run)
            padding_runs.append((run.place, self._submit(window, run, part, repeated, takes_slot=False)))
        uses.finish()
        return None

    def _add_slots(self, facts: EpochFacts) -> None:
        """Submit more runs at a time if transforms have workers elsewhere, also where these come in the middle."""
        missing = max(self._preparation.calls, facts.calls_ahead) - self._slot_count
        if missing > 0:
            self._slots.release(missing)
            self._slot_count += missing

    def _release(self, data: WindowData) -> None:
        """Release the window of a consumer that takes nothing; return once it has taken a run.

        The coordinator can have dropped the window because of that pause, and relies on its memory.
        """
        data.slices[:] = [MapOutputs()] * len(data.slices)
        self._client.release(self.stopped)
        self._slots.acquire()
        self._slots.release()

    def _submit(
        self,
        window: _FetchedWindow,
        run: Run,
        part: slice,
        pieces: Pieces | None,
        *,
        takes_slot: bool,
    ) -> Future[PlacedRun | None]:
        # in a list that is emptied, so that no reference to map outputs is left when their slice is reported free
        map_outputs = [window.data.slices[run.slice]]
        return self._preparation.submit(
            lambda place: self._client.submit(place, self._pace),
            partial(self._place, window, map_outputs, run, part),
            partial(self._prepare, window, run.place + part.start, pieces, time.time(), takes_slot),
        )

    def _place(self, window: _FetchedWindow, map_outputs: list[Any], run: Run, part: slice) -> list[Any]:
        """Place rows of a run; returns when that began and ended, and the rows."""
        began = time.time()
        rows = place_run(map_outputs.pop(), run, part, self._client.pool)
        window.uses.used(run.slice)
        return [began, time.time(), rows]

    def _prepare(
        self,
        window: _FetchedWindow,
        place: int,
        pieces: Pieces | None,
        submitted: float,
        takes_slot: bool,
        found: list[Any],
    ) -> PlacedRun:
        """Apply the transforms after the shuffle to placed rows, and convert them to batches."""
        # taken out of the list, so that they are freed once they have been transformed
        rows: pa.RecordBatch = found.pop()
        began, preparing = found
        # only transforms need a clock of their own
        clock = PhaseClock() if self._profiled and self._after else None
        with nullcontext() if clock is None else measuring(clock, PREPARE):
            rows = self._transform(window, place, rows)
        converting = time.time()
        placed = self._convert(window, rows, takes_slot)
        placed.pieces = pieces
        if self._profiled:
            stopped = time.time()
            spent: Spent = ((SHUFFLE, preparing - began),)
            if clock is not None:
                spent += tuple(phases_of(clock).items())
            if placed.converter is not None:
                spent += ((COLLATE, stopped - converting),)
            epoch = window.runs.facts.epoch
            self._spans.add("reduce", epoch, window.number, began, stopped, self._lane, submitted, spent)
            placed.produced, placed.placing = window.data.history, (submitted, began, stopped, spent)
        return placed

    def _transform(self, window: _FetchedWindow, place: int, rows: pa.RecordBatch) -> pa.RecordBatch:
        if self._after:
            key = window.runs.facts.epoch, window.number
            rows = prepare_rows(self._preparation, rows, window.data, key, self._shard, place, self._seed)
            row_bytes = self._portions.measure(rows)
            if row_bytes is not None:
                self._client.note_delivered(row_bytes)
        return rows

    def _convert(self, window: _FetchedWindow, rows: pa.RecordBatch, takes_slot: bool) -> PlacedRun:
        converter, converted = window.runs.converter, None
        if converter is not None:
            # the consumer converts again and raises the error, unless it wants another batch format
            with suppress(Exception):
                converted = converter.function(rows)
        return PlacedRun(rows, window.number, takes_slot, converted, converter)


def _acknowledge(runs: EpochRuns, window: int, slices: int, finished: bool) -> None:
    epoch = runs.facts.epoch
    runs.acknowledge(Place(epoch, window + 1) if finished else Place(epoch, window, slices))


def _skip_rows(runs: deque[Run], rows: int) -> None:
    """Drop the first ``rows`` needed rows of runs."""
    while runs and rows >= runs[0].rows - runs[0].skip:
        run = runs.popleft()
        rows -= run.rows - run.skip
    if runs and rows:
        runs[0] = replace(runs[0], skip=runs[0].skip + rows)


def _check_assignment(facts: EpochFacts, assignment: ShardAssignment) -> None:
    """Raise PlanError if another shard opened the epoch with other batches, for which rows are placed."""
    if not assignment.agrees_with(facts.assignment):
        raise PlanError(
            f"epoch {facts.epoch} is being read with {assignment.batching} by another shard, and with "
            f"{facts.assignment.batching} by this one: read an epoch with the same values on all shards"
        )

"""The consumer's side of an epoch: the queue of its runs, and the reader that takes them in order.

The reader regroups runs into whole batches, has them converted, and warns or fails when no run arrives.
"""

from __future__ import annotations

import queue
import sys
import time
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Any, NoReturn

import pyarrow as pa

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.errors import PlanError, StallError, StateError
from windrow.core.user_warnings import warn_user
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.executors.base import CoordinatorClient, Waiting
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.epoch_runs import EpochRuns, PlacedRun
from windrow.pipeline.shard.prefetch_loop import PrefetchLoop
from windrow.pipeline.shard.step_parts import StepParts, align_steps
from windrow.pipeline.tasks.transforms import check_schema

ConvertSpan = Callable[[pa.RecordBatch, Sequence[int] | None], Iterable[Any]]

_SHORT_WAIT_SECONDS = 0.02
_LOOK_SECONDS, _HEARTBEAT_SECONDS = 1.0, 1.0
# limits how long a checkpoint waits, well below the stall timeouts
_MAX_COUNT_WAIT_SECONDS = 5.0


class RunReader:
    """The runs of one shard in one epoch that it has opened, in order.

    ``convert`` splits a span of whole batches, of these rows if they are given, and converts each. ``opening`` is the
    coordinator's pending reply, if the epoch was opened without waiting for it; None once it has come. ``profiled``:
    measure the phases of each conversion, which may be slow.
    """

    def __init__(
        self,
        shard_client: CoordinatorClient,
        prefetch_loop: PrefetchLoop,
        runs: EpochRuns,
        convert: ConvertSpan,
        *,
        consumer: Consumer,
        waiting: Waiting,
        opening: Future[EpochFacts] | None = None,
        profiled: bool = False,
    ) -> None:
        self.client, self._describe_queue = shard_client, weakref.WeakMethod(shard_client.describe_queue)
        self.consumer = consumer
        self.facts = runs.facts
        self._prefetch_loop = prefetch_loop
        self.runs = runs
        self._convert = convert
        self._profiled = consumer.profiled and profiled
        # whether batches are made between taking a run, the latest at this time, and returning them
        self.converts_at_once, self.taken_at = consumer.profiled and not profiled, 0.0
        self.opening = opening
        self._run: PlacedRun | None = None
        # the consumer may still be using the previous epoch's last run until it takes the first one of this epoch
        self._latest, self._prefetch_loop.last_run = self._prefetch_loop.last_run, None
        self._waiting = waiting
        self._heartbeat_at = time.monotonic()
        # what the consumer has taken; bytes are estimated from the first run's row size
        self.rows = self.size_bytes = 0
        self._row_bytes = 0.0
        self.window = runs.facts.first_window
        # where costs divide steps: what is known of each that has been taken
        self.parts = StepParts(runs.facts.assignment.sequence_rows)
        self._schema: pa.Schema | None = None

    def batches(self, batch_rows: int) -> Generator[Any, None, None]:
        """Yield the converted batches: those made where runs were placed if they fit, else made here."""
        balance = self.facts.assignment.balance
        if balance is not None and not balance.divides_evenly:
            for steps in align_steps(self._take_runs(), self.parts):
                made = iter(self._make(steps.rows, steps.sizes))
                if balance.microbatches == 1:
                    yield from made
                else:
                    yield from (list(islice(made, count)) for count in steps.counts)
            return
        for span in align_runs(self._take_runs(), batch_rows):
            ready = self._take_converted(span)
            yield from self._make(span, None) if ready is None else ready

    def _make(self, span: pa.RecordBatch, rows: Sequence[int] | None) -> Iterable[Any]:
        made = self._convert(span, rows)
        return self.consumer.log.timed(made) if self._profiled else made

    def _take_runs(self) -> Iterator[pa.RecordBatch]:
        while True:
            asked = time.time()
            run, self.taken_at = self._next(), time.time()
            if run is None:
                return
            self.consumer.log.add_wait(asked, self.taken_at, run.produced, run.placing, self._describe_queue)
            self.consumer.pace.end_run()
            latest, self._latest = self._latest, run
            self._prefetch_loop.note_taken(run, latest)
            del latest
            self.rows += run.rows.num_rows
            self.size_bytes += self._size_of(run.rows)
            self.window = run.window
            self.consumer.spans.converting = (self.facts.epoch, run.window)
            self._check_schema(run)
            self._warn()
            self._run = run
            self.parts.add(run.pieces)
            yield run.rows

    def _take_converted(self, rows: pa.RecordBatch) -> Iterable[Any] | None:
        """Return the converted batches of the latest run, once, if they were made of exactly these rows."""
        run, self._run = self._run, None
        if run is None or run.rows is not rows or run.converter != self.runs.converter:
            return None
        return run.converted

    def _size_of(self, rows: pa.RecordBatch) -> int:
        # arrow_bytes takes half a millisecond, so the first run stands for all
        if not self._row_bytes and rows.num_rows:
            self._row_bytes = arrow_bytes(rows) / rows.num_rows
        return round(self._row_bytes * int(rows.num_rows))

    def _check_schema(self, run: PlacedRun) -> None:
        if self._schema is None:
            self._schema = run.rows.schema
        elif self._schema != run.rows.schema:
            check_schema(self._schema, run.rows.schema, f"epoch {self.facts.epoch}, window {run.window}")

    def wait_for_opening(self) -> None:
        """Wait for the coordinator's reply to the opening of this epoch; raise its error, if any."""
        opening = self.opening
        while opening is not None:
            try:
                # no limit here: the client that sent the request has a timeout of its own
                facts = opening.result(timeout=_LOOK_SECONDS)
            except FutureTimeoutError:
                if opening.done():
                    raise
                if self._prefetch_loop.stopped.is_set():
                    self.raise_closed()
                self.send_heartbeat()
            else:
                self.runs.user_warnings.extend(facts.user_warnings)
                self.opening = opening = None
                self._warn()

    def _warn(self) -> None:
        while self.runs.user_warnings:
            warn_user(self.runs.user_warnings.popleft())

    def has_more(self, rows: int) -> bool:
        """Whether this shard may have rows after its first ``rows``.

        If rows are counted while reading, this waits up to five seconds for certainty. Returns True if that
        does not suffice, or reading was stopped or failed. That is safe: a state at the end of an epoch means
        the same as one at the start of the next.
        """
        until = time.monotonic() + _MAX_COUNT_WAIT_SECONDS
        while not self.runs.wait_for_rows(rows, timeout=_LOOK_SECONDS):
            self.send_heartbeat()
            if self._prefetch_loop.stopped.is_set() or time.monotonic() >= until:
                return True
        return self.runs.handed_rows > rows or not self.runs.is_complete

    def is_prefetched(self) -> bool:
        """Whether the prefetch loop is done with the epoch; waits briefly for it."""
        return self.runs.wait_for_rows(sys.maxsize, timeout=_SHORT_WAIT_SECONDS) and self.runs.is_complete

    def window_before(self, row: int) -> tuple[int, int]:
        """Return the window that holds the row before ``row`` of the epoch, and the row at which it starts."""
        return max(start for start in tuple(self.runs.starts.items()) if start[1] < row)

    def leave_epoch(self, *, whole: bool) -> None:
        """Acknowledge the whole epoch, and report what the consumer has received; ``whole``: to its end.

        Raises a StateError if shards of a mixture reach their end with different shares.
        """
        self.client.acknowledge(Place(self.facts.epoch + 1, 0))
        # a loop that was left early has nobody to tell
        with nullcontext() if whole else suppress(StateError):
            self.client.heartbeat(self.consumer.report(), waits=whole)

    def close(self, *, continues: bool) -> None:
        """Release everything; stop the prefetch loop, unless it ``continues`` with a next epoch."""
        latest, self._latest = self._latest, None
        self._run = None
        if continues and self._prefetch_loop.has_next_epoch:
            self._prefetch_loop.last_run = latest
            return
        self._prefetch_loop.stop()
        self._prefetch_loop.release_consumed()
        self._prefetch_loop.join(_LOOK_SECONDS)
        self.runs.discard()

    def _next(self) -> PlacedRun | None:
        began, warned = time.monotonic(), False
        future: Future[PlacedRun | None] | None = None
        while True:
            try:
                if future is None:
                    future = self.runs.queue.get(timeout=_LOOK_SECONDS)
                if not future.done():
                    self._prefetch_loop.release_consumed()
                return future.result(timeout=_LOOK_SECONDS)
            except CancelledError:
                self.raise_closed()
            except (queue.Empty, FutureTimeoutError):
                if future is not None and future.done():
                    return future.result()
                self.send_heartbeat()
                warned = self._check_stall(began, warned)

    def send_heartbeat(self) -> None:
        """Tell the coordinator, about once a second, that the consumer takes batches or waits for them."""
        now = time.monotonic()
        if now - self._heartbeat_at >= _HEARTBEAT_SECONDS:
            self._heartbeat_at = now
            self.client.heartbeat(self.consumer.report())

    def raise_closed(self) -> NoReturn:
        """Raise PlanError because reading was stopped from outside."""
        raise PlanError(
            f"shard {self.consumer.shard} was closed while epoch {self.facts.epoch} was being read"
        )

    def _check_stall(self, began: float, warned: bool) -> bool:
        waited = time.monotonic() - began
        if waited < self._waiting.warn_seconds:
            return False
        reason, still_seconds = self.client.diagnose()
        text = (
            f"shard {self.consumer.shard} has waited {waited:,.0f} s (epoch {self.facts.epoch}).\n  {reason}"
        )
        if min(waited, still_seconds) >= self._waiting.fail_seconds:
            raise StallError(text)
        if not warned:
            warn_user(text)
        return True


def align_runs(runs: Iterable[pa.RecordBatch], batch_rows: int) -> Iterator[pa.RecordBatch]:
    """Regroup runs into spans of whole batches.

    Runs start at batch boundaries except at window boundaries, so nearly every span is a run or a zero-copy
    slice of one. Only a batch that straddles two runs is copied. The last span has any number of rows.
    """
    pending: list[pa.RecordBatch] = []
    pending_rows = 0
    for run in runs:
        if pending:
            head = run.slice(0, batch_rows - pending_rows)
            pending.append(head)
            pending_rows += head.num_rows
            run = run.slice(head.num_rows)
            if pending_rows == batch_rows:
                yield _join(pending)
                pending, pending_rows = [], 0
        whole = run.num_rows - run.num_rows % batch_rows
        if whole:
            # a whole run is yielded as the same object, by which its converted batches are found
            yield run.slice(0, whole) if whole < run.num_rows else run
        if whole < run.num_rows:
            pending.append(run.slice(whole))
            pending_rows += run.num_rows - whole
    if pending:
        yield _join(pending)


def _join(parts: list[pa.RecordBatch]) -> pa.RecordBatch:
    return parts[0] if len(parts) == 1 else pa.concat_batches(parts)

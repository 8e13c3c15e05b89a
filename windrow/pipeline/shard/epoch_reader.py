"""Reads one epoch of one shard on behalf of a `EpochBatches`, and tracks what was consumed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

import pyarrow as pa

from windrow.core.errors import PlanError, StateError
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.coordinator.skipped_blocks import blocks_passed
from windrow.pipeline.coordinator.stats import Span
from windrow.pipeline.delivery.batch_spans import align_runs
from windrow.pipeline.delivery.iteration_methods import Delivery
from windrow.pipeline.executors.base import EpochFacts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.consumer import Consumer
from windrow.pipeline.shard.consumer_pace import CoreTime
from windrow.pipeline.shard.open_epoch import OpenEpoch
from windrow.pipeline.shard.prefetch_thread import Prefetcher
from windrow.pipeline.shard.progress import ProgressLine, is_shown
from windrow.pipeline.shard.run_reader import RunReader
from windrow.pipeline.shard.stall_watch import waiting_of

__all__ = ["EpochReader", "Owner", "start_epoch_reader"]

# shorter waits get no span in the timeline
_SPAN_SECONDS = 1e-3


class Owner(Protocol):
    """Is notified when an epoch ends; implemented by the shard's `Position`."""

    def dropped(self, reader: EpochReader) -> None: ...

    def ended(self, reader: EpochReader, at: Cursor, *, whole: bool, error: BaseException | None) -> None: ...


class EpochReader:
    """The state and logic of a `EpochBatches`, in an object of its own so that it can outlive the iterator.

    Attributes
    ----------
    epoch
        The epoch's number.
    start
        Steps of the epoch that were consumed before.
    steps
        Steps consumed by this reader.
    wait_seconds
        Seconds that the consumer has waited for batches.
    """

    def __init__(
        self,
        owner: Owner,
        reader: RunReader,
        facts: EpochFacts,
        batches: Any,
        *,
        opened: Cursor,
        program: Program,
        consumer: Consumer,
        progress: ProgressLine | None,
    ) -> None:
        self._opened = opened
        self._program = program
        self.epoch = facts.epoch
        self.facts = facts
        self.start = facts.assignment.start_row // facts.assignment.step_rows
        self.steps = 0
        self.wait_seconds = 0.0
        self._owner: Owner | None = owner
        self._end_lock = threading.Lock()
        self._reader = reader
        self._shard = consumer.shard
        self._pace = consumer.pace
        self._returned_at = time.time()
        self._core_time = CoreTime()
        self._spans = consumer.spans
        self._progress = progress
        self._batches = batches

    @property
    def owner(self) -> Owner | None:
        """The shard's position; None once the epoch has ended."""
        return self._owner

    @property
    def rows(self) -> int:
        """Rows consumed."""
        return min(self.steps * self.facts.assignment.batch_rows, self._reader.rows)

    @property
    def size_bytes(self) -> int:
        """Bytes consumed, by the average size of a row."""
        return self._reader.size_bytes * self.rows // max(1, self._reader.rows)

    @property
    def cursor(self) -> Cursor:
        """How far the stream has been consumed; equal on all shards at the same step."""
        assignment, assigned = self.facts.assignment, self._assigned
        if self.steps == 0:
            return self._opened
        if self._has_nothing_left():
            return self.next_epoch(whole=False)
        row = assignment.start_row + self.steps * assignment.step_rows
        if self._program.job.rows_known:
            return replace(self._program.locate(self.epoch, row), assigned=assigned)
        # later windows may not be counted yet
        window, window_row = self._reader.window_before(row)
        return Cursor(
            self.epoch,
            row,
            window,
            window_row,
            assigned,
            self._start_cursor_at(self._last_step_window).corrupt,
        )

    def next_epoch(self, *, whole: bool) -> Cursor:
        """The start of the next epoch, for when this one is exhausted (``whole``: and was read to its end)."""
        opened = self._opened
        if self._reader.corrupt:
            opened = self._start_cursor_at(self.facts.windows if whole else self._last_step_window)
        return replace(opened.next_epoch(), assigned=self._assigned)

    @property
    def _assigned(self) -> tuple[int, int]:
        return self.facts.assignment.shards, self.facts.assignment.batch_rows

    @property
    def start_cursor(self) -> Cursor:
        """Where the epoch was opened, with all corrupt blocks known so far."""
        return self._opened.skipping(self._reader.corrupt)

    @property
    def _last_step_window(self) -> int:
        """The window in which the last step starts; every shard has received it."""
        assignment = self.facts.assignment
        return self._reader.window_before(assignment.start_row + (self.steps - 1) * assignment.step_rows + 1)[
            0
        ]

    def _start_cursor_at(self, window: int) -> Cursor:
        """Where the epoch was opened, with the corrupt blocks of its windows up to one that all shards received.

        Corrupt blocks of later windows are known only to some shards, and states must be equal on all.
        """
        found = blocks_passed(self._program, self.epoch, window, self._reader.corrupt)
        return self._opened.skipping(found)

    def _has_nothing_left(self) -> bool:
        assignment, total = self.facts.assignment, self.facts.total
        if total is not None:
            # no shard has more steps than the first
            return self.steps >= assignment.steps(total, 0)
        # if rows are counted while reading, all shards agree only on what is certain
        if self._reader.has_more(self.steps * assignment.batch_rows):
            return False
        found = self._reader.total
        return found is not None and self.steps >= assignment.steps(found, 0)

    def length(self) -> int:
        """Number of steps of the whole epoch."""
        total = self.facts.total
        if total is None:
            raise TypeError(
                "the number of steps is not known yet: read an epoch first. (count() on the dataset returns "
                "the number of rows, by reading it once.)"
            )
        return self.start + self.facts.assignment.steps(total, self._shard)

    def next_batch(self) -> Any:
        """Wait for the next batch; end the epoch behind the last one, or on an error."""
        if self._owner is None:
            raise StopIteration
        began, computed = time.time(), self._core_time.seconds()
        if self.steps:
            # the first batch does not wait for the coordinator's reply, which hides its latency between epochs
            self._check_opening()
        try:
            batch = next(self._batches)
            self._reader.send_heartbeat()
            self._note_wait(began, computed)
            self._returned_at = time.time()
            self._core_time.begin()
        except StopIteration:
            self._check_opening()
            if not self.end(whole=True):
                self._reader.raise_closed()
            raise
        except BaseException as error:
            self.end(error=error)
            raise
        # If anything above fails, the batch is delivered next time. There is no call below: an interrupt is
        # raised in calls, and would lose a batch that already counts as delivered.
        self.steps += 1
        return batch

    def _check_opening(self) -> None:
        """Wait until the coordinator confirms the opening; if it rejects it, nothing counts as consumed."""
        try:
            self._reader.wait_for_opening()
        except BaseException as error:
            if isinstance(error, (PlanError, StateError)):
                # the prefetched rows were placed for another batch size, or from another row
                self.steps = 0
            self.end(error=error)
            raise

    def end(self, *, whole: bool = False, error: BaseException | None = None) -> bool:
        """Release everything and notify the owner, once; return whether this call did so."""
        with self._end_lock:
            owner, self._owner = self._owner, None
        if owner is None:
            return False
        at = self._opened
        # ExitStack makes these calls in reverse order, each even if others fail
        with ExitStack() as calls:
            calls.callback(lambda: owner.ended(self, at, whole=whole, error=error))
            if error is None:
                calls.callback(self._reader.leave_epoch)
            if self._progress is not None:
                calls.callback(self._progress.end)
            calls.callback(_close, self._batches)
            # wakes threads that wait for a batch
            calls.callback(self._reader.close, continues=error is None and self._can_continue())
            # before closing the reader, since a closed one no longer learns row counts
            at = self.next_epoch(whole=True) if whole else self.cursor
        return True

    def _can_continue(self) -> bool:
        """Whether this epoch is complete, so that its prefetch loop can continue with the next one."""
        assignment, total = self.facts.assignment, self.facts.total
        taken = total is not None and self.steps >= assignment.steps(total, self._shard)
        # the loop may still have to pass windows without rows of any step, which vanish once the epoch is left
        return taken and self._reader.is_opening_confirmed and self._reader.is_prefetched()

    def _note_wait(self, began: float, computed: float) -> None:
        now = time.time()
        self.wait_seconds += now - began
        self._pace.add(worked=began - self._returned_at, waited=now - began, computed=computed)
        if now - began > _SPAN_SECONDS:
            span = Span("wait", self.epoch, self._reader.window, began, now, f"shard {self._shard}")
            self._spans.append(span)
        if self._progress is not None:
            self._progress.show(
                now,
                window=self._reader.window,
                step=self.start + self.steps + 1,
                size_bytes=self.size_bytes,
                wait_seconds=self.wait_seconds,
            )


def start_epoch_reader(
    owner: Owner,
    program: Program,
    epoch: OpenEpoch,
    delivery: Delivery,
    consumer: Consumer,
    *,
    opened: Cursor,
) -> EpochReader:
    """Create the reader of an epoch that was opened at a cursor."""
    shard_client, job = epoch.shard_client, program.job
    reader = RunReader(epoch, consumer, waiting_of(job.options))
    progress = None
    if consumer.shard == program.members[0] and is_shown(job.options.progress):
        progress = ProgressLine(shard_client, epoch.facts, consumer.shard, job.epochs)
    batches: Any = _convert(reader, delivery.batch_rows, epoch.convert)
    if delivery.background and delivery.prefetch_batches:
        batches = Prefetcher(batches, delivery.prefetch_batches)
    return EpochReader(
        owner,
        reader,
        epoch.facts,
        batches,
        opened=opened,
        program=program,
        consumer=consumer,
        progress=progress,
    )


def _close(batches: Any) -> None:
    try:
        batches.close()
    except ValueError:
        # another thread is running the generator: it finds the reader closed, and ends it
        if not getattr(batches, "gi_running", False):
            raise


def _convert(
    reader: RunReader, batch_rows: int, convert: Callable[[pa.RecordBatch], Iterable[Any]]
) -> Iterator[Any]:
    for span in align_runs(reader, batch_rows):
        ready = reader.take_converted(span)
        yield from convert(span) if ready is None else ready

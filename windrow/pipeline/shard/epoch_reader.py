"""Reads one epoch of one shard on behalf of an `EpochBatches`, and tracks what was consumed.

Where conversion is slow, a background thread prepares batches ahead of the consumer (`Prefetcher`).
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, Protocol

from windrow.core.errors import PlanError, StateError
from windrow.pipeline.checkpoint.lineage import name_failed_row
from windrow.pipeline.coordinator.skipped_blocks import blocks_passed
from windrow.pipeline.delivery.delivery import Delivery, StepPart
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.consumer import CoreTime
from windrow.pipeline.shard.prefetcher import Prefetcher
from windrow.pipeline.shard.progress import ProgressView, is_shown
from windrow.pipeline.shard.run_reader import RunReader
from windrow.pipeline.shard.step_parts import for_microbatches
from windrow.pipeline.shard.waits import SHORT_WAIT_SECONDS
from windrow.pipeline.statistics.phases import DEVICE

# why a number of steps is not known
UNCOUNTED = (
    "the number of rows of an epoch is not known yet, because a filter, a row-changing transform, pack(), "
    'on_error="skip" or a format that does not store row counts (such as CSV or JSON) determines it while reading: '
    "read an epoch first, or write the rows that stay, and read those. count() on the dataset returns the number of "
    "rows, and reads the data once where the metadata does not suffice; the pipeline does not know them by that."
)


class Owner(Protocol):
    """Is notified when an epoch ends; implemented by the shard's `Position`."""

    def dropped(self, reader: EpochReader) -> None: ...

    def ended(self, reader: EpochReader, at: Cursor, *, whole: bool, error: BaseException | None) -> None: ...


class EpochReader:
    """The state and logic of an `EpochBatches`, in an object of its own so that it can outlive the iterator.

    ``start`` counts the steps of the epoch that were consumed before, ``steps`` those that this reader has
    consumed. ``owner`` is None once the epoch has ended.
    """

    def __init__(
        self,
        owner: Owner,
        program: Program,
        reader: RunReader,
        delivery: Delivery,
        *,
        opened: Cursor,
        opening_seconds: float,
    ) -> None:
        self._opened = opened
        self._program = program
        self.facts = reader.facts
        self.epoch = self.facts.epoch
        assignment = self.facts.assignment
        # where steps end by their tokens, it is not known how many were before a row
        self.start = 0 if assignment.ends_by_tokens else assignment.start_row // assignment.step_rows
        self.steps = 0
        self.owner: Owner | None = owner
        self._end_lock = threading.Lock()
        self._reader = reader
        self._consumer = reader.consumer
        self._returned_at = time.time()
        # of the latest batch
        self._window = self.facts.first_window
        self._core_time = CoreTime()
        self._consumer.totals.begin(self, opening_seconds)
        self._consumer.spans.add_opening((self.epoch, self.facts.first_window), opening_seconds)
        self._progress = _make_progress(program, reader)
        self._batches: Any = reader.batches(self.facts.assignment.batch_rows)
        job, finish, size_of = program.job, delivery.finish, delivery.size_of
        if delivery.balance is not None and delivery.balance.microbatches > 1:
            finish, size_of = for_microbatches(finish, size_of)
        # transforms behind packing run here, and not where runs are placed
        in_background = delivery.background or (job.packing is not None and bool(job.after))
        if in_background and delivery.prefetch_batches:
            self._batches = Prefetcher(self._batches, delivery.prefetch_batches, size_of)
        self._finish = finish

    @property
    def rows(self) -> int:
        """Rows consumed, with packing sequences."""
        return self._stream_rows // self.facts.assignment.sequence_rows

    @property
    def _stream_rows(self) -> int:
        """Rows consumed, with packing tokens."""
        assignment = self.facts.assignment
        if assignment.balance is not None and not assignment.balance.divides_evenly:
            return self._reader.parts.rows_of(self.steps) * assignment.sequence_rows
        return min(self.steps * assignment.batch_rows, self._reader.rows)

    @property
    def part(self) -> StepPart | None:
        """With `Balance`, this shard's part of the latest step; None before the first one."""
        return self._reader.parts.of_step(self.steps - 1) if self.steps else None

    @property
    def place(self) -> tuple[int, int] | None:
        """The epoch, and the row, with packing sequence, where the last step ends of which a batch was consumed."""
        row = self._row_behind(self.steps)
        return (self.epoch, row // self.facts.assignment.sequence_rows) if self.steps else None

    def _row_behind(self, steps: int) -> int:
        """The epoch's row behind so many steps, all of which this reader has taken."""
        assignment = self.facts.assignment
        if assignment.ends_by_tokens and steps:
            return self._reader.runs.step_ends[steps - 1]
        return assignment.start_row + steps * assignment.step_rows

    @property
    def size_bytes(self) -> int:
        """Bytes consumed, by the average size of a row."""
        return self._reader.size_bytes * self._stream_rows // max(1, self._reader.rows)

    @property
    def cursor(self) -> Cursor:
        """How far the stream has been consumed; equal on all shards at the same step."""
        assigned = self._assigned
        if self.steps == 0:
            return self._opened
        if self._has_nothing_left():
            return self.next_epoch(whole=False)
        row, groups = self._row_behind(self.steps), self.facts.assignment.groups
        if self._program.legs is not None:
            return replace(self._program.locate(self.epoch, row), assigned=assigned)
        if self._program.windows_known:
            return replace(self._program.locate(self.epoch, row), assigned=assigned, groups=groups)
        # later windows may not be counted yet
        window, window_row = self._reader.window_before(row)
        return Cursor(
            self.epoch,
            row,
            window,
            window_row,
            assigned,
            corrupt=self._start_cursor_at(self._last_step_window).corrupt,
            groups=groups,
        )

    @property
    def window_starts(self) -> list[int]:
        """The first row in the epoch of each window that it has reached, and perhaps of later ones."""
        if self._program.windows_known:
            return self._program.window_starts(self.epoch).tolist()
        return sorted(self._reader.runs.starts.values())

    def next_epoch(self, *, whole: bool) -> Cursor:
        """The start of the next epoch, for when this one is exhausted (``whole``: and was read to its end)."""
        opened = self._opened
        if self._program.job.mixture is not None:
            # the rows of a mixture are numbered through
            return replace(self._program.locate(self.epoch, self.facts.total or 0), assigned=self._assigned)
        if self._reader.runs.corrupt:
            opened = self._start_cursor_at(self.facts.windows if whole else self._last_step_window)
        return replace(opened.next_epoch(), assigned=self._assigned)

    @property
    def _assigned(self) -> tuple[int, int] | None:
        if self.facts.assignment.ends_by_tokens:
            return None
        return self.facts.assignment.shards, self.facts.assignment.batch_size

    @property
    def start_cursor(self) -> Cursor:
        """Where the epoch was opened, with all corrupt blocks known so far."""
        return self._opened.skipping(self._reader.runs.corrupt)

    @property
    def _last_step_window(self) -> int:
        """The window in which the last step starts; every shard has received it."""
        return self._reader.window_before(self._row_behind(self.steps - 1) + 1)[0]

    def _start_cursor_at(self, window: int) -> Cursor:
        """Where the epoch was opened, with the corrupt blocks of its windows up to one that all shards received.

        Corrupt blocks of later windows are known only to some shards, and states must be equal on all.
        """
        found = blocks_passed(self._program, self.epoch, window, self._reader.runs.corrupt)
        return self._opened.skipping(found)

    def _has_nothing_left(self) -> bool:
        assignment, total = self.facts.assignment, self.facts.total
        if total is not None and not assignment.ends_by_tokens:
            # no shard has more steps than the first
            return self.steps >= assignment.steps(total, 0)
        # if rows are counted or cut into steps while reading, all shards agree only on what is certain
        if self._reader.has_more(self._stream_rows):
            return False
        runs = self._reader.runs
        if assignment.ends_by_tokens:
            return self.steps == runs.steps
        return runs.total is not None and self.steps >= assignment.steps(runs.total, 0)

    def length(self) -> int:
        """Number of steps of the whole epoch."""
        total = self._reader.runs.total
        if self.facts.assignment.ends_by_tokens:
            raise TypeError(
                "with token_budget=, rows are divided into steps as they are read: the epoch has no length"
            )
        if self._program.legs is not None and not self._program.legs.leg(self.epoch).is_last:
            raise TypeError("the mixture is endless, or too long to be counted beforehand: it has no length")
        if total is None:
            raise TypeError(UNCOUNTED)
        return self.start + self.facts.assignment.steps(total, self._consumer.shard)

    def next_batch(self) -> Any:
        """Wait for the next batch; end the epoch behind the last one, or on an error."""
        if self.owner is None:
            raise StopIteration
        began, computed = time.time(), self._core_time.seconds()
        if self.steps:
            # the first batch does not wait for the coordinator's reply, which hides its latency between epochs
            self._check_opening()
        try:
            asked = time.time()
            batch = next(self._batches)
            converted, converting = time.time(), 0.0
            if self._reader.converts_at_once:
                converting = converted - max(asked, self._reader.taken_at)
                if converted - began >= SHORT_WAIT_SECONDS:
                    self._consumer.log.add_conversion(converted - converting, converted)
            if self._finish is not None:
                batch = self._finish(batch)
                self._consumer.log.add(converted, {DEVICE: 1.0})
            self._reader.send_heartbeat()
            self._note_wait(began, computed, converting)
            self._returned_at = time.time()
            self._core_time.begin()
        except StopIteration:
            self._consumer.spans.end_work(began)
            self._check_opening()
            if not self.end(whole=True):
                self._reader.raise_closed()
            raise
        except BaseException as error:
            self._consumer.spans.end_work(began)
            name_failed_row(error, self._program.job, sorted(self._reader.runs.corrupt))
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
            owner, self.owner = self.owner, None
        if owner is None:
            return False
        at = self._opened
        # ExitStack makes these calls in reverse order, each even if others fail
        with ExitStack() as calls:
            calls.callback(lambda: owner.ended(self, at, whole=whole, error=error))
            calls.callback(self._consumer.totals.end, self)
            # what follows the last batch of an abandoned epoch need not be work
            calls.callback(self._consumer.spans.end_work, self._returned_at)
            if error is None:
                calls.callback(self._reader.leave_epoch, whole=whole)
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
        if self._reader.opening is not None:
            return False
        if assignment.ends_by_tokens:
            # until all runs have been submitted, nobody knows how many rows there are
            return self._reader.is_prefetched() and self._stream_rows >= self._reader.runs.handed_rows
        taken = total is not None and self.steps >= assignment.steps(total, self._consumer.shard)
        # the loop may still have to pass windows without rows of any step, which vanish once the epoch is left
        return taken and self._reader.is_prefetched()

    def _note_wait(self, began: float, computed: float, converting: float) -> None:
        now, consumer = time.time(), self._consumer
        worked, waited = began - self._returned_at, now - began
        consumer.pace.add(worked=worked, waited=waited, computed=computed)
        if waited < SHORT_WAIT_SECONDS:
            consumer.totals.note_short(worked=worked, waited=waited, converting=converting)
        else:
            consumer.totals.note_wait((self.epoch, self._reader.window), began, now, worked=worked)
        if waited >= SHORT_WAIT_SECONDS or self._reader.window != self._window:
            self._window = self._reader.window
            consumer.spans.add_batch((self.epoch, self._window), began, now)
        if self._progress is not None:
            self._progress.show(now, window=self._reader.window, step=self.start + self.steps + 1)


def _make_progress(program: Program, reader: RunReader) -> ProgressView | None:
    job, shard = program.job, reader.consumer.shard
    if shard != program.members[0] or not is_shown(job.options.progress):
        return None
    return ProgressView(reader.client, reader.facts, reader.consumer.totals, job.epochs)


def _close(batches: Any) -> None:
    try:
        batches.close()
    except ValueError:
        # another thread is running the generator: it finds the reader closed, and ends it
        if not getattr(batches, "gi_running", False):
            raise

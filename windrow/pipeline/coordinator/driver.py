"""The driver: carries out the scheduler's instructions, and answers the shards.

One driver serves all shards of a run. It is not thread-safe: the executor calls it one call at a
time, under a lock on threads, in an actor's event loop on Ray.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from windrow.core.errors import StateError
from windrow.core.native_libraries import missing_library_warnings
from windrow.pipeline.coordinator.balanced_epochs import BalancedEpochs
from windrow.pipeline.coordinator.buffered_windows import BufferedWindows, reply_window
from windrow.pipeline.coordinator.divided_steps import DividedSteps
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.memory_cache import JobCache
from windrow.pipeline.coordinator.requests import EpochFacts, EpochStarts, WindowReply, diagnose
from windrow.pipeline.coordinator.rounds import check_place, check_shares, find_lost, find_placed, reply_round
from windrow.pipeline.coordinator.run_measurements import (
    BlockRowCounts,
    LeftOutRows,
    MemoryEstimate,
    make_window_error,
)
from windrow.pipeline.coordinator.scheduling.events import (
    Abort,
    Acknowledged,
    AttemptLost,
    Closed,
    Drop,
    Event,
    Finished,
    Heartbeat,
    Instruction,
    Opened,
    Overflowed,
    Replanned,
    Run,
    Tick,
)
from windrow.pipeline.coordinator.scheduling.memory_limit import make_limits
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler
from windrow.pipeline.coordinator.source_history import SourceHistory
from windrow.pipeline.coordinator.window_history import Capacity, WindowHistory
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.task import Task, TaskReport, TaskRunner, Work
from windrow.shuffle.order.batching import Batching


class Driver:
    """Runs a program for its shards, up to ``workers`` tasks at a time.

    ``clock`` returns seconds, for heartbeat timeouts and stalls. ``failure`` is what ended the run, or None;
    ``history`` tells when tasks ran.
    """

    def __init__(
        self,
        program: Program,
        budget: Budget,
        runner: TaskRunner,
        *,
        workers: int,
        clock: Callable[[], float],
        capacity: Capacity | None = None,
        clients: tuple[int, ...] = (),
    ) -> None:
        job = program.job
        self._program = program
        self._budget = budget
        self._runner = runner
        self._clock = clock
        self._rows = BlockRowCounts(program)
        self._buffered = BufferedWindows()
        self._running: dict[Work, str] = {}
        self.failure: Failure | None = None
        self._destinations: tuple[tuple[int, ...], ...] | None = None
        self._epoch_starts = EpochStarts()
        self._peak_bytes = 0
        self._left_out = LeftOutRows()
        self._estimate = MemoryEstimate(budget)
        self._user_warnings = [*missing_library_warnings()]
        self._cache = JobCache(budget.cache_bytes, job.source.blocks.memory_bytes)
        self._events: deque[Event] = deque()
        self._handling = self._widened = False
        sources = None if program.legs is None else SourceHistory(program.legs)
        self.history = WindowHistory(
            capacity or Capacity(workers), profiled=job.options.profile, sources=sources
        )
        limits = make_limits(program, budget, workers, clients or program.members)
        self._balanced = BalancedEpochs(self._rows, measures_rows=job.packing is None)
        self._divided = DividedSteps(self._balanced.note_steps)
        self._scheduler = Scheduler(limits, self._balanced.shape)

    # --- requests of shards

    def open_epoch(self, shard: int, cursor: Cursor, batching: Batching) -> EpochFacts:
        """Start an epoch for a shard, if that agrees with how other shards read it (`EpochStarts`)."""
        legs = self._program.legs
        rest = self._program.assignment(batching, cursor)
        if legs is not None:
            self._follow_destinations()
            check_shares(legs, shard, cursor, rest, self._scheduler)
            legs.note_reader(cursor.epoch, shard)
            if legs.open(cursor, rest):
                self._handle(Replanned(cursor.epoch))
        self.admit(cursor, cursor.passed(self._program.job.sequence_rows))
        self._rows.epoch = max(self._rows.epoch, cursor.epoch)
        # runs are laid out from the epoch's start, so that a shard can resume at any step
        opened = self._scheduler.epochs.opened_assignment(cursor.epoch)
        assignment = rest.whole
        if opened is not None and rest.ends_by_tokens and opened.start_row <= rest.start_row:
            assignment = opened
        self._epoch_starts.open(shard, cursor, rest, opened)
        measured_from = self._scheduler.epochs.counts(cursor.epoch).first_window
        for epoch in self._balanced.open(cursor, batching.balance, measured_from):
            self._handle(Replanned(epoch))
        self._handle(Opened(shard, Place(cursor.epoch, cursor.window), assignment, cursor.window_row))
        if opened is None:
            self._left_out.open(cursor.epoch, assignment)
            self._left_out.count(self._total)
        return self.describe_epoch(cursor, batching)

    def _follow_destinations(self) -> None:
        """Place the windows of a mixture again if shards moved: those of a round have to have the same destinations."""
        before, self._destinations = self._destinations, self._runner.destinations
        if before not in (None, self._destinations):
            for event in list(find_placed(self._scheduler, self._buffered)):
                self._handle(event)

    def describe_epoch(self, cursor: Cursor, batching: Batching) -> EpochFacts:
        """Facts about an epoch that a shard has opened."""
        return EpochFacts(
            epoch=cursor.epoch,
            first_window=cursor.window,
            windows=self._program.fetched_windows(cursor.epoch),
            assignment=self._program.assignment(batching, cursor),
            run_rows=self._program.run_rows(batching.size),
            total=self._total(cursor.epoch),
            user_warnings=self.take_user_warnings(),
            extra_windows=self._budget.extra_windows,
        )

    def poll(self, shard: int, epoch: int, window: int, have: Collection[int]) -> WindowReply:
        """Return what is ready of a window, except the parts that the shard has."""
        self._handle(Tick())
        if self.failure is not None:
            self.failure.rethrow()
        key, shard = (epoch, window), self._program.shard_of(shard)
        if self._program.job.mixture is not None:
            reply = reply_round(shard, key, self._scheduler, self._buffered, have, self._divided)
        else:
            corrupt = None if self._program.job.rows_known else self._rows.corrupt.blocks
            reply = reply_window(shard, key, self._scheduler, self._buffered.get(key), have, corrupt)
        if not self.is_complete(*key):
            return reply
        needed = self._scheduler.epochs.counts(epoch).shape.windows_of(window)
        return replace(reply, history=self.history.describe([(epoch, each) for each in needed]))

    def admit(self, cursor: Cursor, window: int) -> None:
        """Admit a shard that opened an epoch at a cursor and may have rows up to a window."""
        self._rows.admit(cursor, window)

    def take_user_warnings(self) -> tuple[str, ...]:
        """Remove and return pending warnings for the user, one line each."""
        user_warnings, self._user_warnings = tuple(self._user_warnings), []
        return (*user_warnings, *self._cache.take_warnings())

    @property
    def estimated_bytes(self) -> int:
        """The current estimate of the run's total memory."""
        return self._estimate.total_bytes

    @property
    def blocks_bytes(self) -> int:
        """Bytes of the blocks in running tasks, by the row sizes measured so far."""
        return self._scheduler.blocks_bytes

    def is_complete(self, epoch: int, window: int) -> bool:
        """Whether every part of a window, or of what a mixture's round needs, is ready."""
        windows = self._scheduler.epochs.counts(epoch).shape.windows_of(window)
        return self._scheduler.are_complete(epoch, windows)

    def heartbeat(self, shard: int, *stats: TrainerStats) -> Failure | None:
        """Consumers take rows or wait, as ``stats`` says of each; returns why they may not go on, if shares differ."""
        for each in stats:
            self._note_trainer(each)
        self._handle(Heartbeat(shard))
        return self.failure if self.failure is not None and self.failure.kind is StateError else None

    def _note_trainer(self, stats: TrainerStats) -> None:
        self.history.note_trainer(stats)
        if self._program.legs is not None and self.failure is None:
            try:
                check_place(self._program.legs, stats)
            except StateError as error:
                # of every shard: none can know which of them went wrong
                self.task_failed(Failure.capture(error))

    def acknowledge(self, shard: int, place: Place) -> None:
        self._handle(Acknowledged(shard, place))

    def abandon(self, epoch: int, window: int, attempt: int) -> None:
        """Discard an attempt at a window whose outputs are lost; the window is prepared again."""
        if self._program.job.mixture is not None:
            for event in find_lost(self._scheduler, epoch, window, attempt):
                self._handle(event)
            return
        self._handle(AttemptLost(epoch, window, attempt))

    def close_shard(self, shard: int, stats: TrainerStats | None = None) -> bool:
        """A shard has stopped reading; returns whether it was the last one."""
        if stats is not None:
            self._note_trainer(stats)
        self._handle(Closed(shard))
        if self._scheduler.done:
            self._cache.clear()
        return self._scheduler.done

    def diagnose(self, shard: int) -> tuple[str, float]:
        now = self._clock()
        return diagnose(self._scheduler, shard, now), now - self._scheduler.last_progress

    def run_stats(self, *, spans: bool) -> RunStats:
        return replace(
            self._cache.add_stats(self.history.run_stats(spans=spans)),
            # outputs of tasks that still run after a failure are discarded
            held_bytes=0 if self.failure is not None else self._scheduler.held_bytes,
            memory_bytes=self._scheduler.memory_bytes,
            peak_held_bytes=self._peak_bytes,
            estimated_bytes=self._estimate.total_bytes,
            dropped_windows=self._scheduler.dropped_windows,
            left_out_rows=self._left_out.rows + self._balanced.left_out_rows,
            **self._rows.statistics(),
            windows_ready=self._scheduler.windows_ready,
            imbalance=self._balanced.imbalance,
            padding=self._balanced.padding,
        )

    # --- results of tasks

    def task_done(
        self, task: Task, report: TaskReport, output: Any, lane: str, cached: Sequence[Any] = ()
    ) -> None:
        """Record a task's result, and cache the decoded blocks that it returned for that.

        ``output`` and ``cached`` are handles that only the runner understands. Never raises: an exception
        in a callback would be lost, so it becomes the run's failure.
        """
        try:
            self._record_result(task, report, output, lane)
            if report.shortfall is not None:
                self._cache.release_reservations(task)
            elif not self._scheduler.done:
                self._cache.add_report(task, report.cache, cached)
        except Exception as error:
            self.task_failed(Failure.capture(error))

    def _record_result(self, task: Task, report: TaskReport, output: Any, lane: str) -> None:
        work, kind = task.work, self._running.pop(task.work)
        self.history.finish(work, kind, report.start_time, report.stop_time, report.profile, lane)
        if report.shortfall is not None:
            self._handle(Overflowed(work, report.shortfall))
        else:
            self._user_warnings += self._rows.record(task, report)
            rows = self._rows.count(task.blocks)
            self._buffered.add(task, report, output, rows)
            is_counted = self._balanced.has_measured(work.epoch, task.blocks)
            self._handle(Finished(work, rows, report.slice_bytes, report.unpacked_bytes, is_counted))
            self._left_out.count(self._total)
        self._grow_estimate()

    def _grow_estimate(self) -> None:
        sizes, memory_bytes = self._scheduler.memory.sizes, self._scheduler.memory_bytes
        self._user_warnings += self._estimate.grow(sizes, memory_bytes=memory_bytes)

    def note_delivered(self, row_bytes: float) -> None:
        """Record the bytes per delivered row that a shard measured."""
        self._scheduler.memory.note_delivered(row_bytes)
        self._grow_estimate()

    def blocks_lost(self, task: Task) -> Task:
        """Evict the cached blocks of a task, which are lost; returns the task that reads them again."""
        return self._cache.evict_lost_blocks(task)

    def task_failed(self, failure: Failure) -> None:
        """A task failed permanently: the run ends with its error."""
        if self.failure is None:
            self.failure = failure
            # release all references, since this driver can outlive its run
            self._buffered.clear()
            self._cache.clear()

    def tick(self) -> None:
        self._handle(Tick())

    # --- internals

    def _handle(self, event: Event) -> None:
        # events do not nest: those that arrive meanwhile are queued
        self._events.append(event)
        if self._handling:
            return
        self._handling = True
        try:
            while self._events:
                self._widened = False
                for instruction in self._scheduler.handle(self._events.popleft(), self._clock()):
                    self._perform(instruction)
            self.history.note_memory(self._scheduler.short_of_memory, self._scheduler.running)
        except Exception as error:
            # events also come from callbacks and ticks, where an exception would be lost: the next request of
            # each shard raises it
            self._events.clear()
            self.task_failed(Failure.capture(error))
        finally:
            self._handling = False
        self._peak_bytes = max(self._peak_bytes, self._scheduler.held_bytes)

    def _perform(self, instruction: Instruction) -> None:
        if isinstance(instruction, Abort):
            self._release_cache_or_abort(instruction)
        elif isinstance(instruction, Drop):
            self._drop(instruction)
        elif self.failure is None:
            self._run(instruction)

    def _release_cache_or_abort(self, abort: Abort) -> None:
        """Give a window that does not fit the memory of the block cache, or end the run."""
        if self._widened:
            # decided before the cache was released
            return
        freed_bytes = 0 if self._budget.exact else self._cache.give_up()
        if not freed_bytes:
            self.task_failed(Failure.capture(make_window_error(self._program, self._budget, abort)))
            return
        self._widened = True
        self._scheduler.memory.widen(int(freed_bytes / self._budget.copies))
        self._user_warnings.append(
            "decoded blocks are no longer cached in memory, since windows turned out to need that memory: "
            "use smaller windows with window(bytes_per_window=...), or raise options(memory_limit=...)"
        )
        self._events.append(Tick())

    def _total(self, epoch: int) -> int | None:
        # counts from an earlier epoch apply even if this one was started without them
        if self._program.job.mixture is not None:
            return self._program.total_rows(epoch)
        total = self._rows.total(epoch)
        if total is None:
            total = self._scheduler.epochs.counts(epoch).total
            self._rows.note_total(total)
        return total

    def _run(self, instruction: Run) -> None:
        work = instruction.work
        counts = self._scheduler.epochs.counts(work.epoch)
        stage = counts.shape.stages[work.stage]
        self._running[work] = stage.name
        window = self._scheduler.window(work.epoch, work.window)
        buffered = self._buffered.begin(work, 0 if window is None else window.first_kept)
        if stage.needs_order and buffered.places is None:
            assignment = self._scheduler.epochs.assignment(work.epoch)
            assert assignment is not None, "a running epoch has a shard assignment"
            buffered.places = self._program.places(
                work,
                counts,
                self._rows.array,
                assignment=assignment,
                destinations=self._runner.destinations,
                slices=self._budget.slices,
                lengths=self._rows.documents,
                keys=buffered.keys,
                measures=None if assignment.balance is None else self._balanced.measures(work.epoch),
                total=self._total(work.epoch),
            )
            if self._program.legs is None:
                self._balanced.note(work.epoch, work.window, buffered.places)
            self._balanced.note_rounds(work.epoch, buffered.places.rounds)
            buffered.keys.clear()
        measure = self._balanced.column(work.epoch)
        task = self._program.task(work, stage, self._rows.array, buffered.places, measure)
        skips = self._rows.corrupt.find_skipped(work.epoch, task.blocks)
        task = replace(task, skips=skips, max_bytes=instruction.max_bytes, samples=instruction.samples)
        task, cached = self._cache.prepare(task)
        self.history.submit(work)
        self._runner.run(task, buffered.tables.get(work.part), *cached)

    def _drop(self, instruction: Drop) -> None:
        self._buffered.drop(instruction)
        if instruction.slices is None:
            self.history.drop((instruction.epoch, instruction.window), rebuild=instruction.evicts)

"""A job of the threads executor: the driver, its threads, and the client of each shard."""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from windrow.core.buffer_pool import BufferPool
from windrow.core.finalizers import in_background
from windrow.core.machine import available_cores
from windrow.core.source import with_stages
from windrow.pipeline.checkpoint.resume import make_seed_error
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.coordinator.window_history import Capacity
from windrow.pipeline.delivery.wanted import Wanted
from windrow.pipeline.executors.base import Pace, WindowData
from windrow.pipeline.executors.processes.stages import describe_processes, end_processes, start_processes
from windrow.pipeline.executors.window_fetch import WindowCollector
from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.plan.cache_budget import disk_cache
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.memory_budget import budget_program, overlap_waiting, size_parts
from windrow.pipeline.plan.process_budget import PROCESS_BYTES
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.cache.cached_reader import Tables
from windrow.pipeline.tasks.cache.disk_cache import DiskCache
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.map_task import TaskContext, run_task
from windrow.pipeline.tasks.task import Task, TaskReport
from windrow.shuffle.order.batching import Batching

logger = logging.getLogger(__name__)

T = TypeVar("T")
_POLL_SECONDS = 1.0
_SLOW_CALL_SECONDS = 10.0
# Running tasks yield to urgent placements; other placements run before queued tasks.
_URGENT, _PLACE, _TASKS = range(3)


class RunningJob:
    """The driver, its lock and its threads. Shards reference it; its threads do not, so that it can be collected."""

    def __init__(self, resources: Resources, program: Program, batch_rows: int) -> None:
        launch = program.job.launch
        resources = overlap_waiting(program, resources, batch_rows)
        program = size_parts(program, resources, batch_rows)
        budget = budget_program(program, resources, batch_rows)
        self._budget = budget
        self._blocks = _BlocksEstimate(budget.tasks_bytes)
        self.memory = BufferPool(budget.total_bytes - budget.processes_bytes, self._blocks.find_decoded_bytes)
        self._seed = program.job.seed
        cores = available_cores(launch.local_world_size)
        self._stages: list[MapBatches] = []
        start = partial(self._start, cores, (budget.limit_bytes - budget.total_bytes) // PROCESS_BYTES)
        before, self.after = start(program.job.before), start(program.job.after)
        reader = with_stages(program.context.reader, start)
        self.workers = WorkerPool(resources.workers, "windrow-worker", cores)
        self.changed = threading.Condition(threading.RLock())
        self.ended = False
        self.disk = disk_cache(program.job)
        # before anything else that can fail
        self._finalizer = weakref.finalize(
            self, in_background, partial(_close_resources, self.workers, self.disk, self._stages)
        )
        context = replace(program.context, reader=reader, before=before, disk=self.disk)
        runner = _ThreadsRunner(context, program.members, self)
        self.driver = Driver(
            program,
            budget,
            runner,
            workers=resources.workers,
            clock=time.monotonic,
            capacity=Capacity(resources.workers),
        )
        self._clients = 0
        logger.info("a run of %d shards starts on %d threads", program.shards, resources.workers)

    def _start(self, cores: int, spare: int, stages: tuple[MapBatches, ...]) -> tuple[MapBatches, ...]:
        started = start_processes(stages, cores, spare)
        self._stages += started
        return started

    def connect(self, seed: int | None) -> bool:
        """Register one more shard; False if the job has ended or failed."""
        with self.changed:
            alive = not self.ended and self.driver.failure is None
            if alive and seed != self._seed:
                raise make_seed_error(seed, self._seed)
            self._clients += alive
            return alive

    def record_result(self, task: Task, report: TaskReport, output: Any, blocks: Sequence[Any]) -> None:
        with self.changed:
            self.driver.task_done(task, report, output, threading.current_thread().name, blocks)
            self.update_blocks_estimate()
            self.raise_limit()
            self.changed.notify_all()

    def update_blocks_estimate(self) -> None:
        """Update the memory reserved for the blocks of running tasks, from the measured row size."""
        self._blocks.size_bytes = self.driver.blocks_bytes

    def raise_limit(self) -> None:
        """Raise the pool's limit to what the measured rows need, so that their buffers are reused."""
        total_bytes = min(self.driver.estimated_bytes, self._budget.limit_bytes)
        self.memory.raise_limit(total_bytes - self._budget.processes_bytes)

    def disconnect(self, shard: int, stats: TrainerStats | None) -> None:
        """Unregister a shard; the last one ends the job."""
        with self.changed:
            self.driver.close_shard(shard, stats)
            self._clients -= 1
            last = self._clients == 0
        if last:
            self.close()

    def close(self) -> None:
        """Stop the threads, and wake all waiting shards."""
        logger.info("the run ends: its last shard has closed")
        self.ended = True
        self._finalizer.detach()
        _close_resources(self.workers, self.disk, self._stages)
        with self.changed:
            self.changed.notify_all()

    def diagnose(self, shard: int) -> tuple[str, float]:
        with self.changed:
            reason, seconds = self.driver.diagnose(shard)
        slow = describe_processes(self._stages, _SLOW_CALL_SECONDS)
        return f"{reason}; {slow}" if slow else reason, seconds


class _BlocksEstimate:
    """The estimated size of all blocks that tasks hold; ``max_bytes`` is what it was before the job started.

    A plain number without a lock: the pool reads it in finalizers, which can run in a thread that is
    changing the driver.
    """

    def __init__(self, max_bytes: int) -> None:
        self.size_bytes = 0
        self._baseline_bytes, self._max_bytes = pa.total_allocated_bytes(), max_bytes

    def find_decoded_bytes(self) -> int:
        """The estimate, or Arrow's allocation since the job started if that is more.

        Arrow does not count arrays that transforms made. The allocation is capped, since others in this process also
        allocate from Arrow.
        """
        allocated_bytes = max(0, pa.total_allocated_bytes() - self._baseline_bytes)
        return max(self.size_bytes, min(allocated_bytes, self._max_bytes))


def _close_resources(workers: WorkerPool, disk: DiskCache | None, stages: Sequence[MapBatches]) -> None:
    # first, since the threads may wait for them
    end_processes(stages)
    workers.close()
    if disk is not None:
        disk.remove()


class _ThreadsRunner:
    """Runs the driver's tasks; references the job weakly, since the driver references this runner."""

    def __init__(self, context: TaskContext, members: Sequence[int], job: RunningJob) -> None:
        self.destinations = (tuple(members),)
        self._context = replace(context, stays_here=True)
        self._job = weakref.ref(job)
        self._memory, self._workers = job.memory, job.workers

    def run(self, task: Task, tables: list[pa.Table] | None, *cached: Tables) -> None:
        job = self._job()
        if job is not None:
            job.update_blocks_estimate()
            work = task.work
            priority = (_TASKS, work.epoch, work.window, -work.stage, work.part)
            self._workers.submit(priority, partial(self._run, task, tables, cached))

    def _run(self, task: Task, tables: list[pa.Table] | None, cached: Sequence[Tables]) -> None:
        try:
            # before the block is allocated: idle buffers of other windows may be as large
            self._memory.evict()
            report, output, blocks = run_task(
                self._context, task, tables, self._memory, cached, self._run_urgent
            )
            if (job := self._job()) is not None:
                job.record_result(task, report, output, blocks)
        except BaseException as error:
            failure = Failure.capture(error)
            if (job := self._job()) is not None:
                with job.changed:
                    job.driver.task_failed(failure)
                    job.changed.notify_all()

    def _run_urgent(self) -> None:
        self._workers.run_urgent((_PLACE,))


class ThreadsClient:
    """One shard's client of a job in this process; the methods are those of `CoordinatorClient`."""

    def __init__(self, job: RunningJob, shard: int) -> None:
        self._job = job
        self._shard = shard
        self._closed = False

    @property
    def pool(self) -> BufferPool:
        """The pool that all shards of the job share."""
        return self._job.memory

    @property
    def after(self) -> tuple[MapBatches, ...]:
        """The transforms after the shuffle, whose processes all shards of the job share."""
        return self._job.after

    def want(self, wanted: Wanted) -> None:
        """Do nothing: nothing is moved between processes."""

    def open_epoch(self, cursor: Cursor, batching: Batching) -> EpochFacts:
        with self._job.changed:
            return self._job.driver.open_epoch(self._shard, cursor, batching)

    def open_next(self, cursor: Cursor, batching: Batching) -> Future[EpochFacts]:
        """Open the next epoch, which is immediate here."""
        opened: Future[EpochFacts] = Future()
        opened.set_result(self.open_epoch(cursor, batching))
        return opened

    def begin_prefetch(self) -> None:
        """Leave the thread's scheduling as it is: it must be able to preempt the workers, which use all cores."""

    def window(self, epoch: int, window: int, stop: threading.Event) -> WindowData | None:
        collector = WindowCollector()
        with self._job.changed:
            while not stop.is_set() and not self._job.ended:
                reply = self._job.driver.poll(self._shard, epoch, window, collector.outputs.keys())
                collector.add(reply, reply.attempt)
                if collector.complete:
                    return collector.window(self._job.driver.take_user_warnings())
                self._job.changed.wait(_POLL_SECONDS)
        return None

    def release(self, stop: threading.Event) -> None:
        """Do nothing: this client holds no windows, since the driver's outputs are in this process."""

    def acknowledge(self, place: Place) -> None:
        with self._job.changed:
            # a late placement must not report progress for a reader that has reconnected
            if not self._closed:
                self._job.driver.acknowledge(self._shard, place)

    def heartbeat(self, *stats: TrainerStats, waits: bool = False) -> None:
        with self._job.changed:
            failure = self._job.driver.heartbeat(self._shard, *stats)
        if failure is not None:
            failure.rethrow()

    def note_delivered(self, row_bytes: float) -> None:
        with self._job.changed:
            self._job.driver.note_delivered(row_bytes)
        self._job.raise_limit()

    def submit(self, place: Callable[[], T], pace: Pace) -> Future[T]:
        """Place a run's rows on the pool's threads, before any queued task."""
        self._job.workers.reserve_core(self._shard, pace.computes)
        return self._job.workers.submit((_URGENT if pace.works else _PLACE,), place)

    def describe_queue(self, start: float, stop: float) -> Mapping[str, float]:
        """What the tasks did that kept the pool's threads busy meanwhile."""
        with self._job.changed:
            return self._job.driver.history.describe_tasks(start, stop)

    def diagnose(self) -> tuple[str, float]:
        return self._job.diagnose(self._shard)

    def run_stats(self, *, spans: bool) -> RunStats:
        with self._job.changed:
            return self._job.driver.run_stats(spans=spans)

    def close(self, stats: TrainerStats | None = None) -> None:
        with self._job.changed:
            self._closed = True
            # its prefetch loop, which has been stopped, need not wait for the end of its poll
            self._job.changed.notify_all()
        self._job.workers.reserve_core(self._shard, False)
        self._job.disconnect(self._shard, stats)

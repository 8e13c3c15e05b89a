"""The threads executor: everything in the calling process."""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa

from windrow.core.buffer_pool import BufferPool
from windrow.core.machine import available_cores, free_memory_bytes
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.checkpoint.state import make_seed_error
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.coordinator.stats import RunStats
from windrow.pipeline.executors.base import CoordinatorClient, EpochFacts, Resources, Session, WindowData
from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.plan.job import Launch
from windrow.pipeline.plan.memory_budget import budget_program, overlap_waiting, size_parts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.consumer_pace import Pace
from windrow.pipeline.shard.finalizers import in_background
from windrow.pipeline.shard.window_collector import WindowCollector
from windrow.pipeline.tasks.cache.cached_reader import Tables
from windrow.pipeline.tasks.cache.disk_cache import DiskCache, open_disk
from windrow.pipeline.tasks.map_task import Task, TaskReport, run_task

__all__ = ["ThreadsExecutor"]

T = TypeVar("T")
_POLL_SECONDS = 1.0
# stacks of threads, and what allocators keep in pieces too small to give back
_PROCESS_BYTES = 8 * 2**20
# a task that runs makes way for what is urgent; what is placed goes before tasks that have not begun
_URGENT, _PLACE, _TASKS = range(3)


@dataclass(frozen=True)
class ThreadsExecutor:
    """Runs tasks on threads of this process.

    Attributes
    ----------
    workers
        How many threads; None: one for each core that this process may use.
    """

    workers: int | None = None

    @property
    def name(self) -> str:
        """The executor's name."""
        return "threads"

    def resources(self, launch: Launch = Launch()) -> Resources:
        """The cores and half of the free memory, as control groups allow, divided among local processes."""
        processes = launch.local_world_size
        return Resources(
            executor=self.name,
            workers=self.workers or available_cores(processes),
            memory_bytes=free_memory_bytes() // 2 // processes,
            limit_covers_all=True,
            processes_bytes=_PROCESS_BYTES,
            processes=processes,
        )

    def session(self, program: Program, hints: Sequence[Any] | None) -> Session:
        """A run in this process; it starts with the first feed.

        Raises
        ------
        PlanError
            If not even one window fits into memory.
        """
        resources = overlap_waiting(program, self.resources(program.job.launch))
        budget_program(size_parts(program, resources), resources, 1)
        return ThreadsSession(self, program)

    def pool(self, workers: int, cores: int) -> WorkerPool:
        """The threads of a run, on so many cores."""
        return WorkerPool(workers, "windrow-worker", cores)


class ThreadsSession:
    """A run in this process, shared by its shards; started by the first that reads."""

    def __init__(self, executor: ThreadsExecutor, program: Program) -> None:
        self._executor = executor
        self._program = program
        self._lock = threading.Lock()
        self._run: weakref.ReferenceType[_Run] | None = None

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect a shard; those that come after a failure share a new run."""
        program = self._program.with_seed(seed)
        with self._lock:
            run = self._run() if self._run is not None else None
            if run is None or not run.connect(seed):
                run = _Run(self._executor, program, batch_rows)
                run.connect(seed)
                self._run = weakref.ref(run)
        return _ThreadsClient(run, shard)

    def export(self, shard: int) -> Session:
        """A run of its own for one shard: in another process nothing here can be shared."""
        warnings.warn(
            f"shard {shard} of the threads executor runs its own engine in the process it is sent to: "
            "each such process reads whole windows to deliver its part. "
            "Initialise Ray before split(), or use options(executor='ray'), to share the work",
            RuntimeWarning,
            stacklevel=2,
        )
        program = self._program
        own = Program(program.job, program.shards, program.equal, (shard,))
        return ThreadsSession(self._executor, own)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadsSession, (self._executor, self._program)


class _Run:
    """The driver, its lock and its threads. Shards hold it; its threads do not."""

    def __init__(self, executor: ThreadsExecutor, program: Program, batch_rows: int) -> None:
        launch = program.job.launch
        resources = overlap_waiting(program, executor.resources(launch), batch_rows)
        program = size_parts(program, resources, batch_rows)
        budget = budget_program(program, resources, batch_rows)
        self._budget = budget
        blocks = _BlocksEstimate()
        self.memory = BufferPool(
            budget.total_bytes - budget.processes_bytes,
            partial(_decoded_bytes, blocks, pa.total_allocated_bytes(), budget.tasks_bytes),
        )
        self._blocks = blocks
        self._seed = program.job.seed
        self.workers = executor.pool(resources.workers, available_cores(launch.local_world_size))
        self.run_urgent = partial(self.workers.run_urgent, (_PLACE,))
        self.changed = threading.Condition(threading.RLock())
        self.ended = False
        self.disk = open_disk(program.job)
        # before anything else that may fail
        self._finalizer = weakref.finalize(
            self, in_background, partial(_close_resources, self.workers, self.disk)
        )
        runner = _ThreadsRunner(program, self)
        self.driver = Driver(
            program,
            budget,
            runner,
            workers=resources.workers,
            clock=time.monotonic,
            cache_bytes=budget.cache_bytes,
        )
        self._clients = 0

    def connect(self, seed: int | None) -> bool:
        """Count one more shard that reads; False when the run has ended or failed."""
        with self.changed:
            alive = not self.ended and self.driver.failure is None
            if alive and seed != self._seed:
                raise make_seed_error(seed, self._seed)
            self._clients += alive
            return alive

    def record_result(self, task: Task, report: TaskReport, output: Any, blocks: Sequence[Any]) -> None:
        """Take what a task has put out."""
        with self.changed:
            self.driver.task_done(task, report, output, threading.current_thread().name, blocks)
            self.update_blocks_estimate()
            self.raise_limit()
            self.changed.notify_all()

    def update_blocks_estimate(self) -> None:
        """Leave room for the blocks of the tasks that run, as large as rows have been measured."""
        self._blocks.size_bytes = self.driver.blocks_bytes

    def raise_limit(self) -> None:
        """Keep as much memory for the next one to use as rows turn out to need."""
        total_bytes = min(self.driver.estimated_bytes, self._budget.limit_bytes)
        self.memory.raise_limit(total_bytes - self._budget.processes_bytes)

    def disconnect(self, shard: int) -> None:
        """A shard reads no more; the last one that does ends the run."""
        with self.changed:
            self.driver.close_shard(shard)
            self._clients -= 1
            last = self._clients == 0
        if last:
            self.close()

    def close(self) -> None:
        """End the threads; whoever waits is told."""
        self.ended = True
        self._finalizer.detach()
        _close_resources(self.workers, self.disk)
        with self.changed:
            self.changed.notify_all()


class _BlocksEstimate:
    """The estimated size of all blocks that tasks hold.

    The pool reads it in finalizers, which may run in a thread that changes the driver: so it is a plain number.
    """

    def __init__(self) -> None:
        self.size_bytes = 0


def _decoded_bytes(blocks: _BlocksEstimate, before: int, most: int) -> int:
    """What tasks hold of blocks: the estimate, or what they have in Arrow's memory now.

    Arrow does not see arrays that transforms made. Other users of its memory cannot make this more than was
    estimated before the run.
    """
    return max(blocks.size_bytes, min(max(0, pa.total_allocated_bytes() - before), most))


def _close_resources(workers: WorkerPool, disk: DiskCache | None) -> None:
    workers.close()
    if disk is not None:
        disk.remove()


class _ThreadsRunner:
    """Runs the driver's tasks; holds the run weakly, for the driver holds this."""

    def __init__(self, program: Program, run: _Run) -> None:
        self.destinations = (program.members,)
        self._context = replace(program.context, disk=run.disk)
        self._run = weakref.ref(run)

    def run(self, task: Task, tables: list[pa.Table] | None, *cached: Tables) -> None:
        """Queue a task."""
        run = self._run()
        if run is not None:
            run.update_blocks_estimate()
            work = task.work
            call = partial(
                _run_task, self._run, self._context, task, tables, run.memory, cached, run.run_urgent
            )
            run.workers.submit((_TASKS, work.epoch, work.window, -work.stage, work.part), call)


def _run_task(
    run_ref: weakref.ReferenceType[_Run],
    context: Any,
    task: Task,
    tables: list[pa.Table] | None,
    memory: BufferPool,
    cached: Sequence[Tables],
    between: Callable[[], None],
) -> None:
    try:
        # before the block is made: buffers of other windows may be as large
        memory.evict()
        report, output, blocks = run_task(context, task, tables, memory, cached, between)
        if (run := run_ref()) is not None:
            run.record_result(task, report, output, blocks)
    except BaseException as error:
        failure = Failure.capture(error)
        if (run := run_ref()) is not None:
            with run.changed:
                run.driver.task_failed(failure)
                run.changed.notify_all()


class _ThreadsClient:
    """One shard's line to a run in this process."""

    def __init__(self, run: _Run, shard: int) -> None:
        self._run = run
        self._shard = shard
        self._closed = False

    @property
    def pool(self) -> BufferPool:
        """The run's memory."""
        return self._run.memory

    def open_epoch(self, cursor: Cursor, batch_rows: int, *, drop_last: bool) -> EpochFacts:
        """Begin an epoch."""
        with self._run.changed:
            return self._run.driver.open_epoch(self._shard, cursor, batch_rows, drop_last=drop_last)

    def open_next(self, cursor: Cursor, batch_rows: int, *, drop_last: bool) -> Future[EpochFacts]:
        """Begin the next epoch, which takes no time here."""
        opened: Future[EpochFacts] = Future()
        opened.set_result(self.open_epoch(cursor, batch_rows, drop_last=drop_last))
        return opened

    def begin_prefetch(self) -> None:
        """As it is: the thread that asks must get a core from the workers, who have them all."""

    def window(self, epoch: int, window: int, stop: threading.Event) -> WindowData | None:
        """Wait for a window."""
        collector = WindowCollector()
        with self._run.changed:
            while not stop.is_set() and not self._run.ended:
                reply = self._run.driver.poll(self._shard, epoch, window, collector.outputs.keys())
                collector.add(reply, reply.attempt)
                if collector.complete:
                    return collector.window(self._run.driver.take_user_warnings())
                self._run.changed.wait(_POLL_SECONDS)
        return None

    def release(self, stop: threading.Event) -> None:
        """Nothing is held here: the run's own outputs are in this process."""

    def acknowledge(self, place: Place) -> None:
        """Tell how far the shard has come."""
        with self._run.changed:
            # what ends late may not speak for a reader that has begun anew
            if not self._closed:
                self._run.driver.acknowledge(self._shard, place)

    def heartbeat(self) -> None:
        """Tell that the consumer is alive."""
        with self._run.changed:
            self._run.driver.heartbeat(self._shard)

    def note_delivered(self, row_bytes: float) -> None:
        """Tell what a row takes as it is delivered."""
        with self._run.changed:
            self._run.driver.note_delivered(row_bytes)
        self._run.raise_limit()

    def submit(self, place: Callable[[], T], pace: Pace) -> Future[T]:
        """Place a run's rows on the run's threads, before any task."""
        self._run.workers.reserve_core(self._shard, pace.computes)
        return self._run.workers.submit((_URGENT if pace.works else _PLACE,), place)

    def diagnose(self) -> tuple[str, float]:
        """Say what the shard waits for."""
        with self._run.changed:
            return self._run.driver.diagnose(self._shard)

    def run_stats(self, *, spans: bool) -> RunStats:
        """What the run has done."""
        with self._run.changed:
            return self._run.driver.run_stats(spans=spans)

    def close(self) -> None:
        """The shard reads no more."""
        with self._run.changed:
            self._closed = True
        self._run.workers.reserve_core(self._shard, False)
        self._run.disconnect(self._shard)

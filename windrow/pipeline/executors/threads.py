"""The threads executor: runs all tasks in the calling process."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from windrow.core.machine import available_cores, free_memory_bytes
from windrow.core.source import prepare_source
from windrow.core.user_warnings import warn_user
from windrow.pipeline.executors.base import CoordinatorClient, Session
from windrow.pipeline.executors.threads_job import RunningJob, ThreadsClient
from windrow.pipeline.plan.job import Launch, Resources
from windrow.pipeline.plan.memory_budget import budget_program, overlap_waiting, size_parts
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.stats import RunStats

# thread stacks, and fragmented memory that allocators cannot return
_PROCESS_BYTES = 8 * 2**20


@dataclass(frozen=True)
class ThreadsExecutor:
    """Runs tasks on threads of this process: ``workers`` or, by default, one per core available to it."""

    workers: int | None = None

    @property
    def name(self) -> str:
        return "threads"

    def resources(self, launch: Launch = Launch()) -> Resources:
        """The cores and half of the free memory that control groups allow, divided among local processes."""
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
        """Create a session in this process; the job starts when the first shard connects.

        Raises a `PlanError` if not even one window fits into memory.
        """
        resources = overlap_waiting(program, self.resources(program.job.launch))
        budget_program(size_parts(program, resources), resources, 1)
        return ThreadsSession(self, program)


class ThreadsSession(Session):
    """A job in this process, shared by its shards; the first shard that connects starts it.

    Processes that this one forks or spawns each start a job of their own.
    """

    def __init__(self, executor: ThreadsExecutor, program: Program) -> None:
        self._executor = executor
        self._program = program
        self._lock = threading.Lock()
        self._job: weakref.ReferenceType[RunningJob] | None = None
        self._connected, self._unread = set[int](), set[int]()  # shards that have read; that closed unread

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect a shard; shards that connect after a failure share a restarted job."""
        program = self._program.with_seed(seed)
        prepare_source(program.job.source)
        with self._lock:
            job = self._job() if self._job is not None else None
            if job is None or not job.connect(seed):
                job = RunningJob(self._executor.resources(program.job.launch), program, batch_rows)
                job.connect(seed)
                self._job = weakref.ref(job)
                for unread in self._unread:
                    job.driver.close_shard(unread)
            self._connected.add(shard)
        return ThreadsClient(job, shard)

    def note_unread(self, shard: int) -> None:
        """A shard closes without having read: no window is held for it."""
        with self._lock:
            job = self._job() if self._job is not None else None
            if shard not in self._connected:
                self._unread.add(shard)
                if job is not None:
                    with job.changed:
                        job.driver.close_shard(shard)

    def run_stats(self, *, spans: bool) -> RunStats | None:
        """Statistics of the job while a shard is connected."""
        job = self._job() if self._job is not None else None
        if job is None:
            return None
        with job.changed:
            return job.driver.run_stats(spans=spans)

    def export(self, shard: int) -> Session:
        """A separate session for one shard, since processes cannot share this one."""
        warn_user(
            f"shard {shard} of the threads executor runs its own engine in the process it is sent to: "
            "each such process reads whole windows to deliver its part. "
            "Initialise Ray before split(), or use options(executor='ray'), to share the work"
        )
        program = self._program
        own = Program(program.job, program.shards, program.equal, (shard,))
        return ThreadsSession(self._executor, own)

    def for_workers(self, program: Program, shard: int) -> Session:
        """A session of this process alone, on its part of the machine."""
        job, workers = program.job, program.workers
        if shard < program.shards // workers:
            warn_user(
                f"each of the {workers} DataLoader workers of a shard reads and decodes every window for itself, "
                f"{workers} times the work of one run that they share: call windrow.attach() before shard(), or "
                "initialise Ray before split()"
            )
        launch = Launch(job.launch.local_world_size * workers, job.launch.world_size * workers)
        own = replace(program, job=replace(job, launch=launch), members=(shard,))
        return ThreadsSession(self._executor, own)

    def __reduce__(self) -> tuple[Any, ...]:
        return ThreadsSession, (self._executor, self._program)

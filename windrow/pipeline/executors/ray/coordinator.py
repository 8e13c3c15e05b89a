"""The coordinator actor: hosts a job's coordinator core on Ray, submits its tasks and collects their results."""

from __future__ import annotations

import asyncio
import time
import uuid
import warnings
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.pipeline.coordinator.core import TICK_SECONDS, Answer, CoordinatorCore
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import Ask, EpochFacts, OpenRequest
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.ray.cluster import (
    ShardNodes,
    expected_clients,
    format_starvation_warning,
    list_nodes,
    others_hold_cpus,
    this_node,
)
from windrow.pipeline.executors.ray.coordinator_calls import is_conclusive, make_death_error
from windrow.pipeline.executors.ray.pickling import (
    ON_THREADS,
    call_with_picklable,
    export_code,
    pack_program,
    unpack_program,
)
from windrow.pipeline.executors.ray.placement import Placement, Planner
from windrow.pipeline.executors.ray.pool_calls import RayWorkers
from windrow.pipeline.executors.ray.pools import RunPools
from windrow.pipeline.executors.ray.ray_task import Heartbeat, cancel_copy, remove_on_all_nodes, submit_task
from windrow.pipeline.executors.ray.replica_places import ReplicaPlaces
from windrow.pipeline.executors.ray.run_metrics import RunMetrics
from windrow.pipeline.executors.ray.run_report import RunReporter, describe_starter
from windrow.pipeline.executors.ray.task_dispatch import Cluster, Dispatcher, Submitted
from windrow.pipeline.plan.cache_budget import disk_cache
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.cache.disk_cache import DiskCache
from windrow.pipeline.tasks.task import Task

_REFRESH_NODES_SECONDS = 10.0
_START_SECONDS = 2.0
# A superseded copy of a task may wait for a worker that never starts.
_LAST_TASKS_SECONDS = 5.0
# Even on an overloaded machine the first workers have started by then, or never will.
_MAX_START_SECONDS = 20.0


class Coordinator:
    """Drives a job: answers the requests of `CoordinatorCore`, and is what that runs in.

    Every request that can fail returns its result or a `Failure`.
    """

    def __init__(
        self,
        program: Program | None,
        resources: Resources,
        nodes: ShardNodes,
        disk: DiskCache | None = None,
        *packed: Any,
        starts_workers: bool = False,
        name: str = "",
        starter: Mapping[str, Any] | None = None,
    ) -> None:
        export_code()
        program = program or unpack_program(packed)
        self._core = CoordinatorCore(program, resources, expected_clients(nodes), self, this_node())
        self._program, self._resources, self._nodes = program, resources, nodes
        # by number of workers: the coordinator of the run in which workers divide each shard, and what it needs
        self._divided: dict[int, tuple[Any, Any]] = {}
        self._places = ReplicaPlaces(nodes, program.replicas)
        self._transforms = bool(program.context.before)
        self._ticking = False
        self._name, self._metrics = name, RunMetrics(name[-8:], published=program.job.options.profile)
        self._reporter = RunReporter(self._core, starter or {})
        self._incarnation = uuid.uuid4().hex
        self._warnings: list[str] = []
        cluster = Cluster(self.now, list_nodes, self._is_starting, cancel_copy, is_conclusive, self.spawn)
        self._task_cpus = resources.task_cpus
        self._dispatcher = Dispatcher(Planner(self._task_cpus), cluster, self._warn_starving)
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._disk = disk
        self._pools = RunPools(replace(program.context, disk=disk), program.job.after)
        self._spread = False
        self._nodes_due_at = 0.0
        self._workers_started = asyncio.Event()
        self._starting_until = time.monotonic() + _MAX_START_SECONDS
        if not starts_workers or self.is_restarted():
            self._starting_until = 0.0
            self._workers_started.set()

    async def await_workers(self, started: Sequence[ray.ObjectRef[Any]]) -> None:
        """Wait until the first workers have started, which is when ``started`` is ready."""
        await asyncio.gather(*started, return_exceptions=True)
        self._starting_until = 0.0
        self._workers_started.set()

    async def open_epoch(self, request: OpenRequest) -> EpochFacts | Failure:
        if not self._workers_started.is_set():
            # tasks submitted while workers are still starting make Ray start more workers
            await asyncio.wait([asyncio.ensure_future(self._workers_started.wait())], timeout=_START_SECONDS)
            self._workers_started.set()
        self._pools.ensure()
        self._start_ticking()
        facts = self._core.open_epoch(request)
        self._wake()
        return facts

    async def poll(self, request: OpenRequest, place: Place, key: Key, ask: Ask) -> Answer:
        self._start_ticking()
        polling = self._core.poll(request, place, key, ask)
        try:
            seconds = next(polling)
            while True:
                seconds = polling.send(await self._wait_for_change(seconds))
        except StopIteration as end:
            return end.value

    async def workers_after(self) -> tuple[RayWorkers | None, ...]:
        """The workers of each transform after the shuffle; None: the process that reads a shard runs it."""
        return self._pools.after

    async def acknowledge(self, shard: int, token: str, place: Place) -> None:
        with self._failing_run():
            if self._core.acknowledge(shard, token, place):
                self._wake()

    async def task_heartbeat(self, incarnation: str, key: int, copy: int) -> None:
        """Record that a copy of a task runs; ``incarnation`` is the coordinator process that submitted it."""
        with self._failing_run():
            if incarnation == self._incarnation:
                self._dispatcher.note_heartbeat(key, copy)

    async def heartbeat(self, shard: int, *stats: TrainerStats) -> Failure | None:
        with self._failing_run():
            return self._core.heartbeat(shard, *stats)
        return None

    async def note_delivered(self, row_bytes: float) -> None:
        with self._failing_run():
            self._core.note_delivered(row_bytes)
            self._wake()

    async def close_shard(self, shard: int, token: str, stats: TrainerStats | None = None) -> None:
        """Disconnect a reader of a shard; the last one removes the cache files."""
        last = False
        with self._failing_run():
            last = self._core.close_shard(shard, token, stats)
            self._metrics.update(self._core.run_stats(spans=False))
        self._wake()
        if last:
            self._pools.end()
        if last and self._disk is not None:
            await self._remove_files(self._disk)

    async def diagnose(self, shard: int) -> tuple[str, float]:
        return self._core.diagnose(shard)

    async def run_stats(self, *, spans: bool) -> RunStats:
        return self._core.run_stats(spans=spans)

    async def report(self) -> dict[str, Any]:
        """What an observer outside the job is told of it; changes nothing."""
        return self._reporter.report()

    async def report_spans(self) -> bytes:
        """The spans of the job's timeline, for `unpack_spans`; changes nothing."""
        return await self._reporter.pack_spans()

    async def divide(self, workers: int) -> str | Failure:
        """The name of the coordinator of the run in which ``workers`` processes divide each shard; starts it once."""
        name = f"{self._name}-{workers}"
        if workers not in self._divided:
            try:
                divided, held = start_coordinator(
                    self._program.divided(workers), self._resources, self._nodes * workers, name=name
                )
            except Exception as error:
                return Failure.capture(error)
            divided.await_workers.remote([])
            self._divided[workers] = (divided, held)
        return name

    async def meet_replicas(self, shard: int, node: str, replicas: Sequence[int]) -> dict[int, str]:
        """Note which replicas of a shard read on a node; returns the node of each that is known."""
        places = self._places.meet(shard, node, replicas)
        for client in self._places.take_unread(shard):
            self.spawn(self.close_shard(client, ""))
        return places

    def destinations(self) -> tuple[tuple[int, ...], ...]:
        return self._core.destinations

    # --- the environment of the core

    def now(self) -> float:
        return time.monotonic()

    def name_driver(self) -> str:
        return uuid.uuid4().hex[:8]

    def is_restarted(self) -> bool:
        with warnings.catch_warnings():
            # Ray itself uses an API that it deprecates
            warnings.simplefilter("ignore", DeprecationWarning)
            return bool(ray.get_runtime_context().was_current_actor_reconstructed)

    def user_warnings(self) -> tuple[str, ...]:
        warned, self._warnings = tuple(self._warnings), []
        return warned

    def submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        def submit_copy(key: int, copy: int, placement: Placement) -> Submitted:
            heartbeat = Heartbeat(self._name, self._incarnation, key, copy)
            return submit_task(
                self._pools.context,
                task,
                tables,
                cached,
                spread=self._spread,
                placement=placement,
                heartbeat=heartbeat,
            )

        def on_done(done: Submitted) -> Coroutine[Any, Any, None]:
            return self._record_result(driver, task, done.report, done.output, done.cached)

        self._dispatcher.run(submit_copy, on_done)

    # --- inside

    @contextmanager
    def _failing_run(self) -> Iterator[None]:
        """Fail the job on an exception inside: no caller waits for an answer that could carry it."""
        try:
            yield
        except Exception as error:
            self._core.fail(error)
            self._wake()

    def _refresh_nodes(self) -> None:
        now = time.monotonic()
        if now >= self._nodes_due_at:
            self._nodes_due_at = now + _REFRESH_NODES_SECONDS
            # only a hint for placing tasks: if Ray does not answer now, the next refresh retries
            with suppress(ray.exceptions.RayError, ConnectionError, TimeoutError):
                self._spread = sum(node["Alive"] for node in ray.nodes()) > 1

    def _start_ticking(self) -> None:
        if not self._ticking:
            self._ticking = True
            # deferred: an error in a tick fails the job, which the caller is only about to start
            asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        # first, so that an error in this tick does not stop the ticks
        asyncio.get_running_loop().call_later(TICK_SECONDS, self._tick)
        with self._failing_run():
            self._refresh_nodes()
            self._dispatcher.tick()
            self._core.tick()
            self._metrics.update(self._core.run_stats(spans=False))
        self._wake()

    async def _wait_for_change(self, seconds: float) -> bool:
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except asyncio.TimeoutError:
            return False
        return True

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _is_starting(self) -> bool:
        return time.monotonic() < self._starting_until

    def _warn_starving(self) -> bool:
        if not others_hold_cpus(self._task_cpus):
            return False
        self._warnings.append(format_starvation_warning())
        self._wake()
        return True

    def spawn(self, work: Any) -> None:
        """Run a coroutine as a background task, and keep a reference to it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        with self._failing_run():
            if not task.cancelled():
                task.result()

    async def _record_result(
        self, driver: Driver, task: Task, report_ref: Any, output: Any, cached: Sequence[Any]
    ) -> None:
        try:
            await self._await_report(driver, task, report_ref, output, cached)
        except Exception as error:
            driver.task_failed(Failure.capture(error))
        self._wake()

    async def _await_report(
        self, driver: Driver, task: Task, report_ref: Any, output: Any, cached: Sequence[Any]
    ) -> None:
        """Wait for a task's report, and pass it to the driver."""
        try:
            report, lane = await report_ref
        except Exception as error:
            if task.found and isinstance(error, ray.exceptions.ObjectLostError):
                # cached blocks were lost with their node, or with the coordinator that owned them
                self.submit(driver, driver.blocks_lost(task), None, ())
                return
            died = make_death_error(task, error, transforms=self._transforms)
            died.__cause__ = error
            driver.task_failed(Failure.capture(died))
        else:
            if isinstance(report, Failure):
                driver.task_failed(report)
            else:
                driver.task_done(task, report, output, lane, cached)

    async def _remove_files(self, disk: DiskCache, seconds: float | None = _LAST_TASKS_SECONDS) -> None:
        """Remove the cache files from all nodes, and again once tasks that still run have ended."""
        tasks = self._tasks - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=seconds)
        await asyncio.gather(*remove_on_all_nodes(disk), return_exceptions=True)
        if self._tasks and seconds is not None:
            self.spawn(self._remove_files(disk, None))


def start_coordinator(
    program: Program, resources: Resources, nodes: ShardNodes, *, name: str
) -> tuple[Any, Any]:
    """Start a coordinator on this node, owned by this process; returns its handle, and what it needs to be restarted.

    The caller must then call `Coordinator.await_workers`. Raises a `PlanError` if a transform or the source
    cannot be pickled.
    """
    here = NodeAffinitySchedulingStrategy(this_node(), soft=True)
    actor: Any = ray.remote(Coordinator)
    # tasks look the actor up by name: a handle in their arguments would keep it alive
    options = {
        "name": name,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": -1,
        "scheduling_strategy": here,
    }
    # opened here, so that a restarted coordinator finds the same files
    disk = disk_cache(program.job)
    job, starter = program.job, describe_starter()

    def start() -> tuple[Any, Any]:
        packed = pack_program(program)
        starting = actor.options(**options)
        return starting.remote(
            None, resources, nodes, disk, *packed, starts_workers=True, name=name, starter=starter
        ), packed

    return call_with_picklable(start, (*job.before, *job.after), job.source, otherwise=ON_THREADS)

"""The Ray task: runs the shared map task in a worker process, with outputs in Ray's object store, and heartbeats."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import chain
from typing import Any

import pyarrow as pa
import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import TransformError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.executors.ray.placement import Placement
from windrow.pipeline.executors.ray.process_priority import yielding_cpu
from windrow.pipeline.executors.ray.task_dispatch import Submitted
from windrow.pipeline.tasks.cache.cached_reader import Tables
from windrow.pipeline.tasks.cache.disk_cache import DiskCache
from windrow.pipeline.tasks.map_task import TaskContext, run_task
from windrow.pipeline.tasks.task import Task, TaskReport

_INTERVAL_SECONDS = 1.0
# A worker reuses the memory of one task's output for the next one, which may be larger.
_POOLED_OUTPUTS = 2


@dataclass(frozen=True)
class Heartbeat:
    """The content and recipient of a task copy's heartbeats."""

    # name of the coordinator actor
    coordinator: str
    # the coordinator process that submitted the task; a restarted one ignores its heartbeats
    incarnation: str
    # the task's number in that process, and the copy's number
    key: int
    copy: int


@contextmanager
def sending_heartbeats(heartbeat: Heartbeat) -> Iterator[None]:
    """Send heartbeats of a task copy inside the with block."""
    thread = _heartbeat_thread()
    thread.current = heartbeat, time.monotonic()
    try:
        yield
    finally:
        thread.current = None


class _HeartbeatThread:
    """One thread for all tasks of a worker process, so that short tasks cost nothing."""

    def __init__(self) -> None:
        self.current: tuple[Heartbeat, float] | None = None
        threading.Thread(target=self._run, name="windrow-heartbeat", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_INTERVAL_SECONDS)
            current = self.current
            if current is not None and time.monotonic() - current[1] >= _INTERVAL_SECONDS:
                # fails if the coordinator has ended or this process exits; neither needs heartbeats
                with suppress(Exception):
                    heartbeat = current[0]
                    method = _find_coordinator(heartbeat.coordinator).task_heartbeat
                    # once the coordinator has ended, Ray would repeat the call, and print that it does
                    method = method.options(max_task_retries=0)
                    method.remote(heartbeat.incarnation, heartbeat.key, heartbeat.copy)


@cache
def _heartbeat_thread() -> _HeartbeatThread:
    return _HeartbeatThread()


@lru_cache(maxsize=1)
def _find_coordinator(name: str) -> Any:
    # a handle from get_actor does not keep the actor alive
    return ray.get_actor(name)


def start_workers(count: int, *, nodes: int) -> list[ray.ObjectRef[Any]]:
    """Start about ``count`` worker processes, with their imports done, before there is work for them.

    Workers take as long to start as the coordinator, and both start in parallel. The warm-up tasks request
    no CPU, so they neither wait for one nor take one from others.

    A raylet starts a process for each lease that finds no idle one. With the first lease of a scheduling
    class it also starts as many processes as tasks of that class are waiting and CPUs are idle. A queued
    lease starts a process even if another one becomes free for it. Therefore each task here has a
    scheduling class of its own, and there is one task fewer than wanted processes on each node.

    Returns references that are ready once the workers have started. Leases requested earlier start more processes.
    """
    # an explicit strategy, or Ray would put the tasks into the caller's placement group, which may be full
    strategy = "SPREAD" if nodes > 1 else "DEFAULT"
    options = {"name": "windrow:start worker", "scheduling_strategy": strategy}
    return [
        # a few bytes of memory cost nothing, but make a separate scheduling class
        _warm_up_remote.options(memory=1 + number, **options).remote()
        for number in range(max(1, count - nodes))
    ]


def _warm_up() -> None:
    """Do nothing: unpickling this function imports the module, which is the purpose."""


_warm_up_remote: Any = ray.remote(num_cpus=0, max_retries=0)(_warm_up)


def submit_task(
    context: ray.ObjectRef[Any],
    task: Task,
    tables: Any,
    cached: Sequence[Any],
    *,
    spread: bool,
    placement: Placement,
    heartbeat: Heartbeat,
) -> Submitted:
    """Submit one copy of a task.

    The task returns all its outputs and does not use ray.put: the worker would own those objects, and they
    would be lost with it.
    """
    layouts = task.ordering.layouts if task.ordering else ()
    slices = layouts[0].slices if layouts else 1
    stop = 1 + max(1, len(layouts)) * slices
    options: dict[str, Any] = {
        "num_returns": stop + len(task.keeps),
        "name": f"windrow:{_format_task_name(task)}",
    }
    if placement.cpus != 1:
        options["num_cpus"] = placement.cpus
    if placement.node is not None:
        options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(placement.node, soft=True)
    elif spread and tables is None and not cached:
        options["scheduling_strategy"] = "SPREAD"
    else:
        # Ray prefers the node that holds most of the task's arguments; explicit, or the caller's placement
        # group could capture the task
        options["scheduling_strategy"] = "DEFAULT"
    refs = _run_remote.options(**options).remote([context], task, heartbeat, tables, *cached)
    outputs = [refs[1 + i * slices : 1 + (i + 1) * slices] for i in range(len(layouts))]
    return Submitted(refs[0], outputs if layouts else refs[1], refs[stop:])


def cancel_copy(report: ray.ObjectRef[Any]) -> None:
    """Cancel a superseded copy of a task; if it has started, it runs to its end."""
    # a failed cancellation costs no more than one wasted task
    with suppress(ray.exceptions.RayError):
        ray.cancel(report, force=False, recursive=False)


def _format_task_name(task: Task) -> str:
    stage = "read" if task.ordering is None else "map" if task.reads else "place"
    return f"{stage} {task.work.epoch}.{task.work.window}.{task.work.part}"


def _run(
    holder: list[ray.ObjectRef[Any]],
    task: Task,
    heartbeat: Heartbeat,
    tables: list[pa.Table] | None,
    *cached: Tables,
) -> Any:
    """Run one task.

    Returns the report (or a `Failure`) with the worker's name first. Then follow, as separate objects, the
    tables read or one output per destination and slice, and the tables of each block to cache.
    """
    outputs = len(task.ordering.layouts) * task.ordering.layouts[0].slices if task.ordering else 1
    try:
        with ignoring_interrupts(), sending_heartbeats(heartbeat):
            state = _load_state(holder[0])
            with yielding_cpu():
                report, output, blocks = run_task(state.context, task, tables, state.pool, cached)
            state.fit_pool(state.pool.in_use_bytes)
    except Exception as error:
        failed: list[Any] = [
            (Failure.capture(error, cloudpickle.dumps), _worker_name()),
            *[None] * (outputs + len(task.keeps)),
        ]
        return failed
    first: tuple[TaskReport, str] = (report, _worker_name())
    return [first, *([output] if task.ordering is None else chain.from_iterable(output)), *blocks]


_run_remote: Any = ray.remote(num_cpus=1, max_retries=8)(_run)


@contextmanager
def ignoring_interrupts() -> Iterator[None]:
    """Ignore SIGINT, so that a task that has started runs to its end.

    Ray cancels a running task with an interrupt. During an import that leaves a broken module for all later
    tasks of this worker, for example a pandas without ``core``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


def remove_on_all_nodes(disk: DiskCache) -> list[Any]:
    """Remove a job's cache files from every node; returns the references to wait for."""
    nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
    there = (NodeAffinitySchedulingStrategy(node, soft=False) for node in nodes)
    return [_remove_remote.options(scheduling_strategy=strategy).remote(disk) for strategy in there]


def _remove(disk: DiskCache) -> None:
    disk.remove()


_remove_remote: Any = ray.remote(num_cpus=0)(_remove)


class _WorkerState:
    """What a worker retains between tasks of a job: their context, and memory for their outputs."""

    def __init__(self, context: TaskContext) -> None:
        self.context = context
        self.pool = BufferPool(0)
        self._output_bytes = 0

    def fit_pool(self, output_bytes: int) -> None:
        """Size the pool for the largest output so far, with a quarter to spare."""
        if output_bytes > self._output_bytes:
            self._output_bytes = output_bytes * 5 // 4
            self.pool = BufferPool(_POOLED_OUTPUTS * self._output_bytes)


@lru_cache(maxsize=1)
def _load_state(ref: ray.ObjectRef[Any]) -> _WorkerState:
    try:
        (context,) = get_all([ref], f"a task, {_worker_name()}")
        return _WorkerState(context)
    except ray.exceptions.ObjectLostError:
        raise
    except Exception as error:
        raise TransformError(
            f"the source or the functions of the job cannot be loaded on {_worker_name()}: {error}. Install their "
            "modules on every node, or pass them with ray.init(runtime_env=...)"
        ) from error


def _worker_name() -> str:
    context = ray.get_runtime_context()
    return f"worker {context.get_worker_id()[:6]} on {context.get_node_id()[:6]}"

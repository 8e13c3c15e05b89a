"""Unit costs on Ray: map tasks that put, and readers that place runs while other tasks run."""

from __future__ import annotations

import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from functools import lru_cache
from itertools import chain, islice
from typing import Any

from bench.scale.thread_costs import Plan, make_plan, time_handing
from bench.system.machine import count_cores, read_memory_bytes
from bench.system.processes import list_tree, read_command, read_cpu_seconds
from bench.system.ray_cluster import start_ray
from windrow.core.buffer_pool import BufferPool
from windrow.pipeline.tasks.map_task import TaskContext, run_task
from windrow.pipeline.tasks.task import Task

_ROUNDS = 7
_BATCH_ROWS = 65_536
_STORE_SHARE = 0.3
_POOL_BYTES = 2**29
_DAEMONS = ("gcs_server", "raylet/raylet")


def measure_workers(paths: list[str], shards: int) -> dict[str, float]:
    """Measure the cost per decoded byte of map tasks, including puts, and of readers."""
    import ray

    start_ray(int(read_memory_bytes() * _STORE_SHARE), count_cores(), frees_early=False)
    try:
        plan = make_plan(paths, shards, _BATCH_ROWS)
        context = ray.put(plan.program.context)
        map_seconds, computed, daemon_seconds = _time_tasks(plan, context)
        place_seconds = _time_placing(plan, context)
    finally:
        ray.shutdown()
    size = plan.decoded_bytes
    return {
        "decode": computed / size,
        "group": 0.0,
        "put": max(0.0, map_seconds - computed) / size,
        "place": place_seconds / size,
        "task": daemon_seconds / len(plan.tasks),
        "run": time_handing(paths[0]),
    }


def _time_tasks(plan: Plan, context: Any) -> tuple[float, float, float]:
    """Core seconds of one epoch's map tasks on all CPUs, the part that computes, and those of Ray's daemons.

    Outputs are dropped at once, so that pages of the object store are reused, as in a run. The CPU time
    of a worker's process between the starts of two tasks is attributed to the first: it includes the put
    and Ray's overhead.
    """
    import ray

    left = chain.from_iterable(enumerate(plan.tasks) for _ in range(_ROUNDS))
    running = [(number, _submit(context, task)[0]) for number, task in islice(left, 2 * count_cores())]
    computed, whole = defaultdict[int, list[float]](list), defaultdict[int, list[float]](list)
    last: dict[int, tuple[int, float]] = {}
    before_daemons = _daemon_seconds()
    while running:
        ready, _ = ray.wait([first for _, first in running], num_returns=1)
        worker, began, ended = ray.get(ready[0])
        (number,) = [number for number, first in running if first == ready[0]]
        computed[number].append(ended - began)
        if worker in last:
            before, then = last[worker]
            whole[before].append(began - then)
        last[worker] = number, began
        running = [entry for entry in running if entry[1] != ready[0]]
        running.extend((number, _submit(context, task)[0]) for number, task in islice(left, 1))
    daemons = (_daemon_seconds() - before_daemons) / _ROUNDS
    return (
        sum(map(statistics.median, whole.values())),
        sum(map(statistics.median, computed.values())),
        daemons,
    )


def _daemon_seconds() -> float:
    """Core seconds of Ray's daemons on this machine: raylet, object store and GCS."""
    daemons = [
        each for each in list_tree(os.getpid()) if any(name in read_command(each) for name in _DAEMONS)
    ]
    return sum(map(read_cpu_seconds, daemons))


def _submit(context: Any, task: Task) -> Any:
    """Submit a map task with one destination and slice; returns references to its times and its output."""
    import ray

    return ray.remote(num_cpus=1, num_returns=2)(_map).remote(context, task)


def _map(context: TaskContext, task: Task) -> list[Any]:
    began = time.process_time()
    result: Any = run_task(context, task, None, _keep_pool())
    return [(os.getpid(), began, time.process_time()), result[1][0][0]]


@lru_cache(maxsize=1)
def _keep_pool() -> BufferPool:
    return BufferPool(_POOL_BYTES)


def _time_placing(plan: Plan, context: Any) -> float:
    """Core seconds of placing one epoch's runs, with every shard in a separate process."""
    import ray

    readers = [ray.remote(num_cpus=0)(_Reader).remote() for _ in plan.layout.shards]
    rounds = []
    following = [_submit(context, task)[1] for task in plan.tasks]
    for _ in range(_ROUNDS):
        # new objects each time, as in a run, because pages that a reader has not touched cost page faults
        refs = following
        ray.wait(refs, num_returns=len(refs), fetch_local=False)
        following = [_submit(context, task)[1] for task in plan.tasks]
        calls = zip(readers, plan.layout.shards, strict=True)
        rounds.append(
            list(chain(*ray.get([reader.place.remote(plan.layout, shard, refs) for reader, shard in calls])))
        )
    return sum(statistics.median(times) for times in zip(*rounds, strict=True))


class _Reader:
    def __init__(self) -> None:
        self._pool = BufferPool(2**27)

    def place(self, layout: Any, shard: int, refs: list[Any]) -> list[float]:
        """Place all runs of a shard one after another; returns the core seconds of each."""
        import ray

        from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows

        map_outputs, seconds = MapOutputs(chain.from_iterable(ray.get(refs))), []
        for run in layout.runs(shard):
            began = time.thread_time()
            place_rows(map_outputs, run.index, run.rows, map_outputs[0].schema, self._pool)
            seconds.append(time.thread_time() - began)
        return seconds


def start() -> Callable[[tuple[list[str], int]], dict[str, float]]:
    return lambda request: measure_workers(*request)

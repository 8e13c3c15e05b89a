"""The systems of ``shapes``, ``cores`` and ``observability``, each in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow.parquet as pq

import windrow
from bench.system.machine import count_cores
from bench.system.processes import read_tree_cpu_seconds
from bench.system.ray_cluster import start_ray

BATCH_ROWS = 8_192
EXECUTORS = ("threads", "ray")
# these touch memory for the first time: two windows are under way from the second epoch on
_WARM_EPOCHS = 2

# takes what it wants of an epoch
Consume = Callable[[windrow.Epoch], Any]

# part of the command line of an actor's process
TRAINER_COMMAND = "ray::_Trainer"


def count_rows(epoch: windrow.Epoch) -> int:
    batches = epoch.iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow")
    return sum(batch.num_rows for batch in batches)


class Trainer:
    def __init__(self) -> None:
        self._epochs: Iterator[windrow.Epoch] | None = None

    def read(self, shard: windrow.Shard, epochs: int, consume: Consume) -> tuple[float, Any]:
        """Read some epochs; returns the time at which the last one ended, and what its consumer returned."""
        if self._epochs is None:
            self._epochs = shard.iter_epochs()
        consumed = None
        for _ in range(epochs):
            consumed = consume(next(self._epochs))
        return time.time(), consumed

    def close(self, shard: windrow.Shard) -> None:
        self._epochs = None
        shard.close()


class _Threads:
    handles = None

    def __init__(self, trainers: int) -> None:
        self._trainers = [Trainer() for _ in range(trainers)]

    def read(
        self, shards: Sequence[windrow.Shard], epochs: int, consume: Consume = count_rows
    ) -> list[tuple[float, Any]]:
        with ThreadPoolExecutor(len(shards)) as pool:
            return list(pool.map(lambda one, shard: one.read(shard, epochs, consume), self._trainers, shards))

    def close(self, shards: Sequence[windrow.Shard]) -> None:
        for trainer, shard in zip(self._trainers, shards, strict=True):
            trainer.close(shard)

    def cpu_seconds(self) -> float:
        return time.process_time()


class _Actors:
    def __init__(self, trainers: int) -> None:
        import ray

        # the name tells these processes from others
        actor = ray.remote(num_cpus=0)(type("_Trainer", (Trainer,), {}))
        self.handles: Any = [actor.remote() for _ in range(trainers)]

    def read(
        self, shards: Sequence[windrow.Shard], epochs: int, consume: Consume = count_rows
    ) -> list[tuple[float, Any]]:
        import ray

        pairs = zip(self.handles, shards, strict=True)
        return list(ray.get([handle.read.remote(shard, epochs, consume) for handle, shard in pairs]))

    def close(self, shards: Sequence[windrow.Shard]) -> None:
        import ray

        ray.get([handle.close.remote(shard) for handle, shard in zip(self.handles, shards, strict=True)])
        for handle in self.handles:
            ray.kill(handle)

    def cpu_seconds(self) -> float:
        return read_tree_cpu_seconds()


def make_trainers(executor: str, count: int) -> _Threads | _Actors:
    return _Actors(count) if executor == "ray" else _Threads(count)


def measure(request: dict[str, Any], executor: str) -> dict[str, Any]:
    """Rows, seconds and CPU seconds of an epoch, and the seconds until the plan was made.

    Times are means of some epochs: one alone can pay for what was prepared for the next.
    """
    epochs = request["epochs"]
    begin = time.perf_counter()
    # as users name it: the folder of several files
    dataset: Any = windrow.read_parquet(os.path.commonpath(request["paths"]))
    if request["window"]:
        dataset = dataset.window(bytes_per_window=request["window"])
    # the one after the last keeps prefetching as it was
    pipe = dataset.repeat(_WARM_EPOCHS + epochs + 1).random_shuffle_each_window(seed=7)
    options = {name: request[name] for name in ("profile", "memory_limit") if name in request}
    pipe = pipe.options(executor=executor, **options)
    pipe.explain(1, batch_size=BATCH_ROWS)
    planned = time.perf_counter() - begin
    trainers = make_trainers(executor, 1)
    shards = pipe.split(1, locality_hints=trainers.handles)
    try:
        ((began, _),) = trainers.read(shards, _WARM_EPOCHS)
        before = trainers.cpu_seconds()
        ((ended, rows),) = trainers.read(shards, epochs)
        spent = trainers.cpu_seconds() - before
    finally:
        trainers.close(shards)
    return {
        "rows": rows,
        "began": began,
        "seconds": (ended - began) / epochs,
        "cpu_seconds": spent / epochs,
        "plan_seconds": planned,
    }


def _decode_file(path: str) -> int:
    with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
        groups = range(file.metadata.num_row_groups)
        return sum(file.read_row_group(number, use_threads=False).num_rows for number in groups)


def _scan_files(paths: Sequence[str]) -> int:
    """Decode every row group, one thread a file."""
    with ThreadPoolExecutor(count_cores()) as threads:
        return sum(threads.map(_decode_file, paths))


def _scan_dataset(paths: Sequence[str]) -> int:
    """Decode all columns with Arrow's scanner on as many threads as there are cores."""
    import pyarrow as pa
    import pyarrow.dataset as ds

    pa.set_cpu_count(count_cores())
    return sum(batch.num_rows for batch in ds.dataset(list(paths), format="parquet").scanner().to_batches())


def _measure_scan(scan: Callable[[Sequence[str]], int], request: dict[str, Any]) -> dict[str, Any]:
    epochs, rows = request["epochs"], 0
    began, began_cpu = time.time(), time.process_time()
    for _ in range(epochs):
        rows = scan(request["paths"])
    seconds, cpu_seconds = time.time() - began, time.process_time() - began_cpu
    return {"rows": rows, "began": began, "seconds": seconds / epochs, "cpu_seconds": cpu_seconds / epochs}


def start(name: str, store_bytes: int, cores: int | None = None) -> Callable[[Any], dict[str, Any]]:
    """What measures a system, on some of the cores if their number is given."""
    if cores is not None:
        # threads and processes that start from now on inherit it
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
    if name == "scan":
        return partial(_measure_scan, _scan_files if cores is None else _scan_dataset)
    if name == "ray":
        start_ray(store_bytes, cores)
    return lambda request: measure(request, name)

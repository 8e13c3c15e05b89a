"""The systems of ``shapes``, each in a process of its own: ``python -m bench.shapes.systems NAME``.

The process reads a request a line as JSON, and prints the result as JSON.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow.parquet as pq

import windrow
from bench.system.machine import count_cores
from bench.system.processes import answer_requests, list_tree, read_cpu_seconds
from bench.system.ray_cluster import start_ray

BATCH_ROWS = 8_192
EXECUTORS = ("threads", "ray")
_OBJECT_STORE_BYTES = 2 * 10**9
# these touch memory for the first time: two windows are under way from the second epoch on
_WARM_EPOCHS = 2


@dataclass(frozen=True)
class Measured:
    """Rows, seconds and CPU seconds of an epoch, and the seconds until the pipeline was planned."""

    rows: int
    seconds: float
    cpu_seconds: float
    plan_seconds: float = 0.0


def _scan(paths: Sequence[str]) -> int:
    """Decode every row group, one thread a file, and keep nothing."""

    def read(path: str) -> int:
        with pq.ParquetFile(path, memory_map=True, pre_buffer=False) as file:
            groups = range(file.metadata.num_row_groups)
            return sum(file.read_row_group(number, use_threads=False).num_rows for number in groups)

    with ThreadPoolExecutor(count_cores()) as threads:
        return sum(threads.map(read, paths))


def _epochs(pipe: windrow.DatasetPipeline) -> Generator[int, None, None]:
    """Yield the number of rows at the end of each epoch."""
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            batches = epoch.iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow")
            yield sum(batch.num_rows for batch in batches)


def _tree_seconds() -> float:
    """CPU seconds of this process and of all below it, such as those of Ray."""
    return sum(map(read_cpu_seconds, list_tree(os.getpid())))


def _measure(request: dict[str, Any], executor: str, clock: Callable[[], float]) -> Measured:
    """The mean of some epochs: one alone can pay for what was prepared for the next."""
    paths, epochs = request["paths"], request["epochs"]
    if executor == "scan":
        return _time(lambda: _scan(paths), epochs, clock)
    begin = time.perf_counter()
    # as users name it: the folder of several files
    dataset: windrow.Dataset | windrow.DatasetPipeline = windrow.read_parquet(os.path.commonpath(paths))
    if request["window"]:
        dataset = dataset.window(bytes_per_window=request["window"])
    # the one after the last keeps prefetching as it was
    pipe = dataset.repeat(_WARM_EPOCHS + epochs + 1).random_shuffle_each_window(seed=7)
    pipe = pipe.options(
        executor=executor, profile=request.get("profile", True), memory_limit=request.get("memory_limit")
    )
    pipe.explain(batch_size=BATCH_ROWS)
    planned = time.perf_counter() - begin
    with closing(_epochs(pipe)) as rows:
        for _ in range(_WARM_EPOCHS):
            next(rows)
        return replace(_time(lambda: next(rows), epochs, clock), plan_seconds=planned)


def _time(work: Callable[[], int], times: int, clock: Callable[[], float]) -> Measured:
    begin, begin_cpu = time.perf_counter(), clock()
    rows = [work() for _ in range(times)]
    return Measured(rows[0], (time.perf_counter() - begin) / times, (clock() - begin_cpu) / times)


def _start(executor: str) -> Callable[[Any], dict[str, Any]]:
    clock = time.process_time
    if executor == "ray":
        start_ray(_OBJECT_STORE_BYTES, frees_early=False)
        clock = _tree_seconds
    return lambda request: asdict(_measure(request, executor, clock))


if __name__ == "__main__":
    answer_requests(lambda: _start(sys.argv[1]))

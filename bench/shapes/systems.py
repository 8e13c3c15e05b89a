"""The systems of ``shapes``, each in a process of its own: ``python -m bench.shapes.systems NAME``.

The process prints "{}" when it is ready, reads a request a line as JSON, and prints the result as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import pyarrow.parquet as pq

import windrow
from bench.system.machine import count_cores
from bench.system.processes import list_tree, read_cpu_seconds

BATCH_ROWS = 8_192
FORMATS = ("arrow", "numpy", "torch")
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


def _count_rows(batch: Any) -> int:
    if isinstance(batch, dict):
        column = next(iter(batch.values()))
        # lists of different lengths are values and offsets
        return len(column[1]) - 1 if isinstance(column, tuple) else len(column)
    return int(batch.num_rows)


def _epochs(
    pipe: windrow.DatasetPipeline, form: str, ragged: Mapping[str, Any] | None
) -> Generator[int, None, None]:
    """Yield the number of rows at the end of each epoch."""
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            if form == "torch":
                batches: Iterable[Any] = epoch.iter_torch_batches(batch_size=BATCH_ROWS, ragged=ragged)
            elif form == "numpy":
                batches = epoch.iter_batches(batch_size=BATCH_ROWS)
            else:
                batches = epoch.iter_batches(batch_size=BATCH_ROWS, batch_format="pyarrow")
            yield sum(map(_count_rows, batches))


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
    with closing(_epochs(pipe, request["form"], request.get("ragged"))) as rows:
        for _ in range(_WARM_EPOCHS):
            next(rows)
        return replace(_time(lambda: next(rows), epochs, clock), plan_seconds=planned)


def _time(work: Callable[[], int], times: int, clock: Callable[[], float]) -> Measured:
    begin, begin_cpu = time.perf_counter(), clock()
    rows = [work() for _ in range(times)]
    return Measured(rows[0], (time.perf_counter() - begin) / times, (clock() - begin_cpu) / times)


def main(executor: str) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what others print goes to the log
    clock = time.process_time
    if executor == "ray":
        import ray

        ray.init(address="local", object_store_memory=_OBJECT_STORE_BYTES, include_dashboard=False)
        clock = _tree_seconds
    print("{}", file=answers, flush=True)
    for line in sys.stdin:
        try:
            answer: dict[str, Any] = asdict(_measure(json.loads(line), executor, clock))
        except Exception as error:
            traceback.print_exc()
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])

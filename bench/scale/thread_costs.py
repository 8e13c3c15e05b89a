"""Unit costs on threads, measured with all cores busy with the same mix of work as in a run.

They come from the real tasks and runs of one window over real files.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pyarrow.parquet as pq

import windrow
from bench.system.machine import count_cores
from windrow.core.buffer_pool import BufferPool
from windrow.io.catalog.file_source import open_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.pipeline.plan import program
from windrow.pipeline.plan.epoch_shape import EpochCounts
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.map_task import run_task
from windrow.pipeline.tasks.task import Task, Work
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.runs import WindowRuns

T = TypeVar("T")
_ROUNDS = 6
_BATCH_ROWS = 65_536
# number of pipelines, and epochs of each, of which the last is timed; runs placed before the first batch is
# taken, as in windrow.pipeline.shard; minimum number of runs
_PIPELINES, _EPOCHS, _PLACED_AHEAD, _MIN_RUNS = 3, 3, 2, 8
_TINY_ROWS, _TINY_BATCH_ROWS = 4096, 8


@dataclass(frozen=True)
class Plan:
    """One window over all rows, assigned to the shards of one node."""

    program: Program
    tasks: tuple[Task, ...]
    layout: WindowRuns

    @property
    def decoded_bytes(self) -> int:
        return int(self.program.job.source.blocks.decoded_bytes.sum())


def make_plan(paths: Sequence[str], shards: int, batch_rows: int) -> Plan:
    program = Program(
        Job(open_files(list(paths), ParquetFormat()), WindowCut(), 1, 7), shards, False, tuple(range(shards))
    )
    counts = EpochCounts(program.shape(0, program.stored_rows))
    assignment = program.assignment(Batching(batch_rows))
    stage = counts.shape.stages[0]
    works = [Work(0, 0, part, 0, 0) for part in range(len(counts.shape.windows[0]))]
    rows = program.stored_rows
    places = program.places(
        works[0], counts, rows, assignment=assignment, destinations=(program.members,), slices=1
    )
    tasks = [program.task(work, stage, rows, places) for work in works]
    layout = places.layouts[0]
    assert isinstance(layout, WindowRuns), "the job is no mixture"
    return Plan(program, tuple(tasks), layout)


def measure_threads(paths: list[str]) -> dict[str, float]:
    """Measure the costs of decoding, of grouping, and of placing runs and handing them over.

    Tasks share caches, memory bandwidth and the GIL with placing, so both are measured together in wall-clock
    time: the core of a thread that waits for the GIL is not used by others. A run passes through
    three threads, each of which must be woken, so placing is measured in epochs that do nothing else.
    """
    plan = make_plan(paths, 1, _BATCH_ROWS)
    decode, mapped = _time_mapping(plan)
    size = plan.decoded_bytes
    return {
        # a task groups each column right after decoding it, which can be faster than decoding and keeping all columns
        "decode": min(decode, mapped) / size,
        "group": max(0.0, mapped - decode) / size,
        "put": 0.0,
        "place": _time_placing(paths, len(plan.layout.runs(0))) / size,
        "consume": 0.0,
        "task": 0.0,
        "run": 0.0,
    }


def _time_mapping(plan: Plan) -> tuple[float, float]:
    """Wall-clock seconds of all tasks: decoding only, and complete in the mix of a run."""
    pool = BufferPool(2**33)
    map_outputs = MapOutputs(map_output for task in plan.tasks for map_output in _map(plan, task, pool))
    work = _mix(plan.tasks, plan.layout.runs(0))

    def do(item: tuple[Any, Any]) -> None:
        task, run = item
        if task is not None:
            _map(plan, task, pool)
        else:
            _place(map_outputs, run, pool)

    with ThreadPoolExecutor(count_cores()) as threads:
        decode = sum(_typical(lambda: _time_all(threads, lambda task: _decode(plan, task), plan.tasks)))
        mixed = _typical(lambda: _time_all(threads, do, work))
    return decode, sum(seconds for seconds, (task, _) in zip(mixed, work, strict=True) if task is not None)


def _time_placing(paths: list[str], runs: int) -> float:
    """Core seconds of the last epoch of a run, in which no map tasks are left."""
    if runs < _MIN_RUNS:
        raise ValueError(
            f"the data has {runs} runs of {_BATCH_ROWS} rows; {_MIN_RUNS} are needed to time them"
        )
    seconds = []
    for _ in range(_PIPELINES):
        pipe = windrow.read_parquet(paths).repeat(_EPOCHS).random_shuffle_each_window(seed=7)
        with pipe.options(executor="threads", progress=False).iterator() as shard:
            for epoch in shard.iter_epochs():
                times = [_copy_keys(batch) for batch in epoch.iter_torch_batches(_BATCH_ROWS)]
        # runs placed in advance existed before the first batch was requested
        seconds.append((times[-1] - times[0]) * runs / (runs - _PLACED_AHEAD))
    return statistics.median(seconds) * count_cores()


def _copy_keys(batch: Any) -> float:
    """Copy the keys of a batch, as the benchmark's trainer does; returns the time afterwards."""
    next(iter(batch.values())).numpy().copy()
    return time.perf_counter()


def _mix(tasks: Sequence[Any], runs: Sequence[Any]) -> list[tuple[Any, Any]]:
    share = -(-len(runs) // len(tasks))
    mixed: list[tuple[Any, Any]] = []
    for number, task in enumerate(tasks):
        mixed.append((task, None))
        mixed.extend((None, run) for run in runs[number * share : (number + 1) * share])
    return mixed


def _typical(measure: Callable[[], list[float]]) -> list[float]:
    """Median seconds of each item over several rounds, after one that pays for first-touch page faults."""
    rounds = [measure() for _ in range(_ROUNDS + 1)][1:]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _time_all(threads: ThreadPoolExecutor, call: Callable[[T], Any], items: Iterable[T]) -> list[float]:
    """Seconds of each call, with all threads busy."""

    def timed(item: T) -> float:
        began = time.perf_counter()
        call(item)
        return time.perf_counter() - began

    return list(threads.map(timed, items))


def _decode(plan: Plan, task: Any) -> None:
    for address in task.addresses:
        for part in plan.program.context.reader.parts(address):
            for column in range(len(part.schema)):
                part.select([column])


def _map(plan: Plan, task: Any, pool: BufferPool) -> list[MapOutput]:
    output: Any = run_task(plan.program.context, task, None, pool)[1]
    return list(chain.from_iterable(chain.from_iterable(output)))


def _place(map_outputs: MapOutputs, run: Any, pool: BufferPool) -> Any:
    return place_rows(map_outputs, run.index, run.rows, map_outputs[0].schema, pool)


def _convert(rows: Any) -> Any:
    from windrow.pipeline.delivery.tensors.column_tensors import TensorSpec, to_tensors

    spec = TensorSpec(None, None, None, "numpy", None)
    return next(iter(to_tensors(rows, spec).values())).numpy().copy()


def time_handing(path: str) -> float:
    """Core seconds to hand a run of a few rows from the prefetch loop over a worker to the consumer."""
    run_bytes, program.RUN_BYTES = program.RUN_BYTES, 1
    try:
        return _time_tiny_runs(path, BufferPool(2**27))
    finally:
        program.RUN_BYTES = run_bytes


def _time_tiny_runs(path: str, pool: BufferPool) -> float:
    with TemporaryDirectory() as folder:
        tiny = str(Path(folder) / "tiny.parquet")
        pq.write_table(pq.ParquetFile(path).read_row_group(0).slice(0, _TINY_ROWS), tiny)
        plan = make_plan([tiny], 1, _TINY_BATCH_ROWS)
        map_outputs = MapOutputs(map_output for task in plan.tasks for map_output in _map(plan, task, pool))
        one = [
            _time_all_here(lambda run: _convert(_place(map_outputs, run, pool)), plan) for _ in range(_ROUNDS)
        ]
        pipe = windrow.read_parquet(tiny).repeat(_ROUNDS + 2).random_shuffle_each_window(seed=7)
        spent = []
        with pipe.options(executor="threads", progress=False).iterator() as shard:
            for epoch in islice(shard.iter_epochs(), _ROUNDS + 1):
                began = time.process_time()
                runs = sum(1 for _ in epoch.iter_torch_batches(_TINY_BATCH_ROWS))
                spent.append((time.process_time() - began) / runs)
    return max(0.0, statistics.median(spent[1:]) - statistics.median(one))


def _time_all_here(call: Callable[[Any], Any], plan: Plan) -> float:
    runs = plan.layout.runs(0)
    began = time.process_time()
    for run in runs:
        call(run)
    return (time.process_time() - began) / len(runs)


def start() -> Callable[[list[str]], dict[str, float]]:
    return measure_threads

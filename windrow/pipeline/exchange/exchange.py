"""`Exchange`: moves rows between blocks, once, in bounded memory.

1. Where partitions are ranges of keys, samples of the keys are read first.
2. Map tasks read and transform a few adjacent blocks each, divide the rows into partitions and spill the pieces:
   to files on threads, to the object store on Ray.

The partitions are then the blocks of a source: reading one merges its pieces. Tasks and partitions are planned from
the sizes that the source states, so the result depends neither on the executor nor on the machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.chosen_rows import take_rows
from windrow.core.source import prepare_source
from windrow.pipeline.exchange.derived_source import Parent, ParentReader
from windrow.pipeline.exchange.operations import Divided, MapTask, Operation
from windrow.pipeline.exchange.spilled_pieces import (
    FileSpill,
    Spilled,
    make_folder,
    spill_to_file,
    stack_rows,
)
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.executors.stage_workers import running_stages
from windrow.pipeline.plan.job import Options
from windrow.pipeline.tasks.failed_rows import naming_stored_rows
from windrow.shuffle.kernels.arrow_columns import join_table, unify_dictionaries

R = TypeVar("R")

_TASK_BYTES = 64 * 2**20
# a task holds its rows as read, in their new order, and their keys
_COPIES = 3
# Samples of all blocks together for each partition: the largest of a hundred then has about 1.4 times the mean.
_SAMPLES_PER_PARTITION = 64
_MIN_SAMPLES = 16
# With transforms, which have to run on whole blocks, not every block is sampled.
_SAMPLED_TASKS = 128


def _divide(reader: ParentReader, operation: Operation, task: MapTask) -> Divided:
    """Run a map task."""
    names = operation.columns
    tables = [
        reader.read(address) if names is None else reader.read_columns(address, names)
        for address in task.addresses
    ]
    table = pa.concat_tables(tables)
    del tables
    # record batches of a file share a dictionary; one array a column is gathered faster
    table = join_table(table)
    divided = operation.divide(table, task)
    del table
    return Divided(unify_dictionaries(divided.table), divided.cuts)


def _divide_to_file(
    divide: Callable[[MapTask], Divided], folder: str, call: str, task: MapTask
) -> NDArray[np.int64]:
    return spill_to_file(divide(task), folder, task.number, call)


def _sample(
    reader: ParentReader, names: tuple[str, ...], samples: int, task: MapTask
) -> tuple[pa.Table, float]:
    """Read evenly spaced keys of a task's blocks, and how many rows each stands for."""
    tables = [reader.read_columns(address, names) for address in task.addresses]
    table = join_table(pa.concat_tables(tables))
    count = min(samples, table.num_rows)
    places = (2 * np.arange(count) + 1) * table.num_rows // max(1, 2 * count)
    return take_rows(table, places).combine_chunks(), table.num_rows / max(1, count)


class Exchange:
    """Runs an operation at the first need, once in this process."""

    def __init__(
        self,
        parent: Parent,
        plan: Callable[[Parent], Operation],
        options: Options,
        call: str,
        done: tuple[Operation, Spilled] | None = None,
    ) -> None:
        self._parent = parent
        self._plan = plan
        self._options = options
        self._call = call
        self._lock = threading.Lock()
        self._done = done

    def __reduce__(self) -> tuple[Any, ...]:
        done = self._done
        # Ray's references mean nothing to processes outside its session, which run the exchange again
        kept = done if done is not None and done[1].is_portable else None
        return Exchange, (self._parent, self._plan, self._options, self._call, kept)

    def run(self) -> Spilled:
        """Return the spilled pieces; the first call makes them."""
        with self._lock:
            if self._done is None:
                self._done = self._run()
            return self._done[1]

    def _run(self) -> tuple[Operation, Spilled]:
        parent = self._parent
        prepare_source(parent.source)
        running = running_stages(parent.reader, on_ray=self._is_on_ray())
        with naming_stored_rows(parent.source), running as reader:
            return self._run_with(reader)

    def _run_with(self, reader: ParentReader) -> tuple[Operation, Spilled]:
        parent = self._parent
        operation = self._plan(parent)
        tasks = plan_map_tasks(parent, counts_rows=operation.counts_rows)
        if operation.sampled_columns:
            operation = self._sample(reader, operation, tasks)
        divide = partial(_divide, reader, operation)
        if self._is_on_ray():
            from windrow.pipeline.exchange.spilled_objects import spill_on_ray

            return operation, spill_on_ray(divide, tasks, operation.partitions, parent)
        folder = make_folder(self._options.cache_dir, self._call)
        rows = self._call_all(partial(_divide_to_file, divide, folder.path, self._call), tasks)
        return operation, FileSpill(folder, stack_rows(rows, operation.partitions))

    def _sample(self, reader: ParentReader, operation: Operation, tasks: Sequence[MapTask]) -> Operation:
        if self._parent.maps and len(tasks) > _SAMPLED_TASKS:
            tasks = [tasks[at * len(tasks) // _SAMPLED_TASKS] for at in range(_SAMPLED_TASKS)]
        samples = max(_MIN_SAMPLES, -(-_SAMPLES_PER_PARTITION * operation.partitions // max(1, len(tasks))))
        found = self._call_all(partial(_sample, reader, operation.sampled_columns, samples), tasks)
        if not found:
            return operation
        weights = np.concatenate([np.full(table.num_rows, weight) for table, weight in found])
        return operation.with_samples(pa.concat_tables([table for table, _ in found]), weights)

    def _call_all(self, call: Callable[[MapTask], R], tasks: Sequence[MapTask]) -> list[R]:
        """Call a function for every task on the executor, in parallel as far as memory allows."""
        if self._is_on_ray():
            from windrow.pipeline.exchange.spilled_objects import call_tasks

            return call_tasks(call, tasks, self._parent)
        resources = resolve_executor(self._options.executor).resources()
        memory = self._options.memory_bytes or resources.memory_bytes
        sizes = self._parent.source.blocks.memory_bytes
        task_bytes = _COPIES * max(_TASK_BYTES, int(sizes.max(initial=0)))
        workers = max(1, min(resources.workers, memory // task_bytes))
        threads = ThreadPoolExecutor(workers, thread_name_prefix="windrow-exchange")
        try:
            return list(threads.map(call, tasks))
        finally:
            # wait for running tasks, so that nothing is written after the error was raised
            threads.shutdown(cancel_futures=True)

    def _is_on_ray(self) -> bool:
        return resolve_executor(self._options.executor).name == "ray"


def plan_map_tasks(parent: Parent, *, counts_rows: bool) -> list[MapTask]:
    """Join adjacent blocks into tasks of about 64 MiB; pure, unless rows have to be counted."""
    blocks = parent.source.blocks
    spans: list[list[int]] = []
    size = 0
    for block in np.flatnonzero(blocks.rows).tolist():
        added = int(blocks.memory_bytes[block])
        if not spans or size + added > _TASK_BYTES:
            spans.append([])
            size = 0
        spans[-1].append(block)
        size += added
    firsts = np.append(0, np.cumsum(parent.row_counts)) if counts_rows else np.zeros(len(blocks.rows) + 1)
    return [
        MapTask(number, len(spans), parent.source.addresses(span), int(firsts[span[0]]))
        for number, span in enumerate(spans)
    ]

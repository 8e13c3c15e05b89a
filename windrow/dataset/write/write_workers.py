"""Where the parts of a write are made: threads, with worker processes for pools, or tasks and actors on Ray.

The first rows, whose columns and types decide whether a format can store them, are transformed there too, so that a
class is not made once more in this process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa

from windrow.core.machine import available_cores
from windrow.core.source import BlockAddress, BlockReader, Source
from windrow.core.tracebacks import trims_traceback
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.executors.processes.stages import end_processes, start_processes
from windrow.pipeline.executors.stage_workers import running_stages
from windrow.pipeline.plan.head import find_schema, read_first_rows
from windrow.pipeline.tasks.actor_pool import ActorPool
from windrow.pipeline.tasks.map_batches import MapBatches, StagedCall
from windrow.pipeline.tasks.transforms import FailedRows

T = TypeVar("T")
R = TypeVar("R")


class Workers(Protocol):
    """What runs the calls of a write."""

    def call(
        self, call: StagedCall[T, R], arguments: Sequence[T], describe: Callable[[T], str]
    ) -> Sequence[R]:
        """The result of each argument, in order."""


@contextmanager
def open_workers(plan: LogicalPlan, reader: BlockReader, part_bytes: int) -> Iterator[Workers]:
    """The workers of the chosen executor inside the with block, in parallel as far as memory allows.

    ``reader`` is the one that calls have, and ``part_bytes`` the memory that a call needs.
    """
    executor = resolve_executor(plan.options.executor)
    on_ray = executor.name == "ray"
    with running_stages(reader, on_ray=on_ray) as running:
        if on_ray:
            yield _RayWorkers(running)
            return
        resources = executor.resources()
        memory = plan.options.memory_bytes or resources.memory_bytes
        count = max(1, min(resources.workers, memory // max(1, part_bytes)))
        maps = start_processes(plan.maps, available_cores())
        threads = ThreadPoolExecutor(count, thread_name_prefix="windrow-write")
        try:
            yield _ThreadWorkers(running, maps, threads)
        finally:
            threads.shutdown(cancel_futures=True)
            end_processes(maps)


@dataclass(frozen=True)
class _ThreadWorkers:
    """Threads that stay from one call to the next, as the objects of classes do that they make."""

    reader: BlockReader
    maps: tuple[MapBatches, ...]
    threads: ThreadPoolExecutor

    def call(
        self, call: StagedCall[T, R], arguments: Sequence[T], describe: Callable[[T], str]
    ) -> Sequence[R]:
        function = replace(call, reader=self.reader, maps=self.maps)
        futures = [self.threads.submit(function, argument) for argument in arguments]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            # so that nothing is written after the error was raised
            wait(futures)
            raise


@dataclass(frozen=True)
class _RayWorkers:
    """Tasks on Ray; pools of actors live as long as a call."""

    reader: BlockReader

    def call(
        self, call: StagedCall[T, R], arguments: Sequence[T], describe: Callable[[T], str]
    ) -> Sequence[R]:
        from windrow.pipeline.executors.ray.data.remote_calls import call_stages_on_ray

        return call_stages_on_ray(replace(call, reader=self.reader), arguments, describe)


@dataclass(frozen=True)
class _FirstRow(StagedCall[Sequence[BlockAddress], pa.Schema | None]):
    """The call that finds the columns and types of the first row after transforms."""

    seed: int
    skips_failed: bool

    def __call__(self, addresses: Sequence[BlockAddress]) -> pa.Schema | None:
        """Return the schema of the first row; None if there is none."""
        failed = FailedRows() if self.skips_failed else None
        found = read_first_rows(self.reader, addresses, self.maps, 1, self.seed, failed)
        return None if found is None else found.schema


@trims_traceback
def find_written_schema(
    plan: LogicalPlan, source: Source, workers: Workers, *, skips_failed: bool
) -> pa.Schema:
    """Return the schema after transforms, taken from their first rows, which the workers of the write make."""
    if not plan.maps or plan.packing is not None:
        return find_schema(plan.job(), skips_failed=skips_failed)
    # on Ray, one actor is enough for it
    maps = tuple(
        stage if stage.pool is None else replace(stage, compute=ActorPool(size=1)) for stage in plan.maps
    )
    call = _FirstRow(source.reader, maps, plan.seed or 0, skips_failed)
    addresses = source.addresses(np.flatnonzero(source.blocks.rows).tolist())
    (schema,) = workers.call(call, [addresses], lambda _: f"the first rows of {source!r}")
    return source.schema if schema is None else schema

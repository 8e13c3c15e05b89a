"""Runs the pools of transforms for the time of some calls, in which blocks of derived sources are read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from windrow.core.machine import available_cores
from windrow.core.source import with_stages
from windrow.pipeline.executors.processes.stages import end_processes, start_processes
from windrow.pipeline.tasks.map_batches import MapBatches


@contextmanager
def running_stages(reader: Any, *, on_ray: bool) -> Iterator[Any]:
    """The same reader, whose transforms with a pool have their workers inside the with block."""
    started: list[MapBatches] = []
    if on_ray:
        from windrow.pipeline.executors.ray.data.remote_calls import start_call_pools
        from windrow.pipeline.executors.ray.pools import end_pools

        begin, end = partial(start_call_pools, reader=reader), end_pools
    else:
        begin, end = partial(start_processes, cores=available_cores()), end_processes

    def start(stages: tuple[MapBatches, ...]) -> tuple[MapBatches, ...]:
        found = begin(stages)
        started.extend(found)
        return found

    try:
        yield with_stages(reader, start)
    finally:
        end(started)

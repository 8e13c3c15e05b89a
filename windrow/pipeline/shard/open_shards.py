"""Makes the shards of a job: all of them, one of this process's own run, or one of a run that processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.executors.base import Session
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.plan.job import Job, Launch
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.shard_assignment import Equal, check_equal

__all__ = ["open_shard", "open_shards"]


def open_shards(
    job: Job,
    shards: int,
    *,
    equal: Equal = False,
    locality_hints: Sequence[Any] | None = None,
    start: Cursor = Cursor(),
) -> list[Shard]:
    """Make all shards of a job, served by one shared coordinator."""
    program = Program(job, shards, check_equal(equal), tuple(range(shards)))
    session = resolve_executor(job.options.executor).session(program, locality_hints)
    return [Shard(program, session, shard, start) for shard in range(shards)]


def open_shard(
    job: Job,
    *,
    rank: int,
    world_size: int,
    equal: Equal = False,
    start: Cursor = Cursor(),
    sessions: Callable[[Program], Session] | None = None,
) -> Shard:
    """Make one shard of a job: of a run that processes share, from ``sessions``, or of this process's own."""
    if sessions is not None:
        job = replace(job, launch=Launch(shared=True))
        program = Program(job, world_size, check_equal(equal), tuple(range(world_size)))
        return Shard(program, sessions(program), rank, start)
    program = Program(job, world_size, check_equal(equal), (rank,))
    session = resolve_executor(job.options.executor).session(program, None)
    return Shard(program, session, rank, start)

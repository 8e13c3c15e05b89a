"""Makes the shards of a job: all of them, one of this process's own run, or one of a run that processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from windrow.pipeline.executors.base import Session
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job, Launch
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.run_record import LatestRun, RunRecord
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.shard_assignment import Equal, check_equal


def open_shards(
    job: Job,
    shards: int,
    *,
    equal: Equal = False,
    locality_hints: Sequence[Any] | None = None,
    start: Cursor = Cursor(),
    latest: LatestRun | None = None,
) -> list[Shard]:
    """Make all shards of a job, served by one shared coordinator; ``latest`` notes the run."""
    program = Program(job, shards, check_equal(equal), tuple(range(shards)))
    session = resolve_executor(job.options.executor).session(program, locality_hints)
    return _record([Shard(program, session, shard, start) for shard in range(shards)], session, latest)


def open_shard(
    job: Job,
    *,
    rank: int,
    world_size: int,
    equal: Equal = False,
    start: Cursor = Cursor(),
    sessions: Callable[[Program], Session] | None = None,
    latest: LatestRun | None = None,
) -> Shard:
    """Make one shard of a job: of a run that processes share, from ``sessions``, or of this process's own."""
    if sessions is not None:
        job = replace(job, launch=Launch(shared=True))
        program = Program(job, world_size, check_equal(equal), tuple(range(world_size)))
        session = sessions(program)
    else:
        program = Program(job, world_size, check_equal(equal), (rank,))
        session = resolve_executor(job.options.executor).session(program, None)
    return _record([Shard(program, session, rank, start)], session, latest)[0]


def _record(shards: list[Shard], session: Session, latest: LatestRun | None) -> list[Shard]:
    """Let the shards of a run share one record of it."""
    record = RunRecord(session)
    for shard in shards:
        shard._join(record)
    if latest is not None:
        latest.begin(record)
    return shards

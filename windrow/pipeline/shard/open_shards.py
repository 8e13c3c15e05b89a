"""Makes the shards of a job: all of them, one of this process's own run, or one of a run that processes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from windrow.pipeline.executors.base import Session
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job, Launch
from windrow.pipeline.plan.mesh_place import MeshPlace
from windrow.pipeline.plan.program import Program
from windrow.pipeline.shard.base_shard import FirstReadCheck
from windrow.pipeline.shard.replica_sessions import open_replica_session, open_replica_sessions
from windrow.pipeline.shard.run_record import LatestRun, RunRecord
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.shard_assignment import Equal


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
    program = Program(job, shards, equal, tuple(range(shards)))
    session = resolve_executor(job.options.executor).session(program, locality_hints)
    return _record([Shard(program, session, shard, start) for shard in range(shards)], session, latest)


def open_replicas(
    job: Job,
    shards: int,
    replicas: int,
    *,
    equal: Equal = False,
    locality_hints: Sequence[Any] | None = None,
    start: Cursor = Cursor(),
    latest: LatestRun | None = None,
) -> list[list[Shard]]:
    """Make ``replicas`` readers of each shard of a job, which get the same rows."""
    program = Program(job, shards, equal, tuple(range(shards)), replicas=replicas)
    session = resolve_executor(job.options.executor).session(program, locality_hints)
    sessions = open_replica_sessions(program, session, [list(map(str, range(replicas)))] * shards)
    made = [[Shard(program, each, shard, start) for each in sessions] for shard in range(shards)]
    _record([each for of_shard in made for each in of_shard], session, latest)
    return made


# the session of a run that processes share, and by shard the names of its replicas; of where this process starts
SharedRuns = Callable[[Program, MeshPlace, Cursor], tuple[Session, list[list[str]]]]


def open_shard(
    job: Job,
    place: MeshPlace,
    *,
    equal: Equal = False,
    start: Cursor = Cursor(),
    sessions: SharedRuns | None = None,
    first_read: FirstReadCheck | None = None,
    latest: LatestRun | None = None,
) -> Shard:
    """Make one shard of a job: of a run that processes share, from ``sessions``, or of this process's own.

    ``first_read`` is called where the shard begins to read.
    """
    rank, world_size = place.rank, place.world_size
    if sessions is not None:
        job = replace(job, launch=Launch(shared=True))
        program = Program(job, world_size, equal, tuple(range(world_size)), replicas=place.replicas)
        session, names = sessions(program, place, start)
        if place.replicas > 1:
            session = open_replica_session(session, names, place.replica)
    else:
        program = Program(job, world_size, equal, (rank,))
        session = resolve_executor(job.options.executor).session(program, None)
    (shard,) = _record([Shard(program, session, rank, start, place.part)], session, latest)
    shard._first_read = first_read
    return shard


def _record(shards: list[Shard], session: Session, latest: LatestRun | None) -> list[Shard]:
    """Let the shards of a run share one record of it."""
    record = RunRecord(session)
    for shard in shards:
        shard._join(record)
    if latest is not None:
        latest.begin(record)
    return shards

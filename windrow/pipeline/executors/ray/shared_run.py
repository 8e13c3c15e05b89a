"""Starts a run that several processes share, through a supervisor."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from ray import cloudpickle

from windrow.core.errors import StallError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.lifeline import Channel
from windrow.pipeline.executors.ray.pickling import ON_THREADS, call_with_picklable
from windrow.pipeline.plan.program import Program

__all__ = ["start_run"]


def start_run(channel: Channel, program: Program, ips: Sequence[str], seconds: float) -> str:
    """Have the supervisor start a run for the shards of a program, on nodes with ``ips``; returns its name.

    Raises what the supervisor raises, and a `StallError` after ``seconds``.
    """
    job = program.job
    pickled = call_with_picklable(
        lambda: cloudpickle.dumps(program), (*job.before, *job.after), job.source, otherwise=ON_THREADS
    )
    name = f"windrow-run-{uuid.uuid4().hex}"
    try:
        channel.send((name, pickled, list(ips)))
        failure: Failure | None = channel.receive(seconds)
    except (EOFError, OSError) as error:
        raise StallError(
            f"the supervisor of the job did not start the run ({type(error).__name__}: {error}): see its output"
        ) from error
    if failure is not None:
        failure.rethrow()
    return name

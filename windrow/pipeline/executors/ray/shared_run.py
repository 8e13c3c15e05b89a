"""A run that processes of several launches share: started through a supervisor, found by name."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import ray
from ray import cloudpickle

from windrow.core.errors import StallError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.base import CoordinatorClient, Session
from windrow.pipeline.executors.ray.client import RaySession
from windrow.pipeline.executors.ray.connect import NAMESPACE, connect
from windrow.pipeline.executors.ray.lifeline import Channel
from windrow.pipeline.executors.ray.pickling import ON_THREADS, call_with_picklable
from windrow.pipeline.executors.ray.start_supervisor import SupervisorAddress
from windrow.pipeline.plan.program import Program

__all__ = ["SharedSession", "start_run"]


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


@dataclass(frozen=True)
class SharedSession:
    """A run on a supervisor's cluster; a process connects to Ray when it first reads a shard."""

    supervisor: SupervisorAddress
    name: str
    program: Program

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect this process to Ray, and a shard to the run."""
        at = self.supervisor
        connect(at.address, ip=at.ip if at.adds_node else "", auth_token=at.auth_token)
        try:
            coordinator = ray.get_actor(self.name, namespace=NAMESPACE)
        except ValueError as error:
            raise StallError(
                f"the run that shard {shard} shares with others has ended: the process that owned it is gone"
            ) from error
        return RaySession(coordinator, self.program).shard_client(shard, batch_rows, seed)

    def export(self, shard: int) -> Session:
        """Return this session: any process of these nodes can connect."""
        return self

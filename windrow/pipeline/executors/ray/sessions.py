"""The sessions of a job on Ray: with the coordinator's handle, or for processes that find it by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ray

from windrow.core.errors import StallError
from windrow.pipeline.executors.base import CoordinatorClient, Session
from windrow.pipeline.executors.ray.client import RayClient
from windrow.pipeline.executors.ray.connect import NAMESPACE, ClusterAddress, connect
from windrow.pipeline.executors.ray.coordinator_calls import await_answer, get_run_stats
from windrow.pipeline.executors.stall_watch import waiting_of
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.stats import RunStats

__all__ = ["RaySession", "SharedSession"]


class RaySession:
    """A job on a cluster, reached through its coordinator from any process of Ray's.

    ``held`` is what Ray needs to restart the coordinator, and has to be held by the process that started it.
    """

    def __init__(self, coordinator: Any, program: Program, name: str = "", held: Any = None) -> None:
        self._coordinator = coordinator
        self._program = program
        self._name = name
        self._held = held

    def __reduce__(self) -> tuple[Any, ...]:
        return RaySession, (self._coordinator, self._program, self._name)

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect a shard in this process."""
        return RayClient(self._coordinator, self._program, shard, batch_rows, seed)

    def run_stats(self, *, spans: bool) -> RunStats | None:
        """Statistics of the job, which the coordinator also has when every shard has been closed."""
        return get_run_stats(self._coordinator, "a process that reads no shard", spans=spans)

    def export(self, shard: int) -> Session:
        """Return this session: the coordinator serves every process."""
        return self

    def for_processes(self) -> Session:
        """A session that finds the coordinator by name: handles cannot be sent to processes outside Ray."""
        context = ray.get_runtime_context()
        return SharedSession(
            ClusterAddress(context.gcs_address), self._name, self._program, context.namespace
        )

    def for_workers(self, program: Program, shard: int) -> Session:
        """The run of the workers of all trainers; the first worker that asks starts it."""
        return self.for_processes().for_workers(program, shard)


@dataclass(frozen=True)
class SharedSession:
    """A run that any process of a node can use, found by name; a process connects to Ray when it first reads."""

    cluster: ClusterAddress
    name: str
    program: Program
    namespace: str = NAMESPACE

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect this process to Ray, and a shard to the run."""
        return RayClient(self._find_coordinator(), self.program, shard, batch_rows, seed)

    def run_stats(self, *, spans: bool) -> RunStats | None:
        """None: a process that has read nothing is not connected to Ray."""
        return None

    def export(self, shard: int) -> Session:
        """Return this session: any process of these nodes can connect."""
        return self

    def for_processes(self) -> Session:
        """Return this session."""
        return self

    def for_workers(self, program: Program, shard: int) -> Session:
        """The run of the workers of all trainers; the first worker that asks starts it."""
        answer = self._find_coordinator().divide.remote(program.workers)
        name = await_answer(answer, "a DataLoader worker", waiting_of(program.job.options))
        return SharedSession(self.cluster, name, program, self.namespace)

    def _find_coordinator(self) -> Any:
        connect(self.cluster)
        try:
            return ray.get_actor(self.name, namespace=self.namespace)
        except ValueError as error:
            raise StallError(
                "the run that this process shares with others has ended: the process that owned it is gone"
            ) from error

"""Replicas on Ray: one host actor for each shard and node, which the first replica there starts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.core.errors import StallError
from windrow.pipeline.executors.base import CoordinatorClient, Session
from windrow.pipeline.executors.ray.cluster import this_node
from windrow.pipeline.executors.replicas.client import ReplicaClient
from windrow.pipeline.executors.replicas.host import ReplicaHost
from windrow.pipeline.executors.replicas.sockets import HostAddress, HostServer, SocketConnection
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.stats import RunStats

__all__ = ["RayReplicaSession"]

MakeHost = Callable[[Program, Session, int, Sequence[str], "int | None"], ReplicaHost]

_START_SECONDS = 120.0
# a host without replicas waits this long for one that returns
_ALONE_SECONDS = 120.0
_LOOK_SECONDS = 5.0


class _HostActor:
    """A host in a process of its own. It ends with its last replica."""

    def __init__(
        self,
        make: MakeHost,
        program: Program,
        session: Session,
        shard: int,
        names: Sequence[str],
        seed: int | None,
    ) -> None:
        self._host = make(program, session, shard, names, seed)
        self._server = HostServer(self._host)
        threading.Thread(target=self._end_when_alone, daemon=True).start()

    def address(self) -> HostAddress:
        """Where replicas of this node reach it."""
        return self._server.address

    def _end_when_alone(self) -> None:
        since = time.monotonic()
        while True:
            time.sleep(_LOOK_SECONDS)
            if self._server.readers:
                since = time.monotonic()
            elif time.monotonic() - since >= (_LOOK_SECONDS if self._host.is_closed else _ALONE_SECONDS):
                self._server.close()
                os._exit(0)


@dataclass(frozen=True)
class RayReplicaSession:
    """The session of one replica of each shard, in any process of Ray's."""

    session: Session
    program: Program
    make: MakeHost
    name: str
    names: tuple[str, ...]
    replica: int

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect to the host of a shard on this node; start it if there is none."""
        session = self.session.export(shard)
        # connects a process that a launcher has started
        connect = getattr(session, "connect", None)
        if connect is not None:
            connect()
        node = this_node()
        remote: Any = ray.remote(_HostActor)
        host = remote.options(
            name=f"{self.name}-{shard}-{node}",
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_concurrency=8,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        ).remote(self.make, self.program, session, shard, self.names, seed)
        try:
            address = ray.get(host.address.remote(), timeout=_START_SECONDS)
        except ray.exceptions.RayError as error:
            raise StallError(
                f"shard {shard}: the process that reads for its replicas on node {node} did not start: {error}"
            ) from error
        return ReplicaClient(SocketConnection(address, self.replica), shard, str(self.replica))

    def run_stats(self, *, spans: bool) -> RunStats | None:
        return self.session.run_stats(spans=spans)

    def export(self, shard: int) -> Session:
        return self

    def for_processes(self) -> Session:
        return self.session.for_processes()

    def for_workers(self, program: Program, shard: int) -> Session:
        return self.session.for_workers(program, shard)

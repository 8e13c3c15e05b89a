"""Replicas on Ray: one host actor for each shard and node, which the first replica there starts."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.core.errors import StallError
from windrow.pipeline.executors.base import CoordinatorClient, Session
from windrow.pipeline.executors.ray.cluster import (
    NAMESPACE,
    ClusterAddress,
    connect,
    session_folder,
    this_node,
)
from windrow.pipeline.executors.ray.replica_places import NOWHERE, HostMeeting
from windrow.pipeline.executors.replicas.client import HostConnection, ReplicaClient
from windrow.pipeline.executors.replicas.host import ReplicaHost
from windrow.pipeline.executors.replicas.reconnecting import ReconnectingConnection
from windrow.pipeline.executors.replicas.sockets import HostAddress, HostServer, SocketConnection
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.stats import RunStats


class MakeHost(Protocol):
    """Makes a shard's host in this process; ``narrows``: it gets only what its replicas want of the rows."""

    def __call__(
        self,
        program: Program,
        session: Session,
        shard: int,
        names: Sequence[str],
        seed: int | None,
        *,
        narrows: bool,
    ) -> ReplicaHost: ...


_START_SECONDS = 120.0
# a host without replicas waits this long for one that returns
_ALONE_SECONDS = 120.0
# and where all have closed, or read elsewhere, this long
_CLOSED_SECONDS = 5.0
_LOOK_SECONDS = 0.25
# hosts tell the coordinator again which replicas they have: it may have restarted
_MEET_SECONDS = 5.0


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
        several_nodes = sum(node["Alive"] for node in ray.nodes()) > 1
        self._host = make(program, session, shard, names, seed, narrows=several_nodes)
        self._server = HostServer(self._host, session_folder())
        self._meeting = HostMeeting(session, self._host, shard, this_node())
        threading.Thread(target=self._watch, daemon=True).start()

    def address(self) -> HostAddress:
        """Where replicas of this node reach it."""
        return self._server.address

    def _watch(self) -> None:
        """Learn which replicas read on other nodes, and end when none is left here."""
        alone_since = met_at = time.monotonic()
        while True:
            time.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            if self._meeting.is_due or now - met_at >= _MEET_SECONDS:
                met_at = now
                self._meeting.meet()
            if self._server.readers and not self._host.is_closed:
                alone_since = now
            elif now - alone_since >= (_CLOSED_SECONDS if self._host.is_closed else _ALONE_SECONDS):
                self._server.close()
                self._host.end()
                self._meeting.end()
                ray.kill(ray.get_runtime_context().current_actor)
                return


@dataclass(frozen=True)
class RayReplicaSession(Session):
    """The session of one replica of each shard, in any process of Ray's; ``cluster``: or any that can connect to it."""

    session: Session
    program: Program
    make: MakeHost
    run_name: str
    # by shard, those of all its replicas
    names: Sequence[Sequence[str]]
    replica: int
    cluster: ClusterAddress | None = None

    def shard_client(self, shard: int, batch_rows: int, seed: int | None) -> CoordinatorClient:
        """Connect to the host of a shard on this node; start it if there is none."""
        if self.cluster is not None:
            connect(self.cluster)
        name = self.replica_name(shard)

        def connect_to_host() -> HostConnection:
            return SocketConnection(self._find_host(shard, seed), self.replica, name)

        return ReplicaClient(ReconnectingConnection(connect_to_host), shard, name)

    def _find_host(self, shard: int, seed: int | None) -> HostAddress:
        """The address of the host of a shard on this node, which is started if there is none."""
        node = this_node()
        remote: Any = ray.remote(_HostActor)
        options: dict[str, Any] = {
            "name": f"{self.run_name}-{shard}-{node}",
            "namespace": NAMESPACE,
            "get_if_exists": True,
            # no replica owns it: it serves the others when one of them ends
            "lifetime": "detached",
            "num_cpus": 0,
            "max_concurrency": 8,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(node, soft=False),
        }
        until = time.monotonic() + _START_SECONDS
        while True:
            try:
                host = remote.options(**options).remote(
                    self.make, self.program, self.session.export(shard), shard, self.names[shard], seed
                )
                address: HostAddress = ray.get(
                    host.address.remote(), timeout=max(1.0, until - time.monotonic())
                )
                if os.path.exists(address.path):
                    return address
            except ray.exceptions.RayError as error:
                # one that has just ended can still have the name
                has_ended = isinstance(error, ray.exceptions.RayActorError) and not error.actor_init_failed
                if not has_ended or time.monotonic() > until:
                    raise StallError(
                        f"shard {shard}: the process that reads for its replicas on node {node} did not start: {error}"
                    ) from error
            # it has just ended, or is about to
            if time.monotonic() > until:
                raise StallError(
                    f"shard {shard}: the process that reads for its replicas on node {node} ends"
                )
            time.sleep(_LOOK_SECONDS)

    def note_unread(self, shard: int) -> None:
        """Tell the other replicas of a shard that this one closes without having read: they need not wait for it."""
        if self.cluster is None and not ray.is_initialized():
            return
        # where the run has ended, or its coordinator restarts, none of them is waiting, or waits until a time limit
        with suppress(ray.exceptions.RayError, StallError):
            session: Any = self.session
            session.meet_replicas(shard, NOWHERE, [self.replica])

    def replica_name(self, shard: int) -> str:
        return self.names[shard][self.replica]

    def run_stats(self, *, spans: bool) -> RunStats | None:
        return self.session.run_stats(spans=spans)

    def for_processes(self) -> Session:
        """The same for processes outside Ray, which connect to the cluster of the session that they get."""
        session: Any = self.session.for_processes()
        return session.for_replica(self.make, self.names, self.replica)

    def for_workers(self, program: Program, shard: int) -> Session:
        """The replicas of the run of the workers of all trainers."""
        workers: Any = self.session.for_workers(program, shard)
        return workers.for_replica(self.make, [*self.names] * program.workers, self.replica)

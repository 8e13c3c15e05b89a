"""The node that each replica of a shard reads on: hosts tell it to the coordinator, and learn that of the others."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import ray

from windrow.core.errors import StallError
from windrow.pipeline.executors.ray.cluster import ShardNodes, expected_clients
from windrow.pipeline.executors.replicas.host import ReplicaHost

# the node of a replica that has closed before it read
NOWHERE = ""


class ReplicaPlaces:
    """What the coordinator knows; ``nodes`` are those that each shard is expected to be read on."""

    def __init__(self, nodes: ShardNodes, replicas: int) -> None:
        self._replicas = replicas
        self._shards = len(nodes)
        self._clients = expected_clients(nodes)
        self._places: dict[int, dict[int, str]] = {}
        # clients that `take_unread` has returned
        self._taken: set[int] = set()

    def meet(self, shard: int, node: str, replicas: Sequence[int]) -> dict[int, str]:
        """Note which replicas of a shard read on a node; returns the node of each that is known."""
        places = self._places.setdefault(shard, {})
        places.update(dict.fromkeys(replicas, node))
        return places

    def take_unread(self, shard: int) -> list[int]:
        """The clients that will not open an epoch, since no replica reads on their nodes; each is returned once."""
        places = self._places.get(shard, {})
        if len(places) < self._replicas:
            return []
        used = {*places.values()} - {NOWHERE}
        clients = {client: node for client, node in self._clients.items() if client % self._shards == shard}
        needed = {client for client, node in clients.items() if node in used}
        self._taken -= needed
        if used and not needed:
            # read on nodes that nobody named: until one opens an epoch, these stand for the shard
            return []
        found = [client for client in clients if client not in needed and client not in self._taken]
        self._taken.update(found)
        return found


class HostMeeting:
    """Keeps a host and the coordinator informed of where the replicas of a shard read."""

    def __init__(self, session: Any, host: ReplicaHost, shard: int, node: str) -> None:
        self._session = session
        self._host = host
        self._shard = shard
        self._node = node
        self._places: dict[int, str] = {}
        # the replicas that this host had at the last meeting, or before
        self._told: set[int] = set()

    @property
    def is_due(self) -> bool:
        """Whether the host waits for replicas that may read elsewhere, or has others than at the last meeting."""
        return self._host.awaits_replicas or not self._told >= {*self._host.connected, *self._host.closed}

    def meet(self) -> None:
        """Tell the coordinator which replicas this host has, and the host which of them read elsewhere."""
        here = {*self._host.connected, *self._host.closed}
        known = self._tell(self._node, self._host.connected)
        if known is None:
            return
        # A replica may have closed before the first meeting. Hosts on other nodes wait until they hear of it.
        missed = [number for number in self._closed_here() if number not in known]
        if missed:
            known = self._tell(self._node, missed) or known
        self._told = here
        # a coordinator that has restarted hears of replicas that read from their hosts
        unread = [number for number, node in self._places.items() if node == NOWHERE and number not in known]
        if unread:
            known = self._tell(NOWHERE, unread) or known
        self._places = known
        self._host.note_elsewhere([number for number, node in known.items() if node != self._node])

    def end(self) -> None:
        """Tell the coordinator which replicas have closed here, if the host has not been its client."""
        closed = self._closed_here()
        if closed and not self._host.was_opened:
            self._tell(NOWHERE, closed)

    def _closed_here(self) -> list[int]:
        """The replicas that have closed here, and have not begun again on another node."""
        return [number for number in self._host.closed if self._places.get(number, self._node) == self._node]

    def _tell(self, node: str, replicas: Sequence[int]) -> dict[int, str] | None:
        """The node of each replica that the coordinator knows; None while it restarts."""
        with suppress(ray.exceptions.RayError, StallError):
            return self._session.meet_replicas(self._shard, node, replicas)
        return None

"""Which supervisor a rank connects to: rank 0 starts the first one, and the first rank of each other node another."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from windrow.core.errors import StallError
from windrow.pipeline.executors.stall_watch import Waiting
from windrow.pipeline.launch.agreement import publishing_errors, read_published
from windrow.pipeline.launch.launcher import find_node
from windrow.pipeline.launch.node_addresses import ip_towards, own_ip, running_cluster
from windrow.pipeline.launch.rendezvous import Rendezvous

if TYPE_CHECKING:
    from windrow.pipeline.executors.ray.lifeline import Channel
    from windrow.pipeline.executors.ray.start_supervisor import SupervisorAddress

__all__ = ["find_supervisor", "start_head"]

_HEAD = "head"
# A supervisor that does not answer can be the one of ranks that a launcher has restarted; the new one starts.
_CONNECT_SECONDS = 120.0
_RETRY_SECONDS = 0.2


def start_head(ip: str) -> tuple[SupervisorAddress, Channel]:
    """Start the first supervisor, and connect to it."""
    from windrow.pipeline.executors.ray.start_supervisor import connect_to_supervisor, start_supervisor

    supervisor = start_supervisor(ip, address=running_cluster())
    return supervisor, connect_to_supervisor(supervisor)


def find_supervisor(
    rendezvous: Rendezvous, waiting: Waiting
) -> tuple[Rendezvous, SupervisorAddress, Channel]:
    """The supervisor of this rank, connected, and the keys at which the ranks of this start meet."""
    if rendezvous.rank == 0:
        with publishing_errors(rendezvous, _HEAD):
            supervisor, channel = start_head(own_ip(rendezvous.world_size))
        rendezvous.publish(_HEAD, {"supervisor": supervisor.to_dict(), "node": find_node()})
        return rendezvous.under(supervisor.token), supervisor, channel
    head, head_node, channel = _connect_to_head(rendezvous, waiting)
    rendezvous = rendezvous.under(head.token)
    if not head.adds_node or find_node() == head_node:
        return rendezvous, head, channel
    supervisor, own_channel = _find_on_node(rendezvous, head, waiting)
    channel.close()
    return rendezvous, supervisor, own_channel


def _connect_to_head(rendezvous: Rendezvous, waiting: Waiting) -> tuple[SupervisorAddress, str, Channel]:
    from windrow.pipeline.executors.ray.start_supervisor import SupervisorAddress, connect_to_supervisor

    rank, deadline = rendezvous.rank, time.monotonic() + _CONNECT_SECONDS
    while True:
        rendezvous.wait(
            [_HEAD], waiting, lambda: f"rank {rank} waits for rank 0 to start Ray in its first shard()"
        )
        found = read_published(rendezvous, _HEAD)
        head = SupervisorAddress(**found["supervisor"])
        try:
            return head, str(found["node"]), connect_to_supervisor(head)
        except StallError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def _find_on_node(
    rendezvous: Rendezvous, head: SupervisorAddress, waiting: Waiting
) -> tuple[SupervisorAddress, Channel]:
    """The supervisor of this node, which its first rank starts."""
    from windrow.pipeline.executors.ray.start_supervisor import (
        SupervisorAddress,
        connect_to_supervisor,
        start_supervisor,
    )

    rank, key = rendezvous.rank, f"node/{find_node()}"
    if rendezvous.is_first(f"{key}/first"):
        with publishing_errors(rendezvous, key):
            own = start_supervisor(ip_towards(head.host, head.port), head=head)
            channel = connect_to_supervisor(own)
        rendezvous.publish(key, {"supervisor": own.to_dict()})
        return own, channel
    rendezvous.wait(
        [key], waiting, lambda: f"rank {rank} waits for another rank of its node to start Ray there"
    )
    own = SupervisorAddress(**read_published(rendezvous, key)["supervisor"])
    return own, connect_to_supervisor(own)

"""Which supervisor a rank connects to, and at which address; imports Ray.

Rank 0 starts the first supervisor, and the first rank of each other node another.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import asdict

from windrow.core.errors import PlanError, StallError
from windrow.pipeline.executors.base import Waiting
from windrow.pipeline.executors.ray.lifeline import Channel
from windrow.pipeline.executors.ray.start_supervisor import (
    SupervisorAddress,
    connect_to_supervisor,
    start_supervisor,
)
from windrow.pipeline.launch.agreement import publishing_errors, read_published
from windrow.pipeline.launch.launcher import find_node, find_single_node
from windrow.pipeline.launch.rendezvous import Rendezvous

LOOPBACK = "127.0.0.1"
_HEAD = "head"
# A supervisor that does not answer can be the one of ranks that a launcher has restarted; the new one starts.
_CONNECT_SECONDS = 120.0
_RETRY_SECONDS = 0.2


def running_cluster() -> str | None:
    """The address of the Ray cluster to use: this process's, or the one that RAY_ADDRESS names."""
    ray = sys.modules.get("ray")
    if ray is not None and ray.is_initialized():
        return str(ray.get_runtime_context().gcs_address)
    address = os.environ.get("RAY_ADDRESS")
    if address and address.startswith("ray://"):
        raise PlanError(
            f"RAY_ADDRESS={address!r} is the address of a Ray client server: set it to the address of the cluster, "
            "host:port, and start the ranks on its nodes"
        )
    return address if address and address != "local" else None


def own_ip(world_size: int) -> str:
    """The address of this node, that of rank 0, for other nodes."""
    if find_single_node(world_size):
        return LOOPBACK
    name = os.environ.get("MASTER_ADDR", "")
    for host in (name, socket.gethostname()):
        try:
            ip = socket.gethostbyname(host)
            with socket.socket() as probe:
                probe.bind((ip, 0))
        except OSError:
            continue
        if not ip.startswith("127.") or host == name == "localhost":
            return ip
    return ip_towards("192.0.2.1", 9)  # reserved for documentation: nothing is sent


def ip_towards(host: str, port: int) -> str:
    """The address of this node on the route to a host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, port))
        except OSError:
            return LOOPBACK
        return str(probe.getsockname()[0])


def start_head(ip: str) -> tuple[SupervisorAddress, Channel]:
    """Start the first supervisor, and connect to it."""
    supervisor = start_supervisor(ip, address=running_cluster())
    return supervisor, connect_to_supervisor(supervisor)


def find_supervisor(
    rendezvous: Rendezvous, waiting: Waiting
) -> tuple[Rendezvous, SupervisorAddress, Channel]:
    """The supervisor of this rank, connected, and the keys at which the ranks of this start meet."""
    if rendezvous.rank == 0:
        with publishing_errors(rendezvous, _HEAD):
            supervisor, channel = start_head(own_ip(rendezvous.world_size))
        rendezvous.publish(_HEAD, {"supervisor": asdict(supervisor), "node": find_node()})
        return rendezvous.under(supervisor.token), supervisor, channel
    head, head_node, channel = _connect_to_head(rendezvous, waiting)
    rendezvous = rendezvous.under(head.token)
    if not head.adds_node or find_node() == head_node:
        return rendezvous, head, channel
    supervisor, own_channel = _find_on_node(rendezvous, head, waiting)
    channel.close()
    return rendezvous, supervisor, own_channel


def _connect_to_head(rendezvous: Rendezvous, waiting: Waiting) -> tuple[SupervisorAddress, str, Channel]:
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
    rank, key = rendezvous.rank, f"node/{find_node()}"
    if rendezvous.is_first(f"{key}/first"):
        with publishing_errors(rendezvous, key):
            own = start_supervisor(ip_towards(head.host, head.port), head=head)
            channel = connect_to_supervisor(own)
        rendezvous.publish(key, {"supervisor": asdict(own)})
        return own, channel
    rendezvous.wait(
        [key], waiting, lambda: f"rank {rank} waits for another rank of its node to start Ray there"
    )
    own = SupervisorAddress(**read_published(rendezvous, key)["supervisor"])
    return own, connect_to_supervisor(own)

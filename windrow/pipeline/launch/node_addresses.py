"""The addresses that a job's processes use: of the Ray cluster that is running already, and of this node."""

from __future__ import annotations

import os
import socket
import sys

from windrow.core.errors import PlanError
from windrow.pipeline.launch.launcher import find_single_node

__all__ = ["LOOPBACK", "ip_towards", "own_ip", "running_cluster"]

LOOPBACK = "127.0.0.1"


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

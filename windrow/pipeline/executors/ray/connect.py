"""Connects a process to a Ray cluster when it first needs one; a fork cannot use its parent's connection."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field

import ray

from windrow.core.errors import PlanError, StallError

__all__ = ["NAMESPACE", "ClusterAddress", "connect", "node_ip"]

# of the actors that processes find by name
NAMESPACE = "windrow"
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ClusterAddress:
    """What a process needs to connect to a Ray cluster."""

    # of Ray's control plane (GCS), ``host:port``
    address: str
    # of this node in the cluster, where Ray does not find it by itself
    ip: str = ""
    # Ray's token; empty: the user's
    auth_token: str = field(default="", repr=False)


class _Fork:
    """Whether this process was forked from one that was connected to Ray."""

    was_connected = False

    @classmethod
    def note(cls) -> None:
        """Called in the child of every fork."""
        cls.was_connected = ray.is_initialized()


os.register_at_fork(after_in_child=_Fork.note)


def connect(cluster: ClusterAddress) -> None:
    """Connect this process to a cluster, if it is not connected.

    Raises a `PlanError` if this process uses another cluster, or was forked from one that was connected.
    """
    address = cluster.address
    if _Fork.was_connected:
        raise PlanError(
            "this process was forked from one that is connected to Ray, which does not survive a fork: pass "
            'multiprocessing_context="spawn" (or "forkserver") to the DataLoader'
        )
    if ray.is_initialized():
        here = ray.get_runtime_context().gcs_address
        if here != address:
            raise PlanError(
                f"this process is connected to the Ray cluster at {here}, but the job's run is in the one at "
                f"{address}: call ray.shutdown() before, or ray.init() with that address"
            )
        return
    if cluster.auth_token:
        _set_token(cluster.auth_token)
    try:
        ray.init(
            address=address,
            namespace=NAMESPACE,
            log_to_driver=False,
            configure_logging=False,
            _node_ip_address=node_ip(cluster.ip),
        )
    except (ConnectionError, RuntimeError, TimeoutError, ray.exceptions.RayError) as error:
        raise StallError(
            f"this process cannot connect to the Ray cluster of the job at {address} ({error}): the cluster "
            "has ended, or a firewall separates the nodes"
        ) from error


def node_ip(ip: str) -> str | None:
    """The IP address to give to Ray, which finds its own for a node of which only loopback is known.

    Ray replaces the loopback address where a process connects to it, but before 2.55 not where a node
    starts with it, so that no process could connect to that node.
    """
    return ip if ip not in ("", _LOOPBACK) else None


def _set_token(auth_token: str) -> None:
    """Use a cluster's token; Ray reads it from the environment, and remembers what it has read."""
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = auth_token
    raylet = sys.modules["ray._raylet"]
    with suppress(AttributeError):
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()

"""The Ray cluster: connects a process when it first needs one, and queries nodes, locality hints and free CPUs."""

from __future__ import annotations

import os
import socket
import sys
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray._private import services
from ray.actor import ActorHandle

from windrow.core.errors import PlanError, StallError
from windrow.core.system.processes import call_in_forked_children
from windrow.pipeline.executors.ray.placement import Node

# of the actors that processes find by name
NAMESPACE = "windrow"
_LOOPBACK = "127.0.0.1"
_TOKEN_FILE = Path("~/.ray/auth_token")
# to a cluster on this machine
_CONNECT_SECONDS = 5.0
_MOST_DRAWN_IDS = 4096


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


call_in_forked_children(_Fork.note)


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
    _leave_ids_of_siblings()
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


def _leave_ids_of_siblings() -> None:
    """Have Ray draw other random ids in this process than in those that the same process has forked.

    A process that connects stores and removes an object with a random id. Forked processes go on with the random
    numbers of their parent: of two that connect at the same time with one id, one is ended by Ray.
    """
    for _ in range(os.getpid() % _MOST_DRAWN_IDS):
        ray.ObjectRef.from_random()


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
    _reread_environment()


def use_own_token() -> None:
    """Use this user's token, if there is one and no variable says otherwise, as Ray does for a cluster that it finds.

    For a cluster of this machine: nobody else shall get the token.
    """
    is_given = any(os.environ.get(name) for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"))
    if "RAY_AUTH_MODE" not in os.environ and (is_given or _TOKEN_FILE.expanduser().is_file()):
        os.environ["RAY_AUTH_MODE"] = "token"
        _reread_environment()


def _reread_environment() -> None:
    raylet = sys.modules["ray._raylet"]
    with suppress(AttributeError):
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


def session_folder() -> str:
    """The folder of Ray's session on this node; windrow removes it with a cluster that it has started."""
    return str(ray._private.worker.global_worker.node.get_session_dir_path())


def this_node() -> str:
    """The id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


# by shard: the nodes that it is read on, None for one that is not known
ShardNodes = tuple[tuple["str | None", ...], ...]


def resolve_hints(hints: Sequence[Any] | None, shards: int) -> ShardNodes:
    """Resolve locality hints (actor handles, node ids, None), those of a shard's replicas in a list, to node ids."""
    if hints is None:
        return ((None,),) * shards
    nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    found = []
    for hint in hints:
        of_shard = hint if isinstance(hint, (list, tuple)) else (hint,)
        resolved = dict.fromkeys(_resolve(each, nodes) for each in of_shard)
        found.append(tuple(node for node in resolved if node) or (None,))
    return tuple(found)


def expected_clients(nodes: ShardNodes) -> dict[int, str | None]:
    """The clients of a run's coordinator, by `Program.shard_of`, and the node of each."""
    shards = len(nodes)
    return {
        shard + shards * number: node
        for shard, of_shard in enumerate(nodes)
        for number, node in enumerate(of_shard)
    }


def find_client(shard: int, nodes: ShardNodes) -> int:
    """The number as a client of what reads a shard on this node; the shard's where it is not read on several nodes."""
    if not nodes:
        return shard
    here, known = this_node(), nodes[shard]
    if here in known:
        return shard + len(nodes) * known.index(here)
    # a node that nobody named: a number that no other node is likely to have
    return shard + len(nodes) * (len(known) + zlib.crc32(here.encode()))


def _resolve(hint: Any, nodes: set[str]) -> str | None:
    if hint is None:
        return None
    if isinstance(hint, ActorHandle):
        return _find_actor_node(hint)
    if isinstance(hint, str) and hint in nodes:
        return hint
    raise PlanError(
        f"locality hint {hint!r} must be an actor handle, None, or the id of a live node: "
        f"{', '.join(sorted(nodes))}"
    )


def _find_actor_node(actor: ActorHandle[Any]) -> str | None:
    """Node id of an actor; None while Ray has not placed it yet."""
    from ray._private.state import actors

    entry = actors(actor._actor_id.hex()) or {}
    return str(entry.get("Address", {}).get("NodeID") or "") or None


def find_lost_cluster() -> str | None:
    """The address of the cluster that Ray would connect to by default, if nothing listens there any more."""
    if os.environ.get("RAY_ADDRESS"):
        # the user's choice, which may be about to start
        return None
    # Ray keeps the address of the last cluster in a file that outlives a killed one
    address = services.find_bootstrap_address(None)
    if not address:
        return None
    return None if find_refusal(str(address), _CONNECT_SECONDS) is None else str(address)


def find_refusal(address: str, seconds: float) -> OSError | ValueError | None:
    """Why nothing answers at ``host:port``; None if something listens there, and a ValueError if there is no port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except (OSError, ValueError) as error:
        return error
    return None


def list_nodes() -> list[Node]:
    """The live nodes, with their CPUs and free CPUs."""
    from ray._private.state import available_resources_per_node

    free = available_resources_per_node()
    cpus = {node["NodeID"]: node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]}
    # in a cluster without CPU resources each node still has a core
    least = 0 if any(cpus.values()) else 1
    return [Node(name, max(least, int(cpu)), free.get(name, {}).get("CPU", 0)) for name, cpu in cpus.items()]


def others_hold_cpus(cpus: float) -> bool:
    """Whether actors and placement groups leave fewer than ``cpus`` CPUs of the cluster to tasks.

    The free CPUs do not answer this: windrow's own tasks hold CPUs while they wait for a worker to start.
    """
    from ray._private.state import state
    from ray.core.generated.gcs_pb2 import ActorTableData
    from ray.util.placement_group import placement_group_table

    actors = state._connect_and_get_accessor().get_actor_table(None, "ALIVE")
    held = sum(ActorTableData.FromString(actor).required_resources.get("CPU", 0.0) for actor in actors)
    groups = [group for group in placement_group_table().values() if group["state"] == "CREATED"]
    held += sum(bundle.get("CPU", 0.0) for group in groups for bundle in group["bundles"].values())
    return bool(ray.cluster_resources().get("CPU", 0.0) - held < cpus)


def format_starvation_warning() -> str:
    """Format the warning for a cluster without free CPUs, as one line."""
    cpus = ray.cluster_resources().get("CPU", 0)
    return (
        f"no CPU of the cluster is free ({cpus:g} in all): data tasks run with num_cpus=0, at most one at a time "
        "per core of a node, and compete with the processes that hold the CPUs. Give trainers num_cpus=0, "
        "pools of transforms fewer actors or num_cpus=0.5, or the cluster more CPUs"
    )

"""Queries Ray about nodes, locality hints and free CPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from windrow.core.errors import PlanError
from windrow.pipeline.executors.ray.placement import Node

__all__ = [
    "format_starvation_warning",
    "list_nodes",
    "others_hold_cpus",
    "resolve_hints",
    "starvation_warnings",
    "this_node",
]


def this_node() -> str:
    """The id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def resolve_hints(hints: Sequence[Any] | None, shards: int) -> tuple[str | None, ...]:
    """Resolve locality hints (actor handles, node ids, None) to node ids; None where unknown."""
    if hints is None:
        return (None,) * shards
    nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return tuple(_resolve(hint, nodes) for hint in hints)


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


def starvation_warnings() -> tuple[str, ...]:
    """The warning that no CPU is free, if so."""
    return () if ray.available_resources().get("CPU", 0) >= 1 else (format_starvation_warning(),)


def format_starvation_warning() -> str:
    """Format the warning for a cluster without free CPUs, as one line."""
    cpus = ray.cluster_resources().get("CPU", 0)
    return (
        f"no CPU of the cluster is free ({cpus:g} in all): data tasks run with num_cpus=0, at most one at a time "
        "per core of a node, and compete with the processes that hold the CPUs. Give trainers num_cpus=0, or "
        "the cluster more CPUs"
    )

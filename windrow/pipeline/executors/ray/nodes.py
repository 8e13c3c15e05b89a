"""Where things are on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray
from ray.actor import ActorHandle

from windrow.core.errors import PlanError

__all__ = ["find_starving", "resolve_hints", "this_node"]


def this_node() -> str:
    """The id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def resolve_hints(hints: Sequence[Any] | None, shards: int) -> tuple[str | None, ...]:
    """Turn locality hints (actor handles, node ids, None) into node ids, as far as they are known.

    Raises
    ------
    PlanError
        If a hint is something else, or names no node of the cluster.
    """
    if hints is None:
        return (None,) * shards
    nodes = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return tuple(_resolve(hint, nodes) for hint in hints)


def _resolve(hint: Any, nodes: set[str]) -> str | None:
    if hint is None:
        return None
    if isinstance(hint, ActorHandle):
        return _node_of(hint)
    if isinstance(hint, str) and hint in nodes:
        return hint
    raise PlanError(
        f"locality hint {hint!r} must be an actor handle, None, or the id of a living node: "
        f"{', '.join(sorted(nodes))}"
    )


def _node_of(actor: ActorHandle[Any]) -> str | None:
    """The node an actor lives on; None while it is being placed."""
    from ray._private.state import actors

    entry = actors(actor._actor_id.hex()) or {}
    return str(entry.get("Address", {}).get("NodeID") or "") or None


def find_starving() -> tuple[str, ...]:
    """Say, in at most one line, that nothing is left for data tasks to run on."""
    cpus = ray.cluster_resources().get("CPU", 0)
    if ray.available_resources().get("CPU", 0) >= 1:
        return ()
    return (
        f"all {cpus:g} CPUs of the cluster are taken: no data task can run before one is free. "
        "Give trainers num_cpus=0, or the cluster more CPUs",
    )

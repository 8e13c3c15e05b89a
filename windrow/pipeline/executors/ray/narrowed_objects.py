"""Map outputs on other nodes, of which only what is wanted here crosses to this node."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.wanted import Wanted
from windrow.pipeline.executors.ray.cluster import NAMESPACE, this_node
from windrow.pipeline.tasks.narrow_outputs import narrow_outputs

logger = logging.getLogger(__name__)

_LOCATE_MILLISECONDS = 10_000
# nodes that ask at once
_CALLS_AT_ONCE = 4


class Narrower:
    """Has objects narrowed where they are, by one actor on each node for all hosts of a run.

    A task for each call would need a process that is free, and map tasks keep the others busy. An actor ends with the
    host that has started it; one that others still need is then started again.
    """

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator
        self._actors: dict[str, Any] = {}

    def send(self, places: Mapping[Any, NDArray[np.int64]], wanted: Wanted) -> Mapping[Any, Any]:
        """Have objects of map outputs narrowed; returns the references of what is wanted of each.

        ``places`` has by object where its runs start in the shard's stream, as for `narrow_outputs`.
        The value is a PlanError where sequences cannot be cut. Left out are objects that are here already, or whose
        node is not known: those are fetched whole.
        """
        by_node = defaultdict(list)
        for ref, node in _find_nodes(list(places)).items():
            by_node[node].append(ref)
        found: dict[Any, Any] = {}
        for node, there in by_node.items():
            call = self._actor(node).narrow.options(num_returns=len(there))
            narrowed = call.remote(wanted, [places[ref] for ref in there], *there)
            found.update(zip(there, narrowed if len(there) > 1 else [narrowed], strict=True))
        return found

    def forget(self) -> None:
        """Find the actors again: one of them may have ended."""
        self._actors.clear()

    def _actor(self, node: str) -> Any:
        if node not in self._actors:
            remote: Any = ray.remote(_NarrowActor)
            self._actors[node] = remote.options(
                name=f"windrow-narrow-{self._coordinator._actor_id.hex()}-{node}",
                namespace=NAMESPACE,
                get_if_exists=True,
                # no CPU, since tasks may hold all of them until the consumer goes on
                num_cpus=0,
                max_concurrency=_CALLS_AT_ONCE,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            ).remote()
        return self._actors[node]


def _find_nodes(refs: Sequence[Any]) -> dict[Any, str]:
    """For each object that is on other nodes only, one of them."""
    try:
        locations = ray.experimental.get_object_locations(list(refs), timeout_ms=_LOCATE_MILLISECONDS)
    except ray.exceptions.RayError as error:
        logger.info("objects are fetched whole, since their nodes are not known: %s", error)
        return {}
    here = this_node()
    found = {}
    for ref, location in locations.items():
        nodes = location.get("node_ids") or []
        if nodes and here not in nodes:
            found[ref] = sorted(nodes)[0]
    return found


class _NarrowActor:
    """Narrows the map outputs of one node."""

    def narrow(self, wanted: Wanted, places: Sequence[NDArray[np.int64]], *objects: Any) -> Any:
        """What is wanted of each object, or the error that says why its sequences cannot be cut."""
        narrowed: list[Any] = []
        for outputs, starts in zip(objects, places, strict=True):
            try:
                narrowed.append(narrow_outputs(outputs, wanted, starts, copies=True))
            except PlanError as error:
                narrowed.append(error)
        return narrowed if len(narrowed) > 1 else narrowed[0]

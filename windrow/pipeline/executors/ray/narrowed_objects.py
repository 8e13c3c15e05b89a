"""Map outputs on other nodes, of which only what is wanted here crosses to this node."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.wanted import Wanted
from windrow.pipeline.executors.ray.cluster import this_node
from windrow.pipeline.tasks.narrow_outputs import narrow_outputs

logger = logging.getLogger(__name__)

_LOCATE_MILLISECONDS = 10_000


def narrow_remote(refs: Sequence[Any], wanted: Wanted) -> Mapping[Any, Any]:
    """Have objects of map outputs narrowed by a task on each node that has some; returns their references.

    Left out are objects that are here already, or whose node is not known: those are fetched whole.
    """
    by_node = defaultdict(list)
    for ref, node in _find_nodes(refs).items():
        by_node[node].append(ref)
    found: dict[Any, Any] = {}
    for node, there in by_node.items():
        # no CPU, since tasks may hold all of them until the consumer goes on
        task: Any = _narrow_remote.options(
            num_returns=len(there),
            name="windrow:narrow",
            scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
        )
        narrowed = task.remote(wanted, *there)
        found.update(zip(there, narrowed if len(there) > 1 else [narrowed], strict=True))
    return found


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


def _narrow(wanted: Wanted, *objects: Any) -> Any:
    narrowed: list[Any] = []
    for outputs in objects:
        try:
            narrowed.append(narrow_outputs(outputs, wanted, copies=True))
        except PlanError as error:
            narrowed.append(error)
    return narrowed if len(narrowed) > 1 else narrowed[0]


_narrow_remote: Any = ray.remote(num_cpus=0, max_retries=2)(_narrow)

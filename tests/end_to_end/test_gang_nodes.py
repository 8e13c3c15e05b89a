"""A gang on several nodes, one of which dies: all trainers go on, on the nodes that are left."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import windrow
from windrow import GangContext

pytestmark = pytest.mark.timeout(170)

ROWS, BATCH = 400, 10


def test_gang_continues_on_other_nodes_when_a_node_dies(ray_cluster: Any, tmp_path: Path) -> None:
    pipe = windrow.range(ROWS).window(blocks_per_window=2).repeat(1).random_shuffle_each_window(seed=3)
    nodes = {}
    for _ in range(3):
        node = ray_cluster.add_node(num_cpus=1, resources={"trainer": 1}, object_store_memory=100 * 2**20)
        nodes[node.node_id] = node
    ray_cluster.wait_for_nodes()
    halfway = tmp_path / "halfway"

    def train(context: GangContext) -> tuple[str, list[int]]:
        import ray

        node = ray.get_runtime_context().get_node_id()
        seen: list[int] = context.saved or []
        for batch in context.shard.iter_batches(BATCH):
            seen = seen + batch["id"].tolist()
            context.save(seen)
            if context.attempt == 0 and context.rank == 1 and len(seen) == ROWS // 4:
                halfway.write_text(node)
                time.sleep(120)
        return node, seen

    def remove_node() -> None:
        while not halfway.exists() or not halfway.read_text():
            time.sleep(0.1)
        ray_cluster.remove_node(nodes[halfway.read_text()], allow_graceful=False)

    remover = threading.Thread(target=remove_node)
    remover.start()
    with pytest.warns(RuntimeWarning, match="the process of rank 1 ended.*restart 1 of 1"):
        found = windrow.run_gang(
            train,
            2,
            dataset=pipe,
            num_cpus=0,
            resources={"trainer": 1},
            strategy="STRICT_SPREAD",
            max_restarts=1,
        )
    remover.join()
    assert sorted(row for _, seen in found for row in seen) == list(range(ROWS))
    assert {node for node, _ in found} == nodes.keys() - {halfway.read_text()}

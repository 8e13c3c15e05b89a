"""A node dies while replicas of a shard on two nodes read: the one left goes on, and one that returns gets the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import windrow
from tests.end_to_end.reading import eventually
from windrow import Shard

pytestmark = [pytest.mark.cluster, pytest.mark.nightly, pytest.mark.timeout(400)]

ROWS, BATCH, BEFORE = 24_000, 50, 60


class Trainer:
    """Reads a replica step by step."""

    def begin(self, shard: Shard, state: Any = None) -> None:
        self._shard = shard
        if state is not None:
            shard.load_state_dict(state)
        self._batches = self._read()

    def _read(self) -> Iterator[list[int]]:
        for epoch in self._shard.iter_epochs():
            for batch in epoch.iter_batches(BATCH):
                yield batch["id"].tolist()

    def take(self, steps: int | None = None) -> list[list[int]]:
        if steps is not None:
            return [next(self._batches) for _ in range(steps)]
        rest = list(self._batches)
        self._shard.close()
        return rest

    def state(self) -> Any:
        return self._shard.state_dict()


@pytest.fixture
def dying(ray_cluster: Any) -> Iterator[Any]:
    """A node that the test removes."""
    node = ray_cluster.add_node(num_cpus=1, object_store_memory=100 * 2**20)
    ray_cluster.wait_for_nodes()
    yield node
    if node in ray_cluster.worker_nodes:
        ray_cluster.remove_node(node)


def _start(node: str) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    there = NodeAffinitySchedulingStrategy(node, soft=False)
    return ray.remote(Trainer).options(num_cpus=0, scheduling_strategy=there).remote()


@pytest.mark.parametrize("kills", ["node", "node and coordinator"])
@pytest.mark.parametrize("returns", [True, False])
def test_a_node_of_replicas_dies(ray_cluster: Any, dying: Any, kills: str, returns: bool) -> None:
    import ray

    pipe = windrow.range(ROWS, block_rows=400).window(blocks_per_window=5).repeat(2)
    pipe = pipe.random_shuffle_each_window(seed=8).options(progress=False, stall_timeout=120)
    with pipe.options(executor="threads").iterator() as shard:
        expected = [
            batch["id"].tolist() for epoch in shard.iter_epochs() for batch in epoch.iter_batches(BATCH)
        ]
    own = ray.get_runtime_context().get_node_id()
    other = next(
        node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeID"] not in (own, dying.node_id)
    )
    left, lost = _start(other), _start(dying.node_id)
    [shards] = pipe.options(executor="ray").split(1, replicas=2, locality_hints=[[left, lost]])
    for trainer, shard in zip((left, lost), shards, strict=True):
        ray.get(trainer.begin.remote(shard))
    taken = ray.get([trainer.take.remote(BEFORE) for trainer in (left, lost)])
    assert taken == [expected[:BEFORE]] * 2
    state = ray.get(left.state.remote())
    session: Any = shards[0]._session
    coordinator = session.session._coordinator

    def is_acknowledged() -> bool:
        return "window 0" not in ray.get(coordinator.diagnose.remote(0))[0]

    # the host of the one left releases a window once it knows that the other reads elsewhere: before that, it would
    # wait for its return
    assert eventually(is_acknowledged, 60)
    ray_cluster.remove_node(dying, allow_graceful=False)
    if "coordinator" in kills:
        ray.kill(coordinator, no_restart=False)
    reading = [left.take.remote()]
    if returns:
        back = _start(own)
        ray.get(back.begin.remote(shards[1], state))
        reading.append(back.take.remote())
    for each in reading:
        assert ray.get(each, timeout=300) == expected[BEFORE:]

"""Laws of replicas on Ray: the same batches as the shard's, from hosts that end with their replicas, or before them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

import windrow
from tests.end_to_end.reading import eventually
from tests.laws.cases import Case
from tests.laws.replica_cases import FAULTY_CASES, MeshCase, assert_same_batches, read_mesh
from windrow.pipeline.executors.ray.cluster import NAMESPACE, this_node
from windrow.shuffle.order.epoch_plan import WindowCut

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("ray_local")]

_BLOCKS = WindowCut(blocks_per_window=2)
_MESHES = {
    "two shards, two replicas": MeshCase(
        Case((20, 0, 17, 40, 1, 9), _BLOCKS, shards=2, batch_rows=6, epochs=2), 2
    ),
    "replicas die, leave and return": MeshCase(
        Case((20,) * 8, _BLOCKS, shards=2, batch_rows=4, equal="pad", epochs=3),
        3,
        faults=((0, 1, 5, "dies"), (1, 0, 3, "closes"), (0, 0, 2, "reloads"), (1, 2, 19, "dies")),
    ),
}


@pytest.mark.parametrize("name", _MESHES)
def test_replicas_get_the_batches_of_their_shard(name: str) -> None:
    assert_same_batches(_MESHES[name], read_mesh(_MESHES[name], "ray"))


@pytest.mark.nightly
@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(FAULTY_CASES)
def test_replicas_of_any_mesh(mesh: MeshCase) -> None:
    assert_same_batches(mesh, read_mesh(mesh, "ray"))


def _hosts() -> list[str]:
    """The states of the hosts of all runs."""
    from ray._private.state import actors

    return [each["State"] for each in actors().values() if each["ActorClassName"] == "_HostActor"]


@pytest.mark.usefixtures("small_runs")
def test_a_replica_that_closes_before_it_reads_holds_no_one() -> None:
    pipe = windrow.range(20_000, block_rows=500).window(blocks_per_window=10).options(progress=False)
    pipe = pipe.repeat(2).random_shuffle_each_window(seed=3).options(executor="ray", stall_timeout=20)
    [[one, other]] = pipe.split(1, replicas=2)
    other.close()
    with one:
        rows = [batch["id"] for epoch in one.iter_epochs() for batch in epoch.iter_batches(50)]
    assert sum(map(len, rows)) == 40_000


def test_a_replica_moves_back_to_what_the_others_have_read() -> None:
    pipe = windrow.range(24, block_rows=24).window(blocks_per_window=1).repeat(2)
    pipe = pipe.random_shuffle_each_window(seed=3).options(progress=False)
    with pipe.options(executor="threads").iterator() as shard:
        expected = [batch["id"].tolist() for epoch in shard.iter_epochs() for batch in epoch.iter_batches(4)]
    [shards] = pipe.options(executor="ray").split(1, replicas=2)
    epochs = [shard.iter_epochs() for shard in shards]
    found: list[list[list[int]]] = [[], []]
    for number in range(2):
        readers = [iter(next(of_shard).iter_batches(4)) for of_shard in epochs]
        for _ in range(6 if number == 0 else 1):
            for of_replica, reader in zip(found, readers, strict=True):
                of_replica.append(next(reader)["id"].tolist())
        if number == 0:
            assert [list(reader) for reader in readers] == [[], []]
    # one loses what it has read ahead, and the other reads all the rest meanwhile
    state = shards[1].state_dict()
    readers[1].close()  # type: ignore[attr-defined]
    shards[1].load_state_dict(state)
    found[0] += [batch["id"].tolist() for batch in readers[0]]
    found[1] += [batch["id"].tolist() for epoch in shards[1].iter_epochs() for batch in epoch.iter_batches(4)]
    assert found == [expected] * 2
    for shard in shards:
        shard.close()


def test_replicas_outlive_their_host_and_hosts_end(ray_local: Any) -> None:
    pipe = windrow.range(6_000, block_rows=200).window(blocks_per_window=5).repeat(2)
    pipe = pipe.random_shuffle_each_window(seed=3).options(progress=False)
    with pipe.options(executor="threads").iterator() as shard:
        expected = [batch["id"].tolist() for epoch in shard.iter_epochs() for batch in epoch.iter_batches(50)]
    [[one, other]] = pipe.options(executor="ray").split(1, replicas=2)
    found: list[list[list[int]]] = [[], []]
    for epochs in zip(one.iter_epochs(), other.iter_epochs(), strict=True):
        for step, batches in enumerate(zip(*[epoch.iter_batches(50) for epoch in epochs], strict=True)):
            for of_replica, batch in zip(found, batches, strict=True):
                of_replica.append(batch["id"].tolist())
            if step == 40 and epochs[0].number == 0:
                name = f"{one._session.run_name}-0-{this_node()}"  # type: ignore[attr-defined]
                ray_local.kill(ray_local.get_actor(name, namespace=NAMESPACE))
    assert found == [expected] * 2
    one.close()
    other.close()
    assert eventually(lambda: "ALIVE" not in _hosts(), 60)

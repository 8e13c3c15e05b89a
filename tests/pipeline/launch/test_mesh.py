"""Places on a mesh: shard, replica and part of a sequence from a process's coordinates."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from windrow.core.errors import PlanError
from windrow.pipeline.launch.mesh import find_place
from windrow.pipeline.plan.mesh_place import MeshPlace


@dataclass
class Mesh:
    """What is read of torch's DeviceMesh."""

    shape: tuple[int, ...]
    mesh_dim_names: tuple[str, ...] | None
    at: tuple[int, ...] | None

    def get_coordinate(self) -> tuple[int, ...] | None:
        return self.at


def places(shape: tuple[int, ...], names: tuple[str, ...], **options: Any) -> list[MeshPlace]:
    coordinates = itertools.product(*map(range, shape))
    return [find_place(Mesh(shape, names, at), **options) for at in coordinates]


def test_ranks_that_differ_in_other_dimensions_are_replicas() -> None:
    found = places((2, 2, 3), ("dp_replicate", "tp", "dp_shard"))
    assert [(place.rank, place.replica) for place in found] == [
        (0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1),
        (3, 0), (4, 0), (5, 0), (3, 1), (4, 1), (5, 1),
    ]  # fmt: skip
    assert {(place.world_size, place.replicas) for place in found} == {(6, 2)}


NAMES = st.lists(st.sampled_from(["dp", "fsdp_x", "tp", "cp", "pp"]), min_size=1, max_size=4, unique=True)


@given(names=NAMES, data=st.data())
def test_every_shard_has_each_replica_once(names: list[str], data: st.DataObject) -> None:
    shape = tuple(data.draw(st.integers(1, 4)) for _ in names)
    of_data = [name for name in names if data.draw(st.booleans())]
    of_sequence = [name for name in names if name not in of_data and data.draw(st.booleans())]
    found = places(shape, tuple(names), data_dims=of_data, sequence_dims=of_sequence)
    shards, replicas = found[0].world_size, found[0].replicas
    assert shards * replicas == math.prod(shape)
    assert sorted((place.rank, place.replica) for place in found) == list(
        itertools.product(range(shards), range(replicas))
    )
    for rank in range(shards):
        parts = [place.sequence for place in found if place.rank == rank]
        assert {parts.count(part) for part in range(found[0].sequences)} == {replicas // found[0].sequences}


@pytest.mark.parametrize("name", ["dp", "dp_shard", "fsdp", "data_parallel", "batch"])
def test_data_dimensions_are_found_by_name(name: str) -> None:
    assert [place.rank for place in places((2, 2), ("tp", name))] == [0, 1, 0, 1]


def test_no_data_dimension_at_all() -> None:
    assert [(place.rank, place.replica) for place in places((3,), ("tp",), data_dims=())] == [
        (0, 0),
        (0, 1),
        (0, 2),
    ]


@pytest.mark.parametrize(
    ("mesh", "options", "message"),
    [
        (Mesh((2,), ("tp",), (0,)), {}, "'tp' begins with 'dp'.*data_dims="),
        (Mesh((2,), ("dp",), (0,)), {"data_dims": ["ddp"]}, "names 'ddp': the mesh has 'dp'"),
        (Mesh((2,), ("dp",), (0,)), {"data_dims": "dp"}, r"a sequence of names, such as \('dp',\)"),
        (Mesh((2,), ("dp",), (0,)), {"sequence_dims": ["dp"]}, "'dp' cannot be in data_dims and"),
        (Mesh((2,), ("dp",), (0,)), {"sequence_dims": ["cp"]}, "sequence_dims.*names 'cp'"),
        (Mesh((2,), None, (0,)), {}, "have no names"),
        (Mesh((2, 3), ("dp", "tp"), None), {}, r"not on the mesh of 2 x 3 devices \(dp, tp\)"),
        (4, {}, "mesh=4 is not a torch"),
    ],
)
def test_errors(mesh: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        find_place(mesh, **options)


def test_place_as_text() -> None:
    assert find_place(Mesh((2, 3), ("dp", "tp"), (1, 2))).name == "2 (dp 1 of 2, tp 2 of 3)"


def _parts(deliver: Callable[[windrow.Shard], Iterable[Any]]) -> list[list[list[int]]]:
    """What each of two context-parallel ranks gets."""
    rows = windrow.from_items([{"tokens": list(range(start, start + 8))} for start in (0, 8, 16)])
    pipe = rows.repeat(1).options(executor="threads", progress=False)
    found = []
    for index in range(2):
        mesh = Mesh((1, 2), ("dp", "cp"), (0, index))
        with pipe.shard(mesh=mesh, sequence_dims=("cp",)) as shard:
            found.append([row.tolist() for batch in deliver(shard) for row in batch["tokens"]])
    return found


def test_sequence_dimensions_give_parts() -> None:
    first = [[start + at for at in range(4)] for start in (0, 8, 16)]
    second = [[start + at for at in range(4, 8)] for start in (0, 8, 16)]
    assert _parts(lambda shard: shard.iter_batches(2)) == [first, second]
    assert _parts(lambda shard: shard.iter_torch_batches(2)) == [first, second]
    assert _parts(lambda shard: shard.as_torch_dataset(2)) == [first, second]
    with pytest.warns(RuntimeWarning, match="runs its own engine"):
        assert _parts(lambda shard: pickle.loads(pickle.dumps(shard)).iter_batches(2)) == [first, second]


def test_layout_and_columns_are_those_of_the_slice() -> None:
    sequence = windrow.SequenceSlice(layout="head_tail", columns=["tokens"])
    first, second = _parts(lambda shard: shard.iter_batches(2, sequence=sequence))
    assert first == [[start + at for at in (0, 1, 6, 7)] for start in (0, 8, 16)]
    assert second == [[start + at for at in (2, 3, 4, 5)] for start in (0, 8, 16)]


def test_one_part_is_the_whole_sequence() -> None:
    pipe = windrow.from_items([{"tokens": [3, 1, 4]}]).repeat(2).options(executor="threads", progress=False)
    mesh = Mesh((1, 1), ("dp", "cp"), (0, 0))
    with pipe.shard(mesh=mesh, sequence_dims=("cp",)) as shard:
        sequences = (None, windrow.SequenceSlice(layout="head_tail"))
        for epoch, sequence in zip(shard.iter_epochs(), sequences, strict=True):
            (batch,) = epoch.iter_batches(1, sequence=sequence)
            assert [row.tolist() for row in batch["tokens"]] == [[3, 1, 4]]
            assert [row.tolist() for row in batch["position_ids"]] == [[0, 1, 2]]


def test_columns_without_sequences_are_whole_on_every_rank() -> None:
    rows = windrow.from_items([{"tokens": [3, 1], "label": 7}]).repeat(2)
    mesh = Mesh((1, 2), ("dp", "cp"), (0, 1))
    with rows.options(executor="threads").shard(mesh=mesh, sequence_dims=("cp",)) as shard:
        epochs = shard.iter_epochs()
        (batch,) = next(epochs).iter_batches(1, columns=["label"])
        assert {name: values.tolist() for name, values in batch.items()} == {"label": [7]}
        part = windrow.SequenceSlice(columns=["label"])
        with pytest.raises(PlanError, match="'label' of type int64 has no dimension 1"):
            list(next(epochs).iter_batches(1, sequence=part))

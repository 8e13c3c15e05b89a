"""DatasetPipeline: the arguments it passes to shards, and invalid calls."""

from __future__ import annotations

import pickle
import sys
from typing import Any

import pytest

import windrow
from tests.dataset.example_sources import make_source
from windrow.core.errors import PlanError, StateError
from windrow.dataset import shard_methods
from windrow.dataset.dataset import DatasetPipeline
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.launch.attachment import FirstRead
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job


def _same(batch: Any) -> Any:
    return batch


@pytest.fixture
def pipe() -> DatasetPipeline:
    return DatasetPipeline(LogicalPlan(make_source(3, 0, 4)).repeated(2).configured(executor="threads"))


def _epochs(pipe: DatasetPipeline, *arguments: int) -> list[list[int]]:
    return [[row["x"] for row in epoch.iter_rows()] for epoch in pipe.iter_epochs(*arguments)]


def test_every_epoch_is_shuffled_differently(pipe: DatasetPipeline) -> None:
    first, second = _epochs(pipe.random_shuffle_each_window(seed=3))
    assert sorted(first) == sorted(second) == list(range(7))
    assert first != second
    assert _epochs(pipe.random_shuffle_each_window(seed=3)) == [first, second]


def test_repeat_before_and_after_window_give_the_same_order() -> None:
    plan = LogicalPlan(make_source(4, 4))
    orders = [
        DatasetPipeline(plan).repeat(2).window(blocks_per_window=1).random_shuffle_each_window(seed=3),
        DatasetPipeline(plan).window(blocks_per_window=1).random_shuffle_each_window(seed=3).repeat(2),
    ]
    first, second = (_epochs(order.options(executor="threads")) for order in orders)
    assert first == second


@pytest.mark.parametrize(("max_epoch", "epochs"), [(-1, 2), (1, 1), (2, 2), (9, 2)])
def test_max_epoch(pipe: DatasetPipeline, max_epoch: int, epochs: int) -> None:
    assert _epochs(pipe, max_epoch) == [list(range(7))] * epochs


def test_max_epoch_ends_an_endless_pipeline(pipe: DatasetPipeline) -> None:
    assert [epoch.number for epoch in pipe.repeat().iter_epochs(3)] == [0, 1, 2]


def test_split_assigns_all_rows(pipe: DatasetPipeline) -> None:
    shards = pipe.split(2, locality_hints=[None, None])
    assert [[b["x"].tolist() for b in shard.iter_batches(2)] for shard in shards] == [
        [[0, 1], [4, 5]],
        [[2, 3], [6]],
    ]
    for shard in shards:
        shard.close()


def test_iterator_and_shard(pipe: DatasetPipeline) -> None:
    with pipe.iterator() as shard:
        assert [[row["x"] for row in epoch.iter_rows()] for epoch in shard.iter_epochs()] == [
            list(range(7))
        ] * 2
    # processes that train together need equal numbers of steps, so a row is dropped by default
    with pipe.shard(rank=1, world_size=2) as shard:
        assert [b["x"].tolist() for b in shard.iter_batches(2)] == [[2, 3], [5]]
    with pipe.shard(rank=1, world_size=2, equal=False) as shard:
        assert [b["x"].tolist() for b in shard.iter_batches(2)] == [[2, 3], [6]]


def test_arguments_passed_to_open_shards(pipe: DatasetPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(shard_methods, "open_shards", lambda *args, **named: asked.append((args, named)))
    monkeypatch.setattr(shard_methods, "open_shard", lambda *args, **named: asked.append((args, named)))
    monkeypatch.setattr(shard_methods, "find_rank", lambda *_: (1, 4))
    shuffled = pipe.random_shuffle_each_window(seed=3).map_batches(_same)
    shuffled.split(2, equal="pad", locality_hints=("a", None))
    shuffled.shard()
    ((job, n), split), ((own_job, place), shard) = asked
    assert n == 2
    latest = {"latest": shuffled._latest}
    assert split == {"equal": "pad", "locality_hints": ["a", None], "start": Cursor(), **latest}
    assert (place.rank, place.world_size, place.replicas) == (1, 4, 1)
    assert isinstance(shard.pop("first_read"), FirstRead)
    assert shard == {"equal": True, "start": Cursor(), "sessions": None, **latest}
    assert isinstance(job, Job)
    assert job == own_job
    assert (job.epochs, job.seed, job.on_demand, len(job.after)) == (2, 3, False, 1)


def test_several_processes_need_an_explicit_seed(pipe: DatasetPipeline) -> None:
    drawn = pipe.random_shuffle_each_window()
    with pytest.raises(PlanError, match=r"a world of 2 needs a seed that all processes share.*seed="):
        drawn.shard(rank=0, world_size=2)
    with pytest.raises(PlanError, match="a world of 2"):
        pickle.loads(pickle.dumps(drawn)).shard(rank=1, world_size=2)
    with drawn.shard(rank=0, world_size=1) as shard:
        assert sorted(row["x"] for row in shard.iter_rows()) == list(range(7))


@pytest.mark.parametrize(
    "call", ["split(1, state_dict={})", "iterator(state_dict={})", "shard(state_dict={})"]
)
def test_wrong_states_raise(pipe: DatasetPipeline, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_methods, "find_rank", lambda *_: (0, 1))
    with pytest.raises(StateError, match="not a state of windrow"):
        eval(f"pipe.{call}", {"pipe": pipe})


BAD_CALLS = {
    "repeat(0)": r"times=0 must be",
    "window().window()": r"already has a window \(bytes_per_window='1.0GiB'\)",
    "random_shuffle_each_window(seed=True)": r"seed=True must be an integer",
    "random_shuffle_each_window(seed=1).random_shuffle_each_window()": r"already shuffles",
    "random_shuffle_each_window().map_batches(len, preserves_rows=False)": r"call it before the shuffle",
    "split(0)": r"n=0 must be an integer of 1 or more",
    "split('2')": r"n='2' must be",
    "split(2, replicas=0)": r"replicas=0 must be an integer of 1 or more",
    "split(2, replicas=2, locality_hints=['a', 'b'])": r"locality_hints\[0\]='a' must be a list of 2 hints",
    "split(2, replicas=2, locality_hints=[['a'], None])": r"locality_hints\[0\]=\['a'\] must be a list of 2 hints",
    "shard(replica=(0, 2))": r"give rank= and world_size= too",
    "shard(rank=0, world_size=2, replica=(2, 2))": r"an index from 0 to count - 1",
    "shard(rank=0, world_size=2, replica=1)": r"replica=1 must be a pair of integers",
    "shard(rank=0, world_size=2, sequence_dims=('cp',))": r"name dimensions of a mesh: pass mesh=",
    "shard(rank=0, world_size=2, mesh='a mesh')": r"the mesh tells rank, world size and replica",
    "shard(mesh='a mesh')": r"mesh='a mesh' is not a torch.distributed.device_mesh.DeviceMesh",
    "iterator().iter_batches(sequence=windrow.SequenceSlice())": r"needs a shard with sequence_dims",
    "split(2, equal=2)": r"equal=2 must be",
    "split(2, locality_hints=[1, 2, 3])": r"3 entries for 2 shards",
    "iter_epochs(0)": r"max_epoch=0 must be an integer of 1 or more, or -1 for all",
    "iter_epochs(-2)": r"max_epoch=-2 must be",
    "iter_epochs(1.5)": r"max_epoch=1.5 must be",
    "explain(0)": r"n=0 must be",
    "explain(2, equal='x')": r"equal='x' must be",
    "explain(2, batch_size=0)": r"batch_size=0 must be",
    "shard(rank=0)": r"give both, or neither",
    "shard(rank=3, world_size=2)": r"rank=3 must be",
    "shard(rank=0, world_size=1, equal=0)": r"equal=0 must be",
    "options(prefetch_windows=1.5)": r"prefetch_windows=1.5 must be",
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_calls(pipe: DatasetPipeline, call: str) -> None:
    with pytest.raises(PlanError, match=BAD_CALLS[call]):
        eval(f"pipe.{call}", {"pipe": pipe, "windrow": windrow})


def test_threads_executor_does_not_import_ray(pipe: DatasetPipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert _epochs(pipe) == [list(range(7))] * 2


@pytest.mark.parametrize("equal", [False, True, "pad"])
def test_explain_tells_the_steps_of_the_split_that_gets_the_same_arguments(equal: Any) -> None:
    pipe = windrow.range(103).repeat(1).random_shuffle_each_window(seed=7).options(progress=False)
    plan = pipe.explain(4, equal=equal, batch_size=5)
    assert f"4, equal={equal!r}" in str(plan)
    shards = pipe.split(4, equal=equal)
    batches = [list(shard.iter_batches(batch_size=5)) for shard in shards]
    delivered = sum(len(batch["id"]) for own in batches for batch in own)
    assert (plan.steps, plan.left_out_rows) == (len(batches[0]), max(0, 103 - delivered))
    for shard in shards:
        shard.close()

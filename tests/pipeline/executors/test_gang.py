"""Gangs on a local Ray: exactly once over failures, barriers, and errors that name the trainer."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

import windrow
from windrow import GangContext, PlanError, StallError, StateError, TransformError
from windrow.pipeline.executors.ray.gang.actors import Place, assign_seats

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_local"), pytest.mark.timeout(150)]

ROWS, EPOCHS, BATCH = 400, 2, 10


@pytest.fixture(scope="module")
def pipe() -> windrow.DatasetPipeline:
    """Two epochs in several windows."""
    return windrow.range(ROWS).window(blocks_per_window=2).repeat(EPOCHS).random_shuffle_each_window(seed=3)


def test_trainers_continue_from_their_last_save_when_one_dies(pipe: windrow.DatasetPipeline) -> None:
    def train(context: GangContext) -> tuple[int, int, list[int]]:
        seen: list[int] = context.saved or []
        taken = 0
        for epoch in context.shard.iter_epochs():
            for batch in epoch.iter_batches(BATCH):
                seen = seen + batch["id"].tolist()
                taken += 1
                if taken % 3 == 0:
                    context.save(seen)
                if context.attempt == 0 and context.rank == 1 and taken == 13:
                    os.kill(os.getpid(), signal.SIGKILL)
        return context.attempt, taken, seen

    with pytest.warns(RuntimeWarning, match="the process of rank 1 ended.*start again from their last save"):
        found = windrow.run_gang(train, 2, dataset=pipe, max_restarts=1)
    shards = pipe.options(executor="threads").split(2, equal=True)
    for (attempt, taken, seen), shard in zip(found, shards, strict=True):
        assert attempt == 1
        # in the middle of the first epoch
        assert EPOCHS * ROWS // 2 // BATCH - taken in (9, 12)
        assert seen == [
            int(row)
            for epoch in shard.iter_epochs()
            for batch in epoch.iter_batches(BATCH)
            for row in batch["id"]
        ]
    for epoch in range(EPOCHS):
        half = slice(epoch * ROWS // 2, (epoch + 1) * ROWS // 2)
        assert sorted(row for _, _, seen in found for row in seen[half]) == list(range(ROWS))


@pytest.mark.nightly
def test_trainers_know_each_other_and_torch_finds_them() -> None:
    def train(context: GangContext) -> Any:
        import torch

        torch.distributed.init_process_group("gloo")
        total = torch.tensor([context.rank + 1])
        torch.distributed.all_reduce(total)
        torch.distributed.destroy_process_group()
        context.barrier(timeout=60)
        names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK")
        return int(total), len(context.addresses), context.local_rank, [os.environ[name] for name in names]

    found = windrow.run_gang(train, 2)
    assert found == [(3, 2, rank, [str(rank), "2", "0"]) for rank in range(2)]


@pytest.mark.nightly
def test_several_datasets_and_states_to_begin_with(pipe: windrow.DatasetPipeline) -> None:
    first = pipe.iterator()
    for _ in first.iter_batches(BATCH):
        break
    state = first.state_dict()
    first.close()

    def train(context: GangContext) -> tuple[int, int]:
        with pytest.raises(PlanError, match=r"'train', 'test': use context\.shards"):
            context.shard  # noqa: B018
        rows = sum(
            len(b["id"]) for epoch in context.shards["train"].iter_epochs() for b in epoch.iter_batches(BATCH)
        )
        tested = sum(len(b["id"]) for _ in range(2) for b in context.shards["test"].iter_batches())
        return rows, tested

    datasets = {"train": pipe, "test": windrow.range(7)}
    found = windrow.run_gang(train, 2, dataset=datasets, state_dict={"train": state}, equal=False)
    assert sum(rows for rows, _ in found) == EPOCHS * ROWS - BATCH
    assert sum(tested for _, tested in found) == 14


def test_error_of_a_trainer_ends_the_gang() -> None:
    def train(context: GangContext) -> None:
        if context.rank == 1:
            raise KeyError("lost")
        # without an end of the gang this would wait for long
        context.barrier(timeout=100)

    with (
        pytest.warns(RuntimeWarning, match="rank 1 raised KeyError"),
        pytest.raises(TransformError, match="rank 1 raised KeyError: 'lost' in attempt 2") as caught,
    ):
        windrow.run_gang(train, 2, max_restarts=1)
    assert isinstance(caught.value.__cause__, KeyError)


@pytest.mark.nightly
def test_wrong_use_of_windrow_is_not_tried_again(pipe: windrow.DatasetPipeline) -> None:
    def train(context: GangContext) -> None:
        next(context.shard.iter_batches(batch_size=0))

    with pytest.raises(TransformError, match="raised PlanError: batch_size=0"):
        windrow.run_gang(train, 2, dataset=pipe, max_restarts=5)


@pytest.mark.nightly
def test_barrier_names_who_has_not_come(tmp_path: Path) -> None:
    given_up = tmp_path / "given_up"

    def train(context: GangContext) -> None:
        if context.rank == 0:
            with pytest.raises(StallError, match=r"rank 0 at barrier 1 waited 0\.2 s for ranks 1, 2, which"):
                context.barrier(timeout=0.2)
            given_up.touch()
        while not given_up.exists():
            time.sleep(0.01)
        context.barrier(timeout=60)

    windrow.run_gang(train, 3)

    def leave(context: GangContext) -> None:
        if context.rank != 1:
            context.barrier(timeout=100)

    with pytest.raises(TransformError, match="rank 0 at barrier 1: rank 1 returned without coming there"):
        windrow.run_gang(leave, 2)


@pytest.mark.nightly
def test_saves_at_several_places_of_the_data_are_an_error(pipe: windrow.DatasetPipeline) -> None:
    def train(context: GangContext) -> None:
        for taken, _ in enumerate(context.shard.iter_batches(BATCH)):
            if taken == context.rank:
                context.save()
                context.barrier(timeout=60)

    with pytest.raises(TransformError, match="saves at another place of the data than rank") as caught:
        windrow.run_gang(train, 2, dataset=pipe)
    assert isinstance(caught.value.__cause__, StateError)


def test_all_start_together_or_not_at_all(tmp_path: Path) -> None:
    def train(context: GangContext) -> None:
        (tmp_path / str(context.rank)).touch()

    with (
        pytest.warns(RuntimeWarning, match="5 trainers need CPU 5 where there is 4 of the whole cluster"),
        pytest.raises(StallError, match=r"could not start together within 0\.5 s.*CPU 1 each"),
    ):
        windrow.run_gang(train, 5, start_timeout=0.5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "n=0 must be an integer of 1 or more"),
        ({"train": 3}, "train=3 must be a function"),
        ({"dataset": [1]}, "dataset 'train' is a list"),
        ({"strategy": "DENSE"}, "strategy='DENSE' must be one of 'PACK'"),
        ({"max_restarts": -1}, "max_restarts=-1"),
        ({"num_cpus": 0}, "a trainer must reserve something"),
        ({"num_gpus": -1}, "cannot reserve GPU: -1"),
        ({"start_timeout": 0}, "start_timeout=0 must be a number of seconds above 0"),
        ({"state_dict": {"x": 1}}, "no dataset has that name"),
        ({"equal": 3}, "equal"),
    ],
)
def test_bad_arguments(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        windrow.run_gang(**{"train": print, "n": 2, **arguments})


def test_trainers_of_a_node_see_all_of_its_gpus() -> None:
    places = [
        Place("a", "10.0.0.1", 1, ("2",)),
        Place("b", "10.0.0.2", 2, ("0",)),
        Place("a", "10.0.0.1", 3, ("0",)),
    ]
    seats = assign_seats(places)
    assert [seat.variables["CUDA_VISIBLE_DEVICES"] for seat in seats] == ["2,0", "0", "2,0"]
    assert [(seat.local_rank, seat.local_world_size) for seat in seats] == [(0, 2), (0, 1), (1, 2)]
    assert [seat.variables["GROUP_RANK"] for seat in seats] == ["0", "1", "0"]
    assert {(seat.variables["MASTER_ADDR"], seat.variables["MASTER_PORT"]) for seat in seats} == {
        ("10.0.0.1", "1")
    }
    assert seats[0].addresses == ("10.0.0.1", "10.0.0.2", "10.0.0.1")


def test_shared_and_missing_gpus_are_left_to_ray() -> None:
    for gpus in ((), ("0",)):
        seats = assign_seats([Place("a", "10.0.0.1", port, gpus) for port in (1, 2)])
        assert all("CUDA_VISIBLE_DEVICES" not in seat.variables for seat in seats)

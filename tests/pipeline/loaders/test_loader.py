"""`Shard.as_loader`: each loop is an epoch, and a state resumes in the middle of one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from windrow import PlanError

ROWS, BATCH_ROWS, EPOCHS = 50, 8, 3
STEPS = 7


def _pipe() -> windrow.DatasetPipeline:
    pipe = windrow.range(ROWS).repeat(EPOCHS)
    return pipe.random_shuffle_each_window(seed=3).options(executor="threads")


def _take(loader: Any) -> list[list[int]]:
    return [batch["id"].tolist() for batch in loader]


def _expected() -> list[list[list[int]]]:
    with _pipe().iterator() as shard:
        return [_take(epoch.iter_torch_batches(BATCH_ROWS)) for epoch in shard.iter_epochs()]


def test_each_loop_is_an_epoch() -> None:
    with _pipe().iterator() as shard:
        loader = shard.as_loader(BATCH_ROWS)
        assert len(loader) == STEPS
        assert [_take(loader) for _ in range(EPOCHS)] == _expected()
        with pytest.raises(PlanError, match="all 3 epochs of shard 0 have been read"):
            iter(loader)


def test_loop_without_batches_does_not_advance() -> None:
    with _pipe().iterator() as shard:
        loader = shard.as_loader(BATCH_ROWS)
        for _ in range(3):
            iter(loader)
        assert _take(loader) == _expected()[0]


@examples(40)
@given(st.lists(st.integers(1, STEPS), min_size=1, max_size=EPOCHS))
def test_abandoned_epoch_counts_as_consumed(taken: list[int]) -> None:
    with _pipe().iterator() as shard:
        loader = shard.as_loader(BATCH_ROWS)
        for epoch, count in enumerate(taken):
            found = []
            for batch in loader:
                found.append(batch["id"].tolist())
                if len(found) == count:
                    break
            assert found == _expected()[epoch][:count]


@given(st.integers(0, 2 * STEPS), st.integers(1, 4))
def test_state_resumes_after_any_step(steps: int, shards: int) -> None:
    with _pipe().iterator() as shard:
        loader, taken = shard.as_loader(BATCH_ROWS), []
        for _ in range(EPOCHS):
            for batch in loader:
                taken.append(batch["id"].tolist())
                if len(taken) == steps:
                    break
            if len(taken) == steps:
                break
        state = loader.state_dict()
    if not steps:
        return
    rest = []
    resumed = _pipe().split(shards, state_dict=state)
    for each in resumed:
        for epoch in each.iter_epochs():
            rest += [x for batch in epoch.iter_batches(3) for x in batch["id"].tolist()]
        each.close()
    everything = sorted([x for batch in taken for x in batch] + rest)
    assert everything == sorted([*range(ROWS)] * EPOCHS)
    with _pipe().iterator() as shard:
        loader = shard.as_loader(BATCH_ROWS)
        loader.load_state_dict(state)
        again = [batch for _ in range(EPOCHS - state["epoch"]) for batch in _take(loader)]
    assert taken + again == [batch for epoch in _expected() for batch in epoch]


def test_arguments_are_those_of_iter_torch_batches() -> None:
    with _pipe().iterator() as shard:
        loader = shard.as_loader(BATCH_ROWS, drop_last=True, dtypes=torch.int32)
        assert len(loader) == STEPS - 1
        assert {batch["id"].dtype for batch in loader} == {torch.int32}
        with pytest.raises(
            PlanError, match=r"as_loader\(\) has no argument 'shuffle': its arguments are batch_size, dtyp"
        ):
            shard.as_loader(BATCH_ROWS, shuffle=True)
        with pytest.raises(PlanError, match="batch_size=0 must be"):
            shard.as_loader(0)
        with pytest.raises(PlanError, match="drop_last='yes' must be"):
            shard.as_loader(drop_last="yes")


def test_length_is_unknown_before_rows_are_counted(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("id\n" + "1\n" * ROWS)
    pipe = windrow.read_csv(str(tmp_path)).repeat(2).options(executor="threads")
    with pipe.iterator() as shard:
        loader = shard.as_loader(BATCH_ROWS)
        with pytest.raises(TypeError, match=r"the number of rows of an epoch is not known yet.*count\(\)"):
            len(loader)
        _take(loader)
        assert len(loader) == STEPS


def test_repr_names_the_shard() -> None:
    with _pipe().iterator() as shard:
        assert repr(shard.as_loader(4)) == "Loader(Shard(0 of 1, at epoch 0), batch_size=4)"

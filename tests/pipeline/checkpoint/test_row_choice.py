"""States know how transforms choose rows, where these tell it: with other rows, the same place is another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest

import windrow
from windrow.core.errors import StateError

Make = Callable[[windrow.Dataset], windrow.Dataset]

CHOICES: dict[str, tuple[Make, Make]] = {
    "expression": (lambda ds: ds.filter(pc.field("id") > 40), lambda ds: ds.filter(pc.field("id") > 60)),
    "share": (
        lambda ds: ds.train_test_split(0.1, by="id")[0],
        lambda ds: ds.train_test_split(0.2, by="id")[0],
    ),
    "seed": (
        lambda ds: ds.train_test_split(0.1, by="id", seed=1)[0],
        lambda ds: ds.train_test_split(0.1, by="id", seed=2)[0],
    ),
    "side": (
        lambda ds: ds.train_test_split(0.5, by="id")[0],
        lambda ds: ds.train_test_split(0.5, by="id")[1],
    ),
    "fraction": (lambda ds: ds.random_sample(0.5, seed=1), lambda ds: ds.random_sample(0.6, seed=1)),
    "sample": (lambda ds: ds.random_sample(0.5, seed=1), lambda ds: ds.random_sample(0.5, seed=2)),
    "another one behind a function": (
        lambda ds: ds.filter(_is_even).filter(pc.field("id") > 40),
        lambda ds: ds.filter(_is_even).filter(pc.field("id") > 60),
    ),
}


def _is_even(row: dict[str, Any]) -> bool:
    return bool(row["id"] % 2 == 0)


def _shard(make: Make) -> windrow.Shard:
    pipe = make(windrow.range(400, block_rows=40)).window(blocks_per_window=3).repeat(1)
    return pipe.random_shuffle_each_window(seed=3).options(executor="threads").iterator()


def _state(make: Make) -> dict[str, Any]:
    with _shard(make) as shard:
        batches = shard.iter_batches(10)
        next(batches)
        return shard.state_dict()


@pytest.mark.parametrize("what", CHOICES)
def test_a_state_of_other_rows_is_refused(what: str) -> None:
    make, other = CHOICES[what]
    state = _state(make)
    with _shard(make) as shard:
        shard.load_state_dict(state)
    with (
        _shard(other) as shard,
        pytest.raises(StateError, match=r"choice of rows +[0-9a-f]{8} +[0-9a-f]{8}"),
    ):
        shard.load_state_dict(state)


def test_what_functions_choose_is_not_known() -> None:
    state = _state(lambda ds: ds.filter(_is_even))
    assert state["row_choice"] == ""
    with _shard(lambda ds: ds.filter(lambda row: row["id"] > 7)) as shard:
        shard.load_state_dict(state)


def test_states_from_before_choices_were_known_are_loaded() -> None:
    make, _ = CHOICES["expression"]
    state = _state(lambda ds: ds.filter(_is_even))
    del state["row_choice"]
    with _shard(make) as shard:
        shard.load_state_dict(state)
    state["row_choice"] = 7
    with _shard(make) as shard, pytest.raises(StateError, match="row_choice=7 is not what states hold"):
        shard.load_state_dict(state)

"""Mixtures that measure a column of all rows first: steps by tokens, groups by length, and what they refuse."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow import Balance, DatasetPipeline, PlanError, Shares, StateError, TokenBudget

LENGTHS = {
    name: np.minimum(90, np.random.default_rng(seed).lognormal(2, 1, rows).astype(int) + 1)
    for seed, (name, rows) in enumerate({"web": 400, "code": 150, "math": 40}.items())
}
BALANCE = Balance("tokens")


def make_source(name: str, first: int, passes: int | None = None) -> DatasetPipeline:
    lengths = LENGTHS[name]
    table = pa.table(
        {
            "id": range(first, first + len(lengths)),
            "tokens": pa.array([[first] * length for length in lengths.tolist()], pa.list_(pa.int32())),
            "length": lengths,
        }
    )
    dataset = windrow.from_arrow(table, target_block_bytes=2_000).options(executor="threads", progress=False)
    return dataset.window(blocks_per_window=3).repeat(passes).random_shuffle_each_window(seed=first)


def make_sources(passes: int | None = None) -> dict[str, DatasetPipeline]:
    return {name: make_source(name, 1_000 * at, passes) for at, name in enumerate(LENGTHS)}


def length_of(row: int) -> int:
    return int(LENGTHS[list(LENGTHS)[row // 1_000]][row % 1_000])


def mix(shares: Any = None, passes: int | None = None, **arguments: Any) -> DatasetPipeline:
    shares = shares or {"web": 6, "code": 3, "math": 1}
    return windrow.mixture(
        make_sources(passes), shares, seed=7, **{"length_column": "tokens", **arguments}
    ).options(executor="threads", progress=False)


def read(shards: list[windrow.Shard], steps: int | None = None, **arguments: Any) -> list[list[list[int]]]:
    """The rows of each step, by shard."""
    arguments = {"balance": BALANCE, "columns": ["id"], **arguments}
    batches = [shard.iter_batches(**arguments) for shard in shards]
    found = []
    for _ in itertools.count() if steps is None else range(steps):
        step = [next(each, None) for each in batches]
        if not any(batch is not None for batch in step):
            break
        found.append([[] if batch is None else batch["id"].tolist() for batch in step])
    return found


def flat(steps: list[list[list[int]]]) -> list[int]:
    return sorted(row for step in steps for batch in step for row in batch)


def test_sources_are_balanced_together() -> None:
    plain, balanced, by_source = (mix(length_column=column).split(4) for column in (None, "tokens", None))
    expected = read(plain, 12, batch_size=4, balance=None)
    found = read(balanced, 12, batch_size=4)
    apart = read(by_source, 12, batch_size=4)
    assert [flat([step]) for step in found] == [flat([step]) for step in expected]
    assert balanced[0].stats().run.imbalance[0] < by_source[0].stats().run.imbalance[0] - 0.01
    assert [flat([step]) for step in apart] == [flat([step]) for step in expected]


def test_a_step_takes_the_longest_run_of_rows_that_fits() -> None:
    order = [row for step in read(mix().split(1), 100, batch_size=8, balance=None) for row in step[0]]
    shards = mix().split(3)
    steps = read(shards, 30, token_budget=100)
    at = 0
    for step in steps:
        rows = flat([step])
        assert rows == sorted(order[at : at + len(rows)])
        at += len(rows)
        assert all(0 < sum(map(length_of, batch)) <= 100 for batch in step)
    assert shards[0].state_dict()["row"] == at
    tokens = sum(length_of(row) for row in order[:at])
    assert tokens > 0.9 * len(steps) * 300


@pytest.mark.parametrize("shards", [1, 2, 3])
def test_steps_by_tokens_go_on_from_a_state(shards: int) -> None:
    own = mix().split(2)
    first = read(own, 7, token_budget=120)
    state = json.loads(json.dumps(own[0].state_dict()))
    rest = read(mix().split(shards, state_dict=state), 20, token_budget=120)
    order = [row for step in read(mix().split(1), 200, batch_size=8, balance=None) for row in step[0]]
    taken = flat(first) + flat(rest)
    assert sorted(taken) == sorted(order[: len(taken)])


def test_all_rows_of_a_mixture_that_ends_come_once() -> None:
    expected = sorted(
        1_000 * at + row for at, name in enumerate(LENGTHS) for row in range(len(LENGTHS[name]))
    )
    for arguments in ({"token_budget": 150}, {"batch_size": 16, "group_by_length": 5}):
        shards = mix(passes=1, when_exhausted="drop").split(3)
        assert flat(read(shards, **arguments)) == expected
        assert shards[0].stats().run.left_out_rows == 0


def test_long_rows_are_left_out_or_cut() -> None:
    for long_rows, most in (("drop", 40), ("truncate", 40)):
        shards = mix(passes=1, when_exhausted="drop").split(2)
        budget = TokenBudget(most, long_rows=long_rows)  # type: ignore[arg-type]
        batches = [shard.iter_batches(token_budget=budget, balance=BALANCE) for shard in shards]
        rows = [
            (row, len(tokens))
            for each in batches
            for batch in each
            for row, tokens in zip(batch["id"].tolist(), batch["tokens"], strict=True)
        ]
        long = sum(int((lengths > most).sum()) for lengths in LENGTHS.values())
        assert long > 5
        left_out = shards[0].stats().run.left_out_rows
        if long_rows == "drop":
            assert (len(rows), left_out) == (590 - long, long)
        else:
            assert (len(rows), left_out) == (590, 0)
        assert all(length == min(most, length_of(row)) for row, length in rows)


def test_groups_hold_the_same_rows_and_pad_less() -> None:
    plain, grouped = mix().split(2), mix().split(2)
    before = read(plain, 40, batch_size=8)
    after = read(grouped, 40, batch_size=8, group_by_length=10)
    for at in range(0, 40, 10):
        assert flat(before[at : at + 10]) == flat(after[at : at + 10])
    assert grouped[0].stats().run.padding[0] < plain[0].stats().run.padding[0] - 0.2


@pytest.mark.parametrize(("shards", "size", "steps"), [(2, 8, 7), (1, 8, 14), (3, 4, 9)])
def test_a_group_goes_on_from_a_state_in_its_middle(shards: int, size: int, steps: int) -> None:
    whole = read(mix().split(2), 20, batch_size=8, group_by_length=10)
    own = mix().split(2)
    read(own, 13, batch_size=8, group_by_length=10)
    state = own[0].state_dict()
    assert state["groups"] == "10 steps of 16 rows from 160 by tokens"
    rest = read(mix().split(shards, state_dict=state), steps, batch_size=size, group_by_length=4)
    left = [row for step in whole[13:] for batch in step for row in sorted(batch)]
    taken = flat(rest)
    assert len(taken) <= len(left)
    if shards * size == 16:
        assert [flat([step]) for step in rest[:7]] == [flat([step]) for step in whole[13:]]
    else:
        assert set(taken) <= set(left)


def test_shares_change_between_groups() -> None:
    (shard,) = mix().split(1)
    batches = shard.iter_batches(8, balance=BALANCE, group_by_length=4)
    for _ in range(4):
        next(batches)
    shard.set_shares({"math": 1})
    assert (next(batches)["id"] >= 2_000).all()
    with pytest.raises(PlanError, match="ends after 3 more steps"):
        shard.set_shares({"web": 1})
    for _ in range(3):
        assert (next(batches)["id"] >= 2_000).all()
    shard.set_shares({"web": 1})
    assert (next(batches)["id"] < 1_000).all()
    batches.close()


def test_a_state_in_the_middle_of_a_group_needs_the_same_mixture() -> None:
    shards = mix().split(2)
    read(shards, 3, batch_size=8, group_by_length=5)
    state = shards[0].state_dict()
    with pytest.raises(StateError, match="in the middle of a group of 5 steps"):
        mix({"web": 1}).split(2, state_dict=state)
    with pytest.raises(StateError, match=r"length_column='tokens'"):
        mix(length_column=None).split(2, state_dict=state)
    with pytest.raises(StateError, match="in the middle of a group"):
        mix(when_exhausted="drop").split(2, state_dict=state)
    (shard,) = mix().split(1, state_dict=state)
    for balance in (None, Balance("length")):
        with pytest.raises(StateError, match=r"Balance\('tokens'\) up to row 80, where the group ends"):
            shard.iter_batches(8, balance=balance)


def test_a_group_that_was_the_last_needs_the_same_passes() -> None:
    """Sources were dropped in it, so that it had other rows than with more passes."""
    shards = mix(passes=1, when_exhausted="drop").split(2)
    read(shards, 3, batch_size=8, group_by_length=100)
    state = shards[0].state_dict()
    assert state["groups"] == "36 steps of 16 rows by tokens"
    for passes in (2, None):
        with pytest.raises(StateError, match="in the middle of a group of 36 steps"):
            mix(passes=passes, when_exhausted="drop").split(2, state_dict=state)
    again = mix(passes=1, when_exhausted="drop").split(2, state_dict=state)
    assert len(flat(read(again, batch_size=8))) == 590 - 48


def test_a_group_is_read_to_its_end_before_steps_end_by_tokens() -> None:
    shards = mix().split(2)
    read(shards, 3, batch_size=8, group_by_length=5)
    with pytest.raises(StateError, match="up to row 80, where the group ends"):
        read(shards, 1, token_budget=100)
    read(shards, 2, batch_size=8)
    assert shards[0].state_dict()["groups"] == ""
    assert read(shards, 1, token_budget=100)


def test_rows_are_measured_as_the_sources_deliver_them() -> None:
    def shorten(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "tokens": [row[:3] for row in batch["tokens"]]}

    sources = {name: each.map_batches(shorten) for name, each in make_sources().items()}
    filtered = make_source("web", 0).map_batches(shorten)
    sources["web"] = filtered
    pipe = windrow.mixture(sources, {"web": 1, "code": 1}, seed=1, length_column="tokens")
    shards = pipe.options(executor="threads", progress=False).split(2)
    for step in read(shards, 20, token_budget=30):
        assert all(sum(min(3, length_of(row)) for row in batch) in range(28, 31) for batch in step)


def test_what_cannot_be_measured_is_an_error() -> None:
    with pytest.raises(PlanError, match="mixture, source 'web': there is no column 'absent'"):
        mix(length_column="absent")
    with pytest.raises(PlanError, match=r"length_column=3\) must be the name of a column"):
        mix(length_column=3)
    packed = {name: each.pack(8, "tokens") for name, each in make_sources().items()}
    with pytest.raises(PlanError, match="the sources pack, so that all rows have 8 tokens"):
        windrow.mixture(packed, {"web": 1}, seed=1, length_column="tokens")
    table = pa.table({"x": pa.array([1, None])})
    source = windrow.from_arrow(table).repeat().random_shuffle_each_window(seed=1)
    with pytest.raises(windrow.TransformError, match="column 'x' has nulls"):
        windrow.mixture({"a": source}, {"a": 1}, seed=1, length_column="x")


def test_what_steps_by_length_need_is_said() -> None:
    for arguments in ({"token_budget": 100}, {"batch_size": 8, "group_by_length": 3}):
        with pytest.raises(PlanError, match=r"give mixture\(\) length_column='tokens'"):
            read(mix(length_column=None).split(2), 1, **arguments)
        with pytest.raises(PlanError, match="give both the same"):
            read(mix(length_column="length").split(2), 1, **arguments)
    by_steps = mix(Shares.steps({0: {"web": 1}, 5: {"code": 1}}))
    with pytest.raises(PlanError, match="unit='rows'"):
        read(by_steps.split(2), 1, token_budget=100)
    five = windrow.from_arrow(pa.table({"id": [1, 2], "tokens": [[0] * 5] * 2})).repeat()
    one = windrow.from_arrow(pa.table({"id": [7] * 6, "tokens": [[0]] * 6}))
    # the other one has rows that fit, and no more of them
    for sources in ({"a": five}, {"a": five, "b": one.repeat(1)}):
        pipe = windrow.mixture(
            sources, dict.fromkeys(sources, 1), seed=1, when_exhausted="drop", length_column="tokens"
        )
        with pytest.raises(PlanError, match="leaves out all rows of the sources 'a'"):
            read(pipe.split(1), 3, token_budget=TokenBudget(4, long_rows="drop"))

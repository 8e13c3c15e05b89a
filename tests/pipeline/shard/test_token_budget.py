"""Batches by tokens, as a trainer reads them: what is refused, states, and what is counted."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import zip_longest
from typing import Any

import pyarrow as pa
import pytest

import windrow
from windrow import Balance, PlanError, StateError, TokenBudget, TransformError
from windrow.pipeline.shard.run_reader import RunReader

LENGTHS = [5, 9, 1, 2, 8, 3, 7, 4, 6, 30, 1, 1, 2, 9, 5, 5]
TOKENS: dict[str, Any] = {"balance": Balance("tokens"), "token_budget": TokenBudget(12, "drop")}


def make_pipe(epochs: int | None = 1) -> windrow.DatasetPipeline:
    table = pa.table({"id": range(len(LENGTHS)), "tokens": [[0] * length for length in LENGTHS]})
    pipe = windrow.from_arrow(table, target_block_bytes=60).window(blocks_per_window=2).repeat(epochs)
    return pipe.random_shuffle_each_window(seed=3).options(executor="threads", progress=False)


def order(epoch: int = 0) -> list[int]:
    """The rows of an epoch that are not too long."""
    with make_pipe(None).iterator() as shard:
        for found in shard.iter_epochs():
            rows: list[int] = next(iter(found.iter_batches(len(LENGTHS))))["id"].tolist()
            if found.number == epoch:
                break
    return [row for row in rows if LENGTHS[row] <= 12]


def read(shards: list[windrow.Shard], steps: int | None = None, **arguments: Any) -> list[list[int]]:
    """By step, the rows of all shards."""
    iterators = [shard.iter_batches(**(arguments or TOKENS)) for shard in shards]
    found = []
    for batches in zip(*iterators, strict=True):
        assert arguments or all(sum(map(len, batch["tokens"])) <= 12 for batch in batches)
        found.append(sorted(row for batch in batches for row in batch["id"].tolist()))
        if len(found) == steps:
            break
    return found


def test_a_state_resumes_with_another_budget_other_shards_and_batches_of_rows() -> None:
    shards = make_pipe().split(2, equal=True)
    first = read(shards, steps=2)
    states = [shard.state_dict() for shard in shards]
    assert states[0] == states[1]
    taken = [row for step in first for row in step]
    assert sorted(taken) == sorted(order()[: len(taken)])
    for shard in shards:
        shard.close()
    rest = sorted(order()[len(taken) :])
    other: dict[str, Any] = {**TOKENS, "token_budget": TokenBudget(20, "drop")}
    for count, arguments in [(1, TOKENS), (3, other), (2, {"batch_size": 1})]:
        again = make_pipe().split(count, equal="pad", state_dict=states[0])
        found = {row for step in read(again, **arguments) for row in step}
        assert sorted(found - {9}) == rest
        for shard in again:
            shard.close()


def test_long_rows_are_counted_once_an_epoch() -> None:
    shards = make_pipe(2).split(2, equal="pad")
    for _ in range(2):
        read(shards)
    assert shards[0].stats().run.left_out_rows == 2
    for shard in shards:
        shard.close()


def test_steps_are_not_counted_beforehand() -> None:
    with make_pipe().iterator() as shard:
        batches = shard.iter_batches(**TOKENS)
        with pytest.raises(TypeError, match="the epoch has no length"):
            len(batches)
        next(batches)
        assert batches.part is not None
        assert sum(batches.part.costs) <= 12
        batches.close()
        with pytest.raises(PlanError, match="give the rows of a batch"):
            shard.skip_batches(1)


def test_a_loader_has_no_length_and_skips_nothing() -> None:
    with make_pipe().iterator() as shard:
        loader = shard.as_loader(ragged="offsets", **TOKENS)
        with pytest.raises(TypeError, match="the epoch has no length"):
            len(loader)
        with pytest.raises(PlanError, match="no batches can be skipped unread"):
            loader.skip_batches(1)
        assert sum(len(batch["id"]) for batch in loader) == len(LENGTHS) - 1


def test_a_shard_cannot_go_on_inside_a_step_of_others() -> None:
    one, other = make_pipe().split(2, equal=True)
    batches = one.iter_batches(**TOKENS)
    next(batches)
    state = {**one.state_dict()}
    with make_pipe().iterator() as alone:
        rows = alone.iter_batches(batch_size=1)
        while alone.state_dict()["row"] != state["row"] - 1:
            next(rows)
        state = alone.state_dict()
    other.load_state_dict(state)
    with pytest.raises(StateError, match="inside a step of other shards"):
        list(other.iter_batches(**TOKENS))
    one.close()
    other.close()


def test_a_last_step_is_padded_where_only_rows_above_the_budget_follow() -> None:
    pipe = windrow.range(78, block_rows=13).window(blocks_per_window=1).repeat(1)
    shards = pipe.options(executor="threads", progress=False).split(3, equal="pad")
    arguments: dict[str, Any] = {"balance": Balance("id"), "token_budget": TokenBudget(60, "drop")}
    # shards have the same number of steps, or this is an error
    steps = read(shards, **arguments)
    assert steps[-1] == [59, 59, 60]
    for shard in shards:
        shard.close()


@pytest.mark.parametrize("first", [0, 1])
def test_shards_go_on_at_steps_of_their_own_whichever_opens_first(first: int) -> None:
    def take(batches: Any, steps: int | None = None) -> list[int]:
        return [row for _, batch in zip(range(steps or 99), batches, strict=False) for row in batch["id"]]

    shards = make_pipe().split(2, equal=True)
    iterators = [shard.iter_batches(**TOKENS) for shard in shards]
    taken = [take(iterators[0], 2), take(iterators[1], 1)]
    again = make_pipe().split(2, equal=True)
    for old, new in zip(shards, again, strict=True):
        new.load_state_dict(old.state_dict())
        old.close()
    opened = {number: again[number].iter_batches(**TOKENS) for number in (first, 1 - first)}
    with ThreadPoolExecutor(2) as pool:
        rest = list(pool.map(lambda number: take(opened[number]), range(2)))
    for shard in again:
        shard.close()
    whole = make_pipe().split(2, equal=True)
    with ThreadPoolExecutor(2) as pool:
        expected = list(pool.map(lambda shard: take(shard.iter_batches(**TOKENS)), whole))
    assert [a + b for a, b in zip(taken, rest, strict=True)] == expected
    for shard in whole:
        shard.close()


LONG = [3, 9, 1, 2, 8, 3, 7, 4, 6, 30, 1, 1, 2, 9, 5, 5]


def make_long_rows(**columns: Any) -> windrow.DatasetPipeline:
    lists = {name: [[row] * length for row, length in enumerate(LONG)] for name in ("tokens", "mask")}
    table = pa.table({"id": range(len(LONG)), **lists, "pair": [[0, 1]] * len(LONG), **columns})
    pipe = windrow.from_arrow(table, target_block_bytes=200).window(blocks_per_window=2).repeat(1)
    return pipe.random_shuffle_each_window(seed=3).options(executor="threads", progress=False)


CUT: dict[str, Any] = {"balance": Balance("tokens"), "token_budget": TokenBudget(7, "truncate")}


def test_long_rows_are_cut_whichever_columns_are_selected() -> None:
    pipe = make_long_rows()
    with pipe.iterator() as shard:
        found: dict[int, Any] = {}
        for batch in shard.iter_batches(batch_format="pyarrow", columns=["id", "mask", "pair"], **CUT):
            assert sum(map(len, batch["mask"].to_pylist())) <= 7
            found |= {row["id"]: row for row in batch.to_pylist()}
        assert shard.stats().run.left_out_rows == 0
    expected = {row: [row] * min(7, length) for row, length in enumerate(LONG)}
    assert {row: values["mask"] for row, values in found.items()} == expected
    assert all(values["pair"] == [0, 1] for values in found.values())


def test_replicas_of_which_one_selects_the_lists_alone_get_them_cut() -> None:
    [group] = make_long_rows().split(1, replicas=2, equal=True)
    columns = [["mask"], ["id"]]
    iterators = [
        shard.iter_batches(batch_format="pyarrow", columns=names, **CUT)
        for shard, names in zip(group, columns, strict=True)
    ]
    found: dict[int, int] = {}
    for masks, ids in zip(*iterators, strict=True):
        found |= dict(zip(ids["id"].to_pylist(), map(len, masks["mask"].to_pylist()), strict=True))
    assert found == {row: min(7, length) for row, length in enumerate(LONG)}
    for shard in group:
        shard.close()


def test_transforms_after_the_shuffle_and_collate_fn_get_rows_as_cut() -> None:
    def count(batch: pa.Table) -> pa.Table:
        return pa.table({"items": [len(values) for values in batch["tokens"].to_pylist()]})

    with make_long_rows().map_batches(count, batch_format="pyarrow").iterator() as shard:
        items = [count for batch in shard.iter_batches(**CUT) for count in batch["items"].tolist()]
    assert sorted(items) == sorted(min(7, length) for length in LONG)
    arguments: dict[str, Any] = {"batch_format": "pyarrow", "collate_fn": count, **CUT}
    with make_long_rows().iterator() as shard:
        items = [
            count for batch in shard.iter_torch_batches(**arguments) for count in batch["items"].to_pylist()
        ]
    assert sorted(items) == sorted(min(7, length) for length in LONG)


def test_each_budget_cuts_by_itself() -> None:
    with make_long_rows().repeat(3).iterator() as shard:
        for epoch, most in zip(shard.iter_epochs(), [7, 4, 99], strict=True):
            budget = TokenBudget(most, "truncate", padded=most == 4)
            lengths = [
                list(map(len, batch["mask"]))
                for batch in epoch.iter_batches(token_budget=budget, balance=CUT["balance"])
            ]
            assert sorted(length for each in lengths for length in each) == sorted(
                min(most, length) for length in LONG
            )
            assert all(len(each) * max(each) <= 4 for each in lengths) or most != 4


@pytest.mark.parametrize("microbatches", [1, 2])
def test_padded_batches_have_the_tokens_of_the_budget(microbatches: int) -> None:
    budget, balance = TokenBudget(24, "drop", padded=True), Balance("tokens", microbatches=microbatches)
    shards = make_long_rows().split(2, equal=True)
    taken: list[int] = []
    for batches in zip(
        *(shard.iter_torch_batches(ragged="pad", balance=balance, token_budget=budget) for shard in shards),
        strict=True,
    ):
        for batch in batches:
            parts = batch if microbatches > 1 else [batch]
            assert sum(part["tokens"].numel() for part in parts) <= 24
            taken += [row for part in parts for row in part["id"].tolist()]
    assert set(taken) == set(range(len(LONG))) - {9}
    for shard in shards:
        shard.close()


def test_a_resume_cuts_and_counts_with_another_budget() -> None:
    with make_long_rows().iterator() as shard:
        batches = shard.iter_batches(**CUT)
        first = [row for _, batch in zip(range(3), batches, strict=False) for row in batch["id"].tolist()]
        state = shard.state_dict()
    budget = TokenBudget(12, "truncate", padded=True)
    found: dict[int, int] = {}
    again = make_long_rows().split(2, state_dict=state)
    for step in zip_longest(*(shard.iter_batches(**{**CUT, "token_budget": budget}) for shard in again)):
        for batch in filter(None, step):
            assert len(batch["id"]) * max(map(len, batch["tokens"])) <= 12
            found |= dict(zip(batch["id"].tolist(), map(len, batch["tokens"]), strict=True))
    assert found == {row: min(12, length) for row, length in enumerate(LONG) if row not in first}
    for shard in again:
        shard.close()


def test_only_lists_are_cut() -> None:
    text = ["x" * length for length in LONG]
    pipe = make_long_rows(text=text, number=LONG)
    for column, reason in {"text": "within a character", "number": "does not tell which lists"}.items():
        arguments = {**CUT, "balance": Balance(column)}
        with pipe.iterator() as shard, pytest.raises(PlanError, match=f"column '{column}' .*{reason}"):
            next(shard.iter_batches(**arguments))


def test_columns_that_transforms_make_are_checked_as_they_are_cut() -> None:
    rows = windrow.from_arrow(pa.table({"tokens": [[0] * 9, [0]]}))
    texts = rows.map_batches(lambda batch: pa.table({"text": ["x" * 9, "y"]}), batch_format="pyarrow")
    arguments = {**CUT, "balance": Balance("text")}
    shards = texts.options(executor="threads").repeat(1).iterator()
    with shards as shard, pytest.raises(TransformError, match=r"column 'text' .*within a character"):
        next(shard.iter_batches(**arguments))


@pytest.mark.parametrize("windows", [1, 2, 3])
def test_an_epoch_that_is_left_before_its_first_run_has_not_been_read(
    monkeypatch: pytest.MonkeyPatch, windows: int
) -> None:
    """Its runs may be submitted while it is being left, and then lie in the way of those of the next epoch."""
    left, is_prefetched = threading.Event(), RunReader.is_prefetched

    def wait_until_left(batch: dict[str, Any]) -> dict[str, Any]:
        assert left.wait(30)
        return batch

    def leave(reader: RunReader) -> bool:
        left.set()
        return reader.runs.wait_for_rows(sys.maxsize, timeout=1) and is_prefetched(reader)

    monkeypatch.setattr(RunReader, "is_prefetched", leave)
    table = pa.table({"id": range(len(LENGTHS)), "tokens": [[0] * length for length in LENGTHS]})
    ds = windrow.from_arrow(table, target_block_bytes=1).map_batches(wait_until_left)
    pipe = ds.window(blocks_per_window=len(LENGTHS) // windows).repeat(2).random_shuffle_each_window(seed=3)
    with pipe.options(executor="threads", stall_timeout=5).iterator() as shard:
        epochs = shard.iter_epochs()
        next(epochs).iter_batches(**TOKENS).close()
        found = [row for batch in next(epochs).iter_batches(**TOKENS) for row in batch["id"].tolist()]
    assert sorted(found) == [row for row, length in enumerate(LENGTHS) if length <= 12]

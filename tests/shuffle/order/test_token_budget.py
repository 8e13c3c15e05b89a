"""Steps that end by their tokens, against a search."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.reference import divide_by_cost, fits_budget
from windrow import Balance, PlanError, TokenBudget
from windrow.shuffle.kernels import native
from windrow.shuffle.order.shard_assignment import Equal, ShardAssignment
from windrow.shuffle.order.step_balance import find_step
from windrow.shuffle.order.step_cuts import StepCuts

LENGTHS = st.lists(st.integers(0, 30) | st.just(1), max_size=60)
COSTS = st.sampled_from(["length", "length ** 2", "0 * length"])
BUDGETS = st.builds(
    TokenBudget, st.integers(5, 70), st.sampled_from(["drop", "truncate"]), padded=st.booleans()
)


def cut(balance: Balance, lengths: list[int], portions: list[int], **given: Any) -> StepCuts:
    """The steps of rows of which so many are known at a time."""
    cuts = StepCuts(ShardAssignment(balance=balance, batch_rows=1, **given), 0)
    borders = sorted({min(each, len(lengths)) for each in portions} | {len(lengths)})
    for first, stop in zip([0, *borders], borders, strict=False):
        cuts.add(np.array(lengths[first:stop], np.float32), is_last=stop == len(lengths))
    return cuts


@given(
    lengths=LENGTHS,
    portions=st.lists(st.integers(0, 60), max_size=4),
    shards=st.integers(1, 4),
    budget=BUDGETS,
    equal=st.sampled_from([True, False, "pad"]),
    drop_last=st.booleans(),
    cost=COSTS,
    microbatches=st.integers(1, 3),
)
def test_steps_are_those_of_a_search(
    lengths: list[int],
    portions: list[int],
    shards: int,
    budget: TokenBudget,
    equal: Equal,
    drop_last: bool,
    cost: str,
    microbatches: int,
) -> None:
    balance = Balance("c", cost, microbatches=microbatches).with_budget(budget)
    cuts = cut(balance, lengths, portions, shards=shards, equal=equal, drop_last=drop_last)
    expected = divide_by_cost(len(lengths), shards, 1, equal, balance, lengths, drop_last=drop_last)
    steps = [
        {row for shard in expected.batches if step < len(shard) for row in shard[step]}
        for step in range(max(map(len, expected.batches)))
    ]
    assert cuts.starts == [0, *(max(rows) + 1 for rows in steps)]
    tokens = [max(1, min(length, budget.tokens)) for length in lengths]
    assert all(sum(tokens[row] for row in rows) <= shards * budget.tokens for rows in steps)


@given(
    lengths=LENGTHS,
    shards=st.integers(1, 4),
    tokens=st.integers(30, 90),
    cost=COSTS,
    microbatches=st.integers(1, 3),
)
def test_a_padded_step_fits_and_with_one_row_more_it_would_not(
    lengths: list[int], shards: int, tokens: int, cost: str, microbatches: int
) -> None:
    balance = Balance("c", cost, microbatches=microbatches).with_budget(TokenBudget(tokens, padded=True))
    starts = cut(balance, lengths, [], shards=shards).starts
    sizes, costs = [max(1, length) for length in lengths], balance.costs(np.array(lengths, np.float32))
    assert starts[-1] == len(lengths)
    for first, stop in pairwise(starts):
        assert fits_budget(list(range(first, stop)), sizes, costs, shards, balance)
        more = list(range(first, stop + 1))
        assert stop == len(lengths) or not fits_budget(more, sizes, costs, shards, balance)


def test_a_long_row_is_an_error_that_names_column_and_length() -> None:
    with pytest.raises(
        PlanError, match=r"column 'c' has a row of 9 tokens, more than token_budget=8: .*drop"
    ):
        cut(Balance("c").with_budget(8), [8, 1, 9], [], shards=2)


@pytest.mark.parametrize("tokens", [0, -1, 1.5, "many", 2**31, None])
def test_invalid_budgets(tokens: Any) -> None:
    with pytest.raises(PlanError, match="integer from 1 to"):
        TokenBudget(tokens)
    with pytest.raises(PlanError, match="'error', 'drop' or 'truncate'"):
        TokenBudget(1, "shorten")  # type: ignore[arg-type]
    with pytest.raises(PlanError, match=r"padded='yes'.* must be True or False"):
        TokenBudget(1, padded="yes")  # type: ignore[arg-type]


def read(pipe: Any, **arguments: Any) -> list[list[list[int]]]:
    """By step, the rows of each shard."""
    shards = pipe.split(2, equal=True)
    iterators = [shard.iter_batches(balance=Balance("id"), **arguments) for shard in shards]
    found = [[batch["id"].tolist() for batch in step] for step in zip(*iterators, strict=True)]
    for shard in shards:
        shard.close()
    return found


def test_a_budget_in_place_of_a_batch_size() -> None:
    pipe = windrow.range(12, block_rows=5).repeat(1).options(executor="threads")
    steps = read(pipe, token_budget=20)
    rows = [sorted(row for batch in step for row in batch) for step in steps]
    assert rows == [[0, 1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11]]
    assert all(sum(max(1, row) for row in batch) <= 20 for step in steps for batch in step)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"token_budget": 9}, "needs balance="),
        ({"token_budget": 9, "batch_size": 4, "balance": Balance("id")}, "exclude each other"),
        ({"token_budget": "9k", "balance": Balance("id")}, "integer from 1 to"),
        ({"token_budget": 9, "balance": "id"}, "must be a windrow.Balance"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], message: str) -> None:
    with windrow.range(3).repeat(1).iterator() as shard, pytest.raises(PlanError, match=message):
        next(shard.iter_batches(**arguments))


@given(LENGTHS, st.integers(1, 4), st.integers(31, 70), COSTS, st.integers(0, 5))
def test_the_kernel_finds_the_same_step_as_python(
    lengths: list[int], bins: int, limit: int, cost: str, padded_parts: int
) -> None:
    tokens = np.maximum(1, np.array(lengths, np.float64))
    costs = Balance("c", cost).costs(tokens.astype(np.float32))
    found = find_step(costs, tokens, bins, limit, padded_parts=padded_parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LIBRARY", None)
        assert find_step(costs, tokens, bins, limit, padded_parts=padded_parts) == found


def test_a_row_that_is_cut_costs_what_is_left_of_it() -> None:
    balance = Balance("c", "length ** 2").with_budget(TokenBudget(3, "truncate"))
    assert balance.costs(np.array([2, 3, 9], np.float32)).tolist() == [4, 9, 9]

"""The laws of mixtures whose rows are measured first: balance over all sources, groups by length, steps by tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.measured_mixtures import BUDGETED, GROUPED, TOGETHER, MeasuredReading
from tests.laws.mixture_cases import MIXTURES, NAMES, MixedCase, SourceCase
from tests.laws.reading import ScrambledThreads
from tests.laws.test_mixtures import ON_RAY, Script, Turn, scripts, short_legs
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan import measured_leg
from windrow.pipeline.plan.shares import Shares
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.token_budget import TokenBudget

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")

# by one column, in groups and without
GROUPINGS = st.lists(GROUPED | TOGETHER, min_size=1, max_size=3).map(
    lambda found: [_by_column(each, found[0].column) for each in found]
)
BUDGETS = st.lists(BUDGETED, min_size=1, max_size=2).map(
    lambda found: [each for each in found if each.column == found[0].column]
)
IN_ROWS = MIXTURES.filter(lambda case: case.shares.unit == "rows" or len(case.shares.phases) == 1)


def _by_column(balance: Balance, column: str) -> Balance:
    found = replace(balance, column=column)
    return found if balance.group_steps is None else found.with_groups(balance.group_steps)


def can_deliver(script: Script[MixedCase], balances: Sequence[Balance]) -> bool:
    """Whether shares change by rows, and all sources that ever have one have rows that fit into the budgets."""
    least = min(each.budget.tokens for each in balances if each.budget is not None)
    shares: list[Mapping[str, Any]] = [turn.shares for turn in script.turns]
    for case in [script.case, *(turn.case for turn in script.turns if turn.case is not None)]:
        if case.shares.unit == "steps" and len(case.shares.phases) > 1:
            return False
        shares += [dict(phase.shares) for phase in case.shares.phases]
    shared = {name for each in shares for name, share in each.items() if share}
    if balances[0].column == "flag":
        return True
    return all((NAMES.index(name) + 1) * 100_000 <= least for name in shared)


def run(
    script: Script[MixedCase],
    executor: str | Executor,
    balances: Sequence[Balance],
    replicas: int | None = None,
) -> None:
    """Read a mixture; wherever iterators begin again, they have the next of the balances."""
    turns = cycle(balances)
    reading = MeasuredReading(script.case, executor, next(turns), replicas)
    try:
        reading.split(script.shards, script.equal)
        for turn in script.turns:
            reading.read(turn.steps, turn.batch_rows)
            reading.save()
            if reading.has_ended:
                return
            if turn.action == "resume":
                assert turn.case is not None
                reading.resume(turn.case, turn.shards, turn.equal)
                reading.balance = next(turns)
            elif turn.action == "set":
                reading.set_shares(turn.shares)
                reading.save()
            elif turn.action == "leave":
                reading.leave()
                reading.balance = next(turns)
        reading.read(9, reading.batch_rows if reading.iterators else 4)
    finally:
        reading.close()


@examples(30)
@given(scripts(), st.sampled_from([1, 6, 30]), st.integers(0, 2**16), GROUPINGS)
def test_any_mixture_in_groups_by_length(
    script: Script[MixedCase], leg_blocks: int, scramble: int, balances: list[Balance]
) -> None:
    with short_legs(leg_blocks):
        run(script, ScrambledThreads(2, scramble), balances)


@examples(30)
@given(scripts(IN_ROWS), st.sampled_from([1, 6, 30]), st.integers(0, 2**16), BUDGETS)
def test_any_mixture_in_steps_by_tokens(
    script: Script[MixedCase], leg_blocks: int, scramble: int, balances: list[Balance]
) -> None:
    assume(can_deliver(script, balances))
    with short_legs(leg_blocks), pytest.MonkeyPatch.context() as patch:
        patch.setattr(measured_leg, "_MOST_STEPS", 20)
        run(script, ScrambledThreads(2, scramble), balances)


@examples(12)
@given(scripts(IN_ROWS), GROUPINGS | BUDGETS, st.integers(1, 3))
def test_any_measured_mixture_on_a_mesh(
    script: Script[MixedCase], balances: list[Balance], replicas: int
) -> None:
    assume(balances[0].budget is None or can_deliver(script, balances))
    with short_legs(30):
        run(script, ThreadsExecutor(2), balances, replicas)


@pytest.mark.parametrize("step_rows", [4, 6, 9])
def test_a_schedule_in_steps_goes_on_behind_a_group_of_steps_of_another_size(step_rows: int) -> None:
    """The group has 4 steps of 6 rows, and shares change after its second one, and twice behind it."""
    sources = tuple(SourceCase((9, 4, 11), WindowCut(blocks_per_window=2), seed, None) for seed in (1, 2))
    phases = {0: {"c": 3, "a": 1}, 2: {"c": 1}, 5: {"a": 1}, 7: {"c": 1, "a": 1}}
    case = MixedCase(sources, (0, 1), Shares.steps(phases))
    turns = [Turn(1, 3, "resume", case=case, shards=1), Turn(9, step_rows, "save")]
    balance = Balance("x", "length", "free").with_groups(4)
    run(Script(case, 2, False, turns), ThreadsExecutor(2), [balance])


@pytest.mark.parametrize(
    "balance",
    [
        Balance("x", "length ** 2", "free", 2).with_groups(3),
        Balance("flag").with_budget(TokenBudget(5)),
        pytest.param(Balance("x"), marks=pytest.mark.nightly),
    ],
)
@pytest.mark.parametrize("replicas", [None, pytest.param(2, marks=pytest.mark.nightly)])
def test_measured_mixtures_on_ray(balance: Balance, replicas: int | None, ray_local: None) -> None:
    names = list(NAMES[:3])
    shares = Shares.steps(
        {0: {names[0]: 3, names[1]: 1}, 40: dict(zip(names, (1, 2, 1), strict=True))}, unit="rows"
    )
    case = MixedCase(ON_RAY, (0, 1, 2), shares, "drop", 5)
    turns = [
        Turn(6, 5, "set", shares=dict(zip(names, (1, 1, 0), strict=True))),
        Turn(4, 5, "resume", case=case, shards=3),
        Turn(5, 5, "leave"),
        Turn(3, 4, "resume", case=case, shards=2),
        Turn(4, 4, "save"),
    ]
    run(Script(case, 2, False, turns), "ray", [balance], replicas)

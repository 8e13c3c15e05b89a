"""The laws of mixtures whose sequences join documents of all sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.joined_mixtures import JOINED, JoinedCase, JoinedReading
from tests.laws.mixture_balance import BALANCES
from tests.laws.mixture_cases import NAMES, MixedCase, draw_shares, schedules
from tests.laws.reading import ScrambledThreads
from tests.laws.test_mixtures import EQUAL, ON_RAY, Script, Turn, short_legs
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.shares import Shares
from windrow.shuffle.order.balance import Balance

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")


# switched on and off
JOINED_BALANCES = st.lists(
    st.builds(replace, BALANCES, column=st.just("x")) | st.none(), min_size=1, max_size=3
)


@st.composite
def changed(draw: st.DrawFn, case: JoinedCase) -> JoinedCase:
    """The mixture with which a job goes on: the same, or with other shares, sources, or units of shares."""
    how = draw(st.sampled_from(["same", "same", "shares", "sources", "exhaustion", "unit"]))
    mixed = case.mixed
    if how == "unit":
        return replace(case, unit="rows" if case.unit == "tokens" else "tokens")
    if how == "exhaustion":
        when: Any = draw(st.sampled_from(["stop", "drop", "repeat"]))
        return replace(case, mixed=replace(mixed, when_exhausted=when))
    if how == "same":
        return case
    members = mixed.members
    if how == "sources":
        number = draw(st.integers(1, len(mixed.sources)))
        members = tuple(draw(st.permutations(range(len(mixed.sources))))[:number])
    names = [NAMES[number] for number in members]
    shares = draw(schedules(names, ("steps", "rows", "tokens")))
    return replace(case, mixed=replace(mixed, members=members, shares=shares))


@st.composite
def scripts(draw: st.DrawFn, most_turns: int = 5) -> Script[JoinedCase]:
    case = draw(JOINED)
    script: Script[JoinedCase] = Script(case, draw(st.integers(1, 4)), draw(EQUAL), [])
    batch_rows = draw(st.integers(1, 8))
    for _ in range(draw(st.integers(1, most_turns))):
        action: Any = draw(st.sampled_from(["resume", "resume", "set", "leave", "save"]))
        turn: Turn[JoinedCase] = Turn(draw(st.integers(0, 6)), batch_rows, action)
        if action == "set":
            turn = replace(turn, shares=draw_shares(draw, case.mixed.names))
        elif action == "leave":
            batch_rows = draw(st.integers(1, 8))
        elif action == "resume":
            case, batch_rows = draw(changed(case).filter(lambda case: case.delivers)), draw(st.integers(1, 8))
            turn = replace(turn, case=case, shards=draw(st.integers(1, 4)), equal=draw(EQUAL))
        script.turns.append(turn)
    return script


def run(
    script: Script[JoinedCase],
    executor: str | Executor,
    balances: Sequence[Balance | None] = (None,),
    replicas: int | None = None,
) -> None:
    """Read a mixture; wherever iterators begin again, they have the next of the balances."""
    turns = cycle(balances)
    reading = JoinedReading(script.case, executor, next(turns), replicas)
    try:
        reading.split(script.shards, script.equal)
        for turn in script.turns:
            reading.read(turn.steps, turn.batch_rows)
            reading.save()
            if reading.has_ended and reading.equal:
                # rows of the last step were left out, or came twice
                return
            if turn.action == "resume":
                assert turn.case is not None
                reading.go_on(turn.case, turn.shards, turn.equal)
                reading.balance = next(turns)
            elif turn.action == "set":
                reading.set_shares(turn.shares)
                reading.save()
            elif turn.action == "leave":
                reading.leave()
                reading.balance = next(turns)
        reading.read(3, reading.batch_rows if reading.iterators else 4)
    finally:
        reading.close()


@examples(60)
@given(scripts(), st.sampled_from([1, 6, 30]), st.integers(0, 2**16))
def test_any_joined_mixture_and_any_changes(
    script: Script[JoinedCase], leg_blocks: int, scramble: int
) -> None:
    with short_legs(leg_blocks):
        run(script, ScrambledThreads(2, scramble))


@examples(30)
@given(scripts(), st.sampled_from([1, 6, 30]), st.integers(0, 2**16), JOINED_BALANCES)
def test_any_balanced_joined_mixture(
    script: Script[JoinedCase], leg_blocks: int, scramble: int, balances: list[Balance | None]
) -> None:
    with short_legs(leg_blocks):
        run(script, ScrambledThreads(2, scramble), balances)


@examples(12)
@given(scripts(), JOINED_BALANCES, st.integers(1, 3))
def test_any_joined_mixture_on_a_mesh(
    script: Script[JoinedCase], balances: list[Balance | None], replicas: int
) -> None:
    with short_legs(30):
        run(script, ThreadsExecutor(2), balances, replicas)


@pytest.mark.parametrize(
    ("unit", "balance", "replicas"),
    [
        ("tokens", None, None),
        ("rows", Balance("x", "length ** 2", "free", 2), None),
        pytest.param("tokens", Balance("x", "length ** 2"), 2, marks=pytest.mark.nightly),
    ],
)
def test_joined_mixtures_on_ray(
    unit: Any, balance: Balance | None, replicas: int | None, ray_local: None
) -> None:
    # the last source has no token in its only row
    sources = tuple(replace(each, sizes=(*each.sizes, 7)) for each in ON_RAY)
    names = list(NAMES[:3])
    shares = Shares.steps({0: {names[0]: 3, names[1]: 1}, 4: dict(zip(names, (1, 2, 1), strict=True))})
    case = JoinedCase(MixedCase(sources, (0, 1, 2), shares, "drop", 5), 5, unit=unit)
    fewer = replace(case.mixed, members=(2, 0), shares=Shares.constant({names[0]: 1}))
    turns: list[Turn[JoinedCase]] = [
        Turn(6, 5, "set", shares=dict(zip(names, (1, 1, 0), strict=True))),
        Turn(4, 5, "resume", case=case, shards=3),
        Turn(5, 7, "leave"),
        Turn(3, 4, "resume", case=replace(case, mixed=fewer), shards=2),
        Turn(4, 4, "save"),
    ]
    run(Script(case, 2, False, turns), "ray", [balance], replicas)

"""The laws of mixtures: sources keep their orders, shares hold, and no change loses or repeats a row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any, Generic, Literal, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.laws.joined_mixtures import JoinedCase
from tests.laws.mixture_balance import BALANCES
from tests.laws.mixture_cases import (
    MIXTURES,
    NAMES,
    PACKED,
    MixedCase,
    MixtureReading,
    SourceCase,
    draw_shares,
    schedules,
)
from tests.laws.reading import ScrambledThreads
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan import leg, memory_budget
from windrow.pipeline.plan.shares import Shares
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.round_runs import MAX_SLICES
from windrow.shuffle.order.shard_assignment import Equal

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")


Case = TypeVar("Case", MixedCase, JoinedCase)


@dataclass(frozen=True)
class Turn(Generic[Case]):
    """Some steps with a batch size, and then a change: other shares, or a job that goes on from the state."""

    steps: int
    batch_rows: int
    action: Literal["save", "leave", "set", "resume"] = "save"
    shares: dict[str, float] = field(default_factory=dict)
    case: Case | None = None
    shards: int = 1
    equal: Equal = False


@dataclass(frozen=True)
class Script(Generic[Case]):
    """A mixture, and what a job does with it, turn after turn."""

    case: Case
    shards: int
    equal: Equal
    turns: list[Turn[Case]]


# switched on and off
MIXED_BALANCES = st.lists(BALANCES | st.none(), min_size=1, max_size=3).filter(any)
EQUAL: st.SearchStrategy[Equal] = st.sampled_from([False, False, True, "pad"])


@st.composite
def changed(draw: st.DrawFn, case: MixedCase) -> MixedCase:
    """The mixture with which a job goes on: the same, or with other shares, or other sources."""
    how = draw(st.sampled_from(["same", "same", "shares", "sources", "exhaustion"]))
    if how == "same":
        return case
    if how == "exhaustion":
        return replace(case, when_exhausted=draw(st.sampled_from(["stop", "drop", "repeat"])))
    members = case.members
    if how == "sources":
        number = draw(st.integers(1, len(case.sources)))
        members = tuple(draw(st.permutations(range(len(case.sources))))[:number])
    return replace(case, members=members, shares=draw(schedules([NAMES[number] for number in members])))


@st.composite
def scripts(
    draw: st.DrawFn, cases: st.SearchStrategy[MixedCase] = MIXTURES, most_turns: int = 5
) -> Script[MixedCase]:
    case = draw(cases)
    script: Script[MixedCase] = Script(case, draw(st.integers(1, 5)), draw(EQUAL), [])
    batch_rows = draw(st.integers(1, 20))
    for _ in range(draw(st.integers(1, most_turns))):
        action: Any = draw(st.sampled_from(["resume", "resume", "set", "leave", "save"]))
        turn: Turn[MixedCase] = Turn(draw(st.integers(0, 6)), batch_rows, action)
        if action == "set":
            turn = replace(turn, shares=draw_shares(draw, case.names))
        elif action == "leave":
            batch_rows = draw(st.integers(1, 20))
        elif action == "resume":
            case, batch_rows = draw(changed(case)), draw(st.integers(1, 20))
            turn = replace(turn, case=case, shards=draw(st.integers(1, 5)), equal=draw(EQUAL))
        script.turns.append(turn)
    return script


def run(
    script: Script[MixedCase],
    executor: str | Executor,
    balances: Sequence[Balance | None] = (None,),
    replicas: int | None = None,
) -> None:
    """Read a mixture; wherever iterators begin again, they have the next of the balances."""
    turns = cycle(balances)
    reading = MixtureReading(script.case, executor, next(turns), replicas)
    try:
        reading.split(script.shards, script.equal)
        for turn in script.turns:
            reading.read(turn.steps, turn.batch_rows)
            if turn.action == "resume":
                assert turn.case is not None
                if reading.has_ended and reading.equal:
                    # rows of the last step were left out, or came twice
                    return
                reading.resume(turn.case, turn.shards, turn.equal)
                reading.balance = next(turns)
            elif turn.action == "set":
                reading.set_shares(turn.shares)
                reading.save()
            elif turn.action == "leave":
                reading.leave()
                reading.balance = next(turns)
            else:
                reading.save()
        reading.read(3, reading.batch_rows if reading.iterators else 4)
    finally:
        reading.close()


@contextmanager
def short_legs(blocks: int) -> Iterator[None]:
    """Plan about this many blocks at a time; 0: as always. With some, windows are cut into slices."""
    with pytest.MonkeyPatch.context() as patch:
        if blocks > 1:
            patch.setattr(memory_budget, "_FEWEST_SLICES", MAX_SLICES)
        if blocks:
            patch.setattr(leg, "_LEG_WORK", blocks)
            patch.setattr(leg, "_LEG_WINDOWS", 1)
        yield


@examples(30)
@given(scripts(), st.sampled_from([0, 1, 6]), st.integers(0, 2**16))
def test_any_mixture_and_any_changes(script: Script[MixedCase], leg_blocks: int, scramble: int) -> None:
    with short_legs(leg_blocks):
        run(script, ScrambledThreads(2, scramble))


@examples(30)
@given(scripts(), st.sampled_from([0, 1, 6]), st.integers(0, 2**16), MIXED_BALANCES)
def test_any_balanced_mixture(
    script: Script[MixedCase], leg_blocks: int, scramble: int, balances: list[Balance | None]
) -> None:
    with short_legs(leg_blocks):
        run(script, ScrambledThreads(2, scramble), balances)


@pytest.mark.parametrize("step_rows", [1, 2, 3, 4, 5, 7])
@pytest.mark.parametrize("passes", [None, 2])
def test_sources_repeat_after_the_last_row_before_one_is_dropped(step_rows: int, passes: int | None) -> None:
    """With ``passes`` of all sources, the mixture ends with that row, which can end its step or not."""
    sources = tuple(SourceCase((1,), passes=passes) for _ in range(2))
    if passes is None:
        sources = (SourceCase((1,), passes=2), *sources[1:])
    case = MixedCase(sources, (0, 1), Shares.constant({"c": 1, "a": 1}), "drop")
    repeating = replace(case, when_exhausted="repeat")
    steps = -(-4 // step_rows)
    turns = [Turn(steps, step_rows, "resume", case=repeating), Turn(0, 1, "resume", case=repeating)]
    run(Script(case, 1, False, turns), ThreadsExecutor(2))


@examples(20)
@given(scripts(), MIXED_BALANCES, st.integers(1, 3))
def test_any_balanced_mixture_on_a_mesh(
    script: Script[MixedCase], balances: list[Balance | None], replicas: int
) -> None:
    run(script, ThreadsExecutor(2), balances, replicas)


@examples(12)
@given(scripts(PACKED), st.sampled_from([0, 1, 6]), st.integers(0, 2**16))
def test_any_mixture_of_packed_sources(script: Script[MixedCase], leg_blocks: int, scramble: int) -> None:
    with short_legs(leg_blocks):
        run(script, ScrambledThreads(2, scramble))


# what packed sources have, and the sequences of a row's documents
PACKED_BALANCES = st.builds(replace, BALANCES, column=st.just("x"))


@examples(20)
@given(scripts(PACKED), st.sampled_from([0, 1, 6]), st.integers(0, 2**16), PACKED_BALANCES)
def test_any_balanced_mixture_of_packed_sources(
    script: Script[MixedCase], leg_blocks: int, scramble: int, balance: Balance
) -> None:
    with short_legs(leg_blocks):
        run(script, ScrambledThreads(2, scramble), [balance, None])


ON_RAY: tuple[SourceCase, ...] = (
    SourceCase((40, 3, 25), WindowCut(blocks_per_window=1), 7, None, shuffles_blocks=False),
    SourceCase((6, 8, 6, 5, 11, 0), WindowCut(blocks_per_window=2), 8, 3, shuffles_blocks=False),
    SourceCase((1,), WindowCut(), None, None, shuffles_blocks=False),
)


@pytest.mark.parametrize(
    ("packed", "balance", "replicas"),
    [
        (0, None, None),
        (0, Balance("x", "length ** 2", "free", 3), 2),
        pytest.param(0, Balance("x", "length ** 2"), None, marks=pytest.mark.nightly),
        pytest.param(5, None, None, marks=pytest.mark.nightly),
        (5, Balance("x", "length ** 2", "free", 3), None),
    ],
)
def test_changes_on_ray(packed: int, balance: Balance | None, replicas: int | None, ray_local: None) -> None:
    sources = ON_RAY
    if packed:
        # the last one has no token in its only row
        sources = tuple(replace(each, packed=packed, sizes=(*each.sizes, 7)) for each in ON_RAY)
    names = list(NAMES[:3])
    shares = Shares.steps({0: {names[0]: 3, names[1]: 1}, 4: dict(zip(names, (1, 2, 1), strict=True))})
    case = MixedCase(sources, (0, 1, 2), shares, "drop", 5)
    script = Script(
        case,
        2,
        False,
        [
            Turn(6, 5, "set", shares=dict(zip(names, (1, 1, 0), strict=True))),
            Turn(4, 5, "resume", case=case, shards=3),
            Turn(5, 7, "leave"),
            Turn(
                3,
                4,
                "resume",
                case=replace(case, members=(2, 0), shares=Shares.constant({names[0]: 1})),
                shards=2,
            ),
            Turn(4, 4, "save"),
        ],
    )
    run(script, "ray", [balance], replicas)

"""Mixtures that are measured first, or join documents, under torchrun: ranks get what the laws check on threads."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.end_to_end.drawn_mixtures_script import Leg, read
from tests.end_to_end.torchrun_jobs import run_torchrun
from tests.laws.joined_mixtures import JoinedCase
from tests.laws.measured_mixtures import GROUPED, TOGETHER
from tests.laws.mixture_cases import NAMES, MixedCase, SourceCase
from windrow.pipeline.plan.shares import Shares
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.token_budget import TokenBudget

pytestmark = [pytest.mark.timeout(2_700), pytest.mark.nightly]
SCRIPT = Path(__file__).with_name("drawn_mixtures_script.py")
RANKS = 4
SOURCES = (
    SourceCase((40, 3, 25), WindowCut(blocks_per_window=1), 7, None),
    SourceCase((6, 8, 6, 5, 11, 0), WindowCut(blocks_per_window=2), 8, None),
    SourceCase((9, 2), WindowCut(), None, 40),
)
SHARES = {NAMES[0]: 3, NAMES[1]: 2, NAMES[2]: 1}
CASE = MixedCase(SOURCES, (0, 1, 2), Shares.steps({0: SHARES, 60: {NAMES[1]: 1}}, unit="rows"), "drop", 5)

BUDGETS = st.builds(
    Balance.with_budget,
    st.just(Balance("x", "length ** 2", microbatches=2)),
    st.builds(TokenBudget, st.sampled_from([400_000, 900_000]), padded=st.booleans()),
)
GROUPINGS = (GROUPED | TOGETHER).filter(lambda each: each.column == "x")


def legs(
    balances: st.SearchStrategy[Balance | None], joined: JoinedCase | None = None
) -> st.SearchStrategy[list[Leg]]:
    """A mixture that is read on with other numbers of shards and other balances."""
    shards, rows, steps = st.sampled_from([1, 2, 4]), st.integers(1, 6), st.integers(0, 9)
    leg = st.builds(
        Leg, st.just(CASE), shards, rows, steps, st.just(False), balance=balances, joined=st.just(joined)
    )
    return st.lists(leg, min_size=2, max_size=4)


# a group is read to its end before steps end by their tokens
LEGS = legs(GROUPINGS) | legs(BUDGETS)
JOINED = [JoinedCase(CASE, 7, unit=unit) for unit in ("rows", "tokens")]
PACKED_BALANCES = st.none() | st.builds(replace, TOGETHER, column=st.just("x"))
JOINED_LEGS = st.one_of(*(legs(PACKED_BALANCES, case) for case in JOINED))


def expect(legs: list[Leg]) -> list[tuple[list[Any], dict[str, Any]]]:
    """Of each leg, what its shards read, and their state."""
    found, state = [], None
    for leg in legs:
        shards = leg.pipeline("threads").split(leg.shards, equal=leg.equal, state_dict=state)
        with ThreadPoolExecutor(leg.shards) as threads:
            batches = list(threads.map(read, shards, [leg] * leg.shards))
        state = shards[0].state_dict()
        for shard in shards:
            shard.close()
        found.append((batches, state))
    return found


@settings(
    max_examples=3,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.tuples(*[LEGS] * 4, *[JOINED_LEGS] * 2).map(list))
def test_ranks_read_what_threads_do(tmp_path: Path, drawn: list[list[Leg]]) -> None:
    listed = tmp_path / "cases.pickle"
    listed.write_bytes(pickle.dumps(drawn))
    done = run_torchrun(SCRIPT, RANKS, [str(listed)], seconds=600.0)
    assert done.code == 0, done.output
    reports = iter(zip(*[done.ranks[rank] for rank in range(RANKS)], strict=True))
    for legs in drawn:
        for batches, state in expect(legs):
            for shard, found, own_state in next(reports):
                assert found == batches[shard]
                assert own_state == state
    assert next(reports, None) is None

"""Drawn mixtures under torchrun, each leg resumed from the last: the laws of mixtures hold for all ranks."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.end_to_end.drawn_mixtures_script import Leg
from tests.end_to_end.torchrun_jobs import run_torchrun
from tests.laws.mixture_cases import MIXTURES, PACKED, MixedCase, MixedRows, draw_shares, replace_rows
from tests.laws.reference import assign_as_lists
from tests.laws.test_mixtures import EQUAL, changed

pytestmark = [pytest.mark.timeout(2_700), pytest.mark.nightly]
SCRIPT = Path(__file__).with_name("drawn_mixtures_script.py")
JOBS, CASES = 4, 6
# of a job: each leg starts a run, which takes four ranks on two cores ten seconds or more
JOB_SECONDS = 600.0


@st.composite
def legs(draw: st.DrawFn, ranks: int, cases: st.SearchStrategy[MixedCase]) -> list[Leg]:
    """A mixture that goes on with others, on numbers of shards that divide the ranks."""
    found, case = list[Leg](), draw(cases)
    for _ in range(draw(st.integers(1, 3))):
        case = draw(changed(case)) if found else case
        shares = draw_shares(draw, case.names) if draw(st.booleans()) else {}
        shards = draw(st.sampled_from([count for count in range(1, ranks + 1) if ranks % count == 0]))
        found.append(
            Leg(case, shards, draw(st.integers(1, 20)), draw(st.integers(0, 6)), draw(EQUAL), shares)
        )
    return found


JOB = st.sampled_from([2, 3, 4]).flatmap(
    lambda ranks: st.tuples(
        st.just(ranks),
        st.lists(
            st.booleans().flatmap(lambda packs: legs(ranks, PACKED if packs else MIXTURES)),
            min_size=CASES,
            max_size=CASES,
        ),
    )
)


@dataclass
class Expected:
    """What the reference says of a leg."""

    # [shard][stretch][step] -> rows
    batches: list[list[list[list[Any]]]]
    # where its state is; None: rows of the last step were left out, or came twice
    row: int | None


def expect(model: MixedRows, leg: Leg) -> Expected:
    """The batches of a leg, which moves the model on."""
    found: list[list[list[list[Any]]]] = [[] for _ in range(leg.shards)]
    has_ended = False
    for stretch in range(leg.stretches):
        if stretch:
            model.set_shares(leg.shares)
        has_ended = not replace_rows(model).step(1)
        for of_shard in found:
            of_shard.append([])
        for _ in range(leg.steps):
            if not has_ended:
                has_ended = _add_step(model, leg, found)
    return Expected(found, None if has_ended and leg.equal else model.row)


def _add_step(model: MixedRows, leg: Leg, found: list[list[list[list[Any]]]]) -> bool:
    """Add the batches of a step; returns whether the mixture ends with it."""
    before = dict(model.counts or dict.fromkeys(leg.case.names, 0))
    latest = model.step(leg.shards * leg.batch_rows)
    rows = {
        name: iter(leg.case.sources[number].rows(number, before[name], latest.count(name)))
        for number, name in zip(leg.case.members, leg.case.names, strict=True)
    }
    values = [next(rows[name]) for name in latest]
    assigned = assign_as_lists(len(values), leg.shards, leg.batch_rows, leg.equal)
    for of_shard, batches in zip(found, assigned.batches, strict=True):
        of_shard[-1] += [[values[row] for row in batch] for batch in batches]
    return len(latest) < leg.shards * leg.batch_rows


def plan(drawn: list[Leg]) -> tuple[list[Leg], list[Expected]]:
    """The legs up to one after which the reference knows no place, and what they deliver."""
    model = MixedRows(drawn[0].case)
    expected = list[Expected]()
    for leg in drawn:
        model = model.resumed(leg.case) if expected else model
        expected.append(expect(model, leg))
        if expected[-1].row is None:
            break
    return drawn[: len(expected)], expected


@settings(
    max_examples=JOBS,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(JOB)
def test_drawn_mixtures_resume_each_other(tmp_path: Path, job: tuple[int, list[list[Leg]]]) -> None:
    ranks, drawn = job
    planned = [plan(case) for case in drawn]
    listed = tmp_path / "cases.pickle"
    listed.write_bytes(pickle.dumps([case for case, _ in planned]))
    done = run_torchrun(SCRIPT, ranks, [str(listed)], seconds=JOB_SECONDS)
    assert done.code == 0, done.output
    reports = iter(zip(*[done.ranks[rank] for rank in range(ranks)], strict=True))
    for case, expected in planned:
        for leg, of_leg in zip(case, expected, strict=True):
            by_rank = next(reports)
            for shard, found, state in by_rank:
                assert found == of_leg.batches[shard]
                assert state == by_rank[0][2]
                assert len(json.dumps(state)) < 1024
                if of_leg.row is not None:
                    assert state["row"] == of_leg.row * max(1, leg.case.packed)
    assert next(reports, None) is None

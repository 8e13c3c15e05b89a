"""States of mixtures: a job goes on from any row with the rows that would have come, or with other shares."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.laws.examples import examples
from tests.laws.mixture_cases import MIXTURES, MixedCase, SourceCase
from tests.pipeline.plan.test_mixture import plan, sources_of
from windrow.core.errors import StateError
from windrow.pipeline.checkpoint.mixed_state import (
    MixedState,
    change_shares,
    describe_mixture,
    parse_mixed,
    resume_mixture,
)
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.mixture import Mixture
from windrow.pipeline.plan.mixture_leg import MixtureLeg
from windrow.pipeline.plan.shares import Shares

ROWS = 120


def saved(leg: MixtureLeg, row: int) -> MixedState:
    """The state at a row, as JSON restores it."""
    text = json.dumps(describe_mixture(leg.mixture, leg, row).to_dict(), sort_keys=True)
    found = parse_mixed(json.loads(text))
    assert found is not None
    return found


def resumed(mixture: Mixture, state: MixedState, row: int, step_rows: int) -> MixtureLeg:
    """The leg with which a job goes on."""
    cursor = resume_mixture(mixture, state, Cursor(2, row))
    assert cursor.row == row
    assert cursor.mixed is not None
    return MixtureLeg(mixture, cursor.mixed, row, step_rows)


def start(case: MixedCase, step_rows: int) -> MixtureLeg:
    mixture = plan(case)
    return MixtureLeg(mixture, mixture.start, 0, step_rows)


@examples(60)
@given(MIXTURES, st.integers(1, 30), st.data())
def test_the_same_mixture_goes_on_as_if_it_had_not_been_interrupted(
    case: MixedCase, step_rows: int, data: st.DataObject
) -> None:
    leg = start(case, step_rows)
    row = data.draw(st.integers(0, min(leg.stop, ROWS) // step_rows)) * step_rows
    again = resumed(plan(case), saved(leg, row), row, step_rows)
    stop = min(leg.stop, ROWS)
    assert min(again.stop, ROWS) == stop
    if stop > row:
        assert sources_of(again, stop) == sources_of(leg, stop)[row:]
        assert saved(again, row) == saved(leg, row)


@pytest.mark.parametrize("when", ["stop", "drop"])
def test_a_source_without_rows_keeps_its_place_until_its_next_row_would_come(when: Any) -> None:
    sources = (SourceCase((1,), passes=1), SourceCase((1000,)), SourceCase((1000,)))
    leg = start(MixedCase(sources, (0, 1, 2), Shares.constant({"c": 1, "a": 9, "é": 7}), when), 1)
    stop = min(leg.stop, 60)
    for row in range(stop):
        again = resumed(leg.mixture, saved(leg, row), row, 1)
        assert min(again.stop, 60) == stop
        assert sources_of(again, stop) == sources_of(leg, stop)[row:]


def test_a_source_that_has_rows_again_counts_as_a_change_of_shares() -> None:
    sources = (SourceCase((1,), passes=1), SourceCase((1000,)))
    case = MixedCase(sources, (0, 1), Shares.constant({"c": 1, "a": 1}), "drop")
    leg = start(case, 1)
    for row in range(5, 40):
        again = resumed(plan(replace(case, when_exhausted="repeat")), saved(leg, row), row, 1)
        found = np.array(sources_of(again, row + 50))
        shares = np.cumsum(found == 0) * 2 - np.arange(1, 51)
        assert np.abs(shares).max() < 2


def test_a_job_that_repeats_sources_goes_on_as_if_it_had_always_until_one_is_dropped() -> None:
    sources = (SourceCase((2,), passes=1), SourceCase((1000,)))
    case = MixedCase(sources, (0, 1), Shares.constant({"c": 1, "a": 1}), "drop")
    leg, repeating = start(case, 1), plan(replace(case, when_exhausted="repeat"))
    dropped_at = leg.stretches[1].start
    expected = sources_of(MixtureLeg(repeating, repeating.start, 0, 1), 60)
    for row in range(dropped_at + 1):
        state = saved(leg, row)
        assert [each.begun for _, each in state.sources] == [0, 0]
        for _ in range(2):
            again = resumed(repeating, state, row, 1)
            assert sources_of(again, 60) == expected[row:]
            state = saved(again, row)
    later = saved(leg, dropped_at + 1)
    assert (later.since, [each.begun for _, each in later.sources]) == (1, [-1, dropped_at - 2])


def test_a_state_that_names_a_source_as_dropped_at_its_row_goes_on_without_it() -> None:
    """States did so at the row where the source is due, before any row that it does not have."""
    sources = (SourceCase((2,), passes=1), SourceCase((1000,)), SourceCase((1000,)))
    leg = start(MixedCase(sources, (0, 1, 2), Shares.constant({"c": 1, "a": 1, "é": 2}), "drop"), 1)
    row = leg.stretches[1].start
    state = saved(leg, row)
    counted = [each.rows for _, each in state.sources]
    old = replace(
        state,
        since=0,
        sources=tuple(
            (name, replace(each, begun=begun))
            for (name, each), begun in zip(state.sources, [-1, *counted[1:]], strict=True)
        ),
    )
    again = resumed(leg.mixture, old, row, 1)
    assert sources_of(again, 60) == sources_of(leg, 60)[row:]
    assert saved(again, row) == old


@examples(40)
@given(MIXTURES, st.integers(1, 20), st.integers(0, 5), st.data())
def test_shares_that_were_set_hold_from_there_on_and_in_states(
    case: MixedCase, step_rows: int, steps: int, data: st.DataObject
) -> None:
    case = replace(case, when_exhausted="repeat")
    leg, row = start(case, step_rows), steps * step_rows
    weights = data.draw(
        st.lists(st.integers(0, 9), min_size=len(case.names), max_size=len(case.names)).filter(any)
    )
    at = Cursor(0, row, mixed=leg.point_at(row))
    cursor = change_shares(leg.mixture, at, step_rows, dict(zip(case.names, weights, strict=True)))
    assert (cursor.epoch, cursor.row) == (1, row)
    assert cursor.mixed is not None
    changed = MixtureLeg(leg.mixture, cursor.mixed, row, step_rows)
    assert (changed.counts_at(row) == leg.counts_at(row)).all()
    found, stop = sources_of(changed, row + ROWS), min(changed.stop, row + ROWS)
    counts = np.cumsum(np.array(found)[:, None] == np.arange(len(weights)), axis=0)
    missed = counts * sum(weights) - np.arange(1, stop - row + 1)[:, None] * np.array(weights)
    assert np.abs(missed).max() < sum(weights)
    later = row + data.draw(st.integers(0, (stop - row) // step_rows)) * step_rows
    state = saved(changed, later)
    assert state.is_set
    again = resumed(plan(case), state, later, step_rows)
    if later < stop:
        ends = min(stop, again.stop)
        assert sources_of(again, ends) == sources_of(changed, ends)[later - row :]


def test_states_do_not_grow_with_changes() -> None:
    names = ("c", "a", "é")
    sources = tuple(SourceCase((50,) * 4) for _ in names)
    leg = start(MixedCase(sources, (0, 1, 2), Shares.constant(dict.fromkeys(names, 1))), 10)
    sizes = []
    for step in range(1, 30):
        row = step * 10
        cursor = Cursor(step, row, mixed=leg.point_at(row))
        cursor = change_shares(leg.mixture, cursor, 10, {"c": step, "a": 3, "é": 7})
        assert cursor.mixed is not None
        leg = MixtureLeg(leg.mixture, cursor.mixed, row, 10)
        sizes.append(len(json.dumps(describe_mixture(leg.mixture, leg, row).to_dict())))
    assert max(sizes) - min(sizes) < 20


VALID: dict[str, Any] = {
    "since": 0,
    "steps": 1,
    "schedule": "ab",
    "is_set": True,
    "sources": [["a", "12", 3, 4, 2]],
}


@pytest.mark.parametrize(
    "broken",
    [
        None,
        [],
        {**VALID, "sources": {"a": 1}},
        {**VALID, "sources": [["a", "12", 3]]},
        {**VALID, "sources": ["a124"]},
        {**VALID, "sources": [["a", "12", -3, 4, 2]]},
        {**VALID, "sources": [["a", 12, 3, 4, 2]]},
        {**VALID, "since": -1},
        {**VALID, "since": None},
        {**VALID, "steps": 0.5},
        {**VALID, "schedule": 3},
    ],
)
def test_what_is_no_state_of_a_mixture_is_noticed(broken: Any) -> None:
    assert parse_mixed(broken) is None


def test_states_come_back_as_other_numbers_and_sequences() -> None:
    found = parse_mixed(VALID)
    assert found is not None
    assert found.to_dict() == VALID
    others = {**VALID, "since": np.int64(0), "steps": 1.0, "sources": (("a", "12", np.int32(3), 4, 2),)}
    assert parse_mixed(others) == found


def test_states_of_mixtures_and_of_other_pipelines_are_not_interchangeable() -> None:
    source = windrow.range(20).repeat(2).random_shuffle_each_window(seed=3)
    mixture = windrow.mixture({"a": source}, {"a": 1}, seed=3)
    with pytest.raises(StateError, match=r"then +now\n +pipeline +no mixture +mixture$"):
        mixture.iterator(state_dict=source.iterator().state_dict())
    with pytest.raises(StateError, match=r"then +now\n +pipeline +mixture +no mixture$"):
        source.iterator(state_dict=mixture.iterator().state_dict())

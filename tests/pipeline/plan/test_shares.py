"""`Shares` as values: what they take for a share, when phases hold, and what they refuse."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from windrow.core.errors import PlanError
from windrow.pipeline.plan.shares import Shares, make_shares, phase_starts

NUMBERED: Any = {1: 1}
EPOCHS: Any = "epochs"


@pytest.mark.parametrize(
    ("shares", "weights"),
    [
        ({"a": 0.7, "b": 0.2, "c": 0.1}, (7, 2, 1)),
        ({"a": 3, "b": 1}, (3, 1, 0)),
        ({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, (1, 1, 1)),
        ({"a": Decimal("0.25"), "c": Fraction(3, 4)}, (1, 0, 3)),
        ({"a": np.float64(0.5), "b": np.int64(0), "c": 0.5}, (1, 0, 1)),
    ],
)
def test_shares_are_taken_as_they_are_written(shares: dict[str, Any], weights: tuple[int, ...]) -> None:
    assert Shares.constant(shares).phases[0].weights(["a", "b", "c"]) == weights


def test_shares_without_a_small_common_denominator_are_rounded() -> None:
    shares = {"a": 0.1234567890123, "b": 0.7654321, "c": 1e-9}
    weights = Shares.constant(shares).phases[0].weights(list(shares))
    assert sum(weights) == 2**18
    assert weights[2] == 1
    assert weights[0] / sum(weights) == pytest.approx(0.1234567890123 / 0.8888888890123, abs=2**-17)


def test_a_phase_holds_from_its_start_on() -> None:
    shares = Shares.steps({0: {"a": 1}, 10: {"b": 1}})
    assert [shares.at(step) for step in (0, 9, 10, 10**9)] == [{"a": 1.0}, {"a": 1.0}, {"b": 1.0}, {"b": 1.0}]
    assert [
        begin for begin, _ in phase_starts(shares, row=50, steps=5, row_of=lambda step: 8 * step + 10)
    ] == [50, 90]
    rows = Shares.steps({0: {"a": 1}, 10: {"b": 1}}, unit="rows")
    assert [begin for begin, _ in phase_starts(rows, row=4, steps=1, row_of=lambda step: 4 * step)] == [4, 10]


def test_a_ramp_has_the_mean_of_its_ends() -> None:
    ramp = Shares.linear({"a": 1}, {"b": 1}, start=100, stop=300, stairs=20)
    assert ramp.at(0) == {"a": 1.0}
    assert ramp.at(300) == {"b": 1.0}
    values = [ramp.at(step)["b"] for step in range(100, 300)]
    assert values == sorted(values)
    assert sum(values) / 200 == pytest.approx(0.5)


def test_long_schedules_are_printed_in_part() -> None:
    ramp = Shares.linear({"a": 1}, {"b": 1}, stop=100, stairs=8)
    shown = repr(ramp)
    assert shown.startswith("Shares.steps({0: {'a': 0.9375, 'b': 0.0625}, 12: ")
    assert shown.endswith("}, ... 6 more ..., 100: {'b': 1}}, unit='steps')")


@pytest.mark.parametrize(
    "shares",
    [
        Shares.constant({"a": 0.1, "b": 3}),
        Shares.steps({0: {"a": 1}, 7: {"a": 1, "b": 2}}, unit="rows"),
        Shares.linear({"a": 1}, {"a": 1, "b": 2}, stop=30, stairs=7),
    ],
)
def test_json_keeps_a_value(shares: Shares) -> None:
    again = Shares.from_json(shares.to_json())
    assert (again, hash(again), repr(again)) == (shares, hash(shares), repr(shares))
    assert make_shares(shares) is shares


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Shares.constant({}), "give a dict"),
        (lambda: Shares.constant({"a": 0}), "at least one must be above 0"),
        (lambda: Shares.constant({"a": -1}), "0 or more"),
        (lambda: Shares.constant({"a": float("nan")}), "0 or more"),
        (lambda: Shares.constant({"a": True}), "0 or more"),
        (lambda: Shares.constant(NUMBERED), "by the names of sources"),
        (lambda: Shares.steps({}), "a dict from steps"),
        (lambda: Shares.steps({3: {"a": 1}}), "begin at 0"),
        (lambda: Shares.steps({0: {"a": 1}, -1: {"a": 1}}), "0 or more"),
        (lambda: Shares.steps({0: {"a": 1}}, unit=EPOCHS), "'steps', 'rows' or 'tokens'"),
        (lambda: Shares.linear({"a": 1}, {"b": 1}, start=5, stop=5), "start < stop"),
        (lambda: Shares.from_json("{}"), "what to_json"),
    ],
)
def test_what_is_no_share_is_refused(make: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        make()

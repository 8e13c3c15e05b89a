"""Dealing the rows of steps to bins by cost: the kernel and its twin, and how even the bins get."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.shuffle.kernels import native
from windrow.shuffle.order.step_balance import balance_steps, number_rows


@st.composite
def _steps(draw: st.DrawFn) -> dict[str, Any]:
    # the kernel sorts large steps in another way than small ones, and looks through few bins
    sizes = draw(st.lists(st.integers(0, 60) | st.just(300), min_size=1, max_size=3))
    bins, starts = draw(st.integers(1, 20)), np.append(0, np.cumsum(sizes)).astype(np.int64)
    random = np.random.default_rng(draw(st.integers(0, 2**16)))
    rows = int(starts[-1])
    costs = {
        "few": random.integers(0, 4, rows).astype(np.float64),
        "lengths": np.exp(random.normal(3, 1, rows)),
        "squares": np.exp(random.normal(3, 1, rows)) ** 2,
        "none": np.zeros(rows),
    }[draw(st.sampled_from(["few", "lengths", "squares", "none"]))]
    room = None
    if draw(st.booleans()):
        room = np.full(bins, -(-max(sizes) // bins), np.int64)
        room[0] += draw(st.integers(0, 5))
        if draw(st.booleans()):
            # of each step, exactly as many as it has rows
            shares = [random.multinomial(size, np.full(bins, 1 / bins)) for size in sizes]
            room = np.stack(shares).astype(np.int64)
    return {"costs": costs, "starts": starts, "bins": bins, "room": room}


@given(_steps())
def test_the_kernel_and_its_twin_agree(steps: dict[str, Any]) -> None:
    found = balance_steps(**steps)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LIBRARY", None)
        assert balance_steps(**steps).tolist() == found.tolist()


@given(_steps())
def test_bins_have_room_and_are_not_empty(steps: dict[str, Any]) -> None:
    found, bins, starts = balance_steps(**steps), steps["bins"], steps["starts"].tolist()
    for step, (first, stop) in enumerate(pairwise(starts)):
        counts = np.bincount(found[first:stop], minlength=bins)
        if steps["room"] is None:
            assert counts.min() > 0 or stop - first < bins
        else:
            assert (counts <= np.broadcast_to(steps["room"], (len(starts) - 1, bins))[step]).all()


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(0, 10))
def test_numbers_follow_the_groups(keys: list[int], first: int) -> None:
    starts = first + np.arange(6) * 100
    numbers = number_rows(np.array(keys, np.uint32), starts).tolist()
    assert numbers == [starts[key] + keys[:at].count(key) for at, key in enumerate(keys)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LIBRARY", None)
        assert number_rows(np.array(keys, np.uint32), starts).tolist() == numbers


# by power of the length: of the most expensive bin over what is unavoidable, on the mean of the steps
@pytest.mark.parametrize("rows_each", [8, 16, 32])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize(("is_free", "most"), [(True, 1.02), (False, 1.1)])
def test_bins_cost_about_the_same(rows_each: int, power: int, is_free: bool, most: float) -> None:
    bins, steps = 8, 200
    lengths = np.maximum(1, np.exp(np.random.default_rng(5).normal(6, 1, (steps, bins * rows_each))).round())
    costs, starts = lengths**power, np.arange(steps + 1) * bins * rows_each
    found = balance_steps(costs.ravel(), starts, bins, None if is_free else np.full(bins, rows_each))
    keys = np.repeat(np.arange(steps), bins * rows_each) * bins + found
    spent = np.bincount(keys, costs.ravel(), minlength=steps * bins).reshape(steps, bins).max(axis=1)
    unavoidable = np.maximum(costs.sum(axis=1) / bins, costs.max(axis=1))
    assert (spent / unavoidable).mean() <= most

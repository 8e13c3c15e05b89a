"""Budgets: windows held whole, then sliced, then an error; the estimate never exceeds the limit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.errors import PlanError
from windrow.pipeline.plan.window_budget import MAX_SLICES, Budget, RowOverhead, RowSizes, plan_budget

SIZES = st.integers(0, 1000)


def plan(
    window: int, windows: int, limit: int, *, runs: int = 0, tasks: int = 0, all_: bool = True, most: int = 0
) -> Budget:
    return plan_budget(
        window_bytes=window,
        windows=windows,
        runs_bytes=runs,
        tasks_bytes=tasks,
        limit_bytes=limit,
        limit_covers_all=all_,
        exact=True,
        max_windows=most,
    )


@given(SIZES, st.integers(0, 4), st.integers(1, 3000), SIZES, SIZES, st.booleans())
def test_budget_stays_within_the_limit(
    window: int, windows: int, limit: int, runs: int, tasks: int, all_: bool
) -> None:
    rest = limit - (runs + tasks if all_ else 0)
    if window > rest:
        with pytest.raises(PlanError, match="memory_limit"):
            plan(window, windows, limit, runs=runs, tasks=tasks, all_=all_)
        return
    budget = plan(window, windows, limit, runs=runs, tasks=tasks, all_=all_)
    assert budget.windows_bytes <= max(rest, 0)
    assert budget.windows_bytes >= window * min(windows, 1)
    assert budget.windows_bytes <= budget.windows_limit_bytes <= max(rest, 0)
    # what is needed is the limit that the scheduler enforces
    assert budget.needed_bytes == budget.windows_limit_bytes + runs + tasks
    # of small numbers as much again is kept for reuse, where the limit covers it
    assert budget.total_bytes == (min(limit, 2 * budget.needed_bytes) if all_ else budget.needed_bytes)
    assert budget.windows <= windows
    assert (budget.slices == 1) == (budget.windows == windows)


@given(st.integers(1, 100), st.integers(1, 4), st.integers(0, 6), st.integers(1, 1000))
def test_extra_windows_are_held_only_if_requested_ones_fit_whole(
    window: int, windows: int, most: int, limit: int
) -> None:
    if window > limit:
        return
    plain = plan(window, windows, limit)
    roomy = plan(window, windows, limit, most=most)
    if plain.slices > 1:
        assert roomy == plain
        assert roomy.extra_windows == 0
    else:
        assert roomy.windows == max(windows, min(most, limit // window)) == windows + roomy.extra_windows
        assert roomy.windows * window <= roomy.windows_bytes <= limit


def test_memory_for_reuse_is_a_part_of_much_and_never_beyond_the_limit() -> None:
    gib = 2**30
    few, some, much = (plan(size, 1, 100 * gib) for size in (2**20, gib // 2, 8 * gib))
    assert few.reuse_bytes == few.needed_bytes
    assert some.reuse_bytes == 192 * 2**20
    assert much.reuse_bytes == much.needed_bytes // 8
    assert plan(8 * gib, 1, much.needed_bytes + 5).reuse_bytes == 5
    # on Ray, stores and workers have limits of their own
    assert plan(2**20, 1, gib, all_=False).reuse_bytes == 0


def test_estimate_can_grow_up_to_the_limit() -> None:
    budget = plan_budget(
        window_bytes=100,
        windows=2,
        runs_bytes=30,
        tasks_bytes=20,
        limit_bytes=1000,
        limit_covers_all=True,
        exact=False,
    )
    assert (budget.windows_bytes, budget.windows_limit_bytes, budget.needed_bytes) == (200, 950, 250)
    assert plan(100, 2, 1000).windows_limit_bytes == 200


@given(st.floats(0.0, 10_000.0), st.floats(0.0, 500.0), st.booleans())
def test_larger_rows_reduce_windows_within_the_limit(
    row_bytes: float, excess: float, covers_all: bool
) -> None:
    overhead = RowOverhead(
        3, 100, 10, min_run_bytes=10_000, tasks=2, block_rows=5, row_bytes=100, block_bytes=2_500
    )
    budget = plan_budget(
        window_bytes=100_000,
        window_rows=1_000,
        windows=2,
        runs_bytes=overhead.runs_bytes(100),
        tasks_bytes=20_000,
        limit_bytes=1_000_000,
        limit_covers_all=covers_all,
        exact=False,
        overhead=overhead,
    )
    grown = budget.grown(RowSizes(row_bytes, row_bytes, excess, 2.0))
    assert abs(grown.window_bytes - 100_000 - 1_000 * excess) < 2
    runs = 3 * max(10_000, 10 * row_bytes, 100 * row_bytes if row_bytes <= 200 else 0)
    blocks = max(0, 5 * row_bytes - 2_500)
    assert abs(grown.runs_bytes - max(runs, budget.runs_bytes)) < 6
    assert abs(grown.tasks_bytes - 20_000 - 2 * blocks) < 6
    least = covers_all * (runs + 20_000 + blocks)
    assert abs(grown.windows_limit_bytes - max(0, 1_000_000 - least)) < 8
    assert grown.windows_bytes <= grown.windows_limit_bytes
    if covers_all:
        assert grown.total_bytes <= 1_000_000
    assert budget.grown(RowSizes()) == budget


def test_estimates_raise_nothing() -> None:
    options: dict[str, Any] = {
        "window_bytes": 100,
        "windows": 2,
        "runs_bytes": 30,
        "tasks_bytes": 20,
        "limit_covers_all": True,
    }
    budget = plan_budget(**options, limit_bytes=60, exact=False, must_fit=False)
    assert (budget.windows, budget.windows_bytes, budget.windows_limit_bytes) == (1, 10, 10)
    assert budget.slices == MAX_SLICES
    assert plan_budget(**options, limit_bytes=40, exact=False, must_fit=False).windows_limit_bytes == 0


def test_single_window_can_be_a_little_larger_in_another_epoch() -> None:
    assert plan(100, 1, 1000).windows_limit_bytes == 125
    assert plan(100, 1, 110).windows_limit_bytes == 110


def test_all_windows_fit() -> None:
    budget = plan(100, 3, 300)
    assert (budget.slices, budget.windows, budget.windows_bytes) == (1, 3, 300)


def test_small_windows_get_the_budget_of_as_many_large_ones() -> None:
    assert plan(100, 2, 1000).read_ahead_bytes == 200
    assert replace(plan(100, 2, 1000), copies=1.5).read_ahead_bytes == 133
    assert plan(100, 2, 150).read_ahead_bytes == 0, "windows that do not fit whole leave nothing"


def test_windows_that_do_not_all_fit_are_sliced() -> None:
    budget = plan(100, 2, 199)
    assert (budget.slices, budget.windows, budget.windows_bytes) == (MAX_SLICES, 1, 199)


def test_error_names_the_largest_window_that_fits() -> None:
    with pytest.raises(PlanError, match=r"bytes_per_window=70\)"):
        plan(101, 2, 100, runs=20, tasks=10)
    assert plan(70, 2, 100, runs=20, tasks=10).windows == 1

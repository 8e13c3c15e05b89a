"""What is known around a window does not depend on which windows were asked for before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.reference import group_by_length
from windrow.pipeline.plan.neighbouring_windows import DividedEpoch
from windrow.pipeline.plan.step_places import MeasuredRows
from windrow.pipeline.plan.window_places import WindowPlan
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import ShardAssignment


@given(
    windows=st.lists(st.lists(st.integers(0, 9), max_size=12), min_size=1, max_size=5),
    steps=st.integers(2, 3),
    step_rows=st.integers(1, 5),
    data=st.data(),
)
def test_rows_around_a_window_that_is_asked_for_first(
    windows: list[list[int]], steps: int, step_rows: int, data: Any
) -> None:
    firsts = np.append(0, np.cumsum([len(each) for each in windows])).tolist()
    grouped = [
        group_by_length(rows, first, steps, step_rows) for rows, first in zip(windows, firsts, strict=False)
    ]
    of_epoch = [length for rows in grouped for length in rows]
    window = data.draw(st.integers(0, len(windows) - 1))
    whole = ShardAssignment(1, step_rows, balance=Balance("x").with_groups(steps))
    counts: Any = SimpleNamespace(
        first_row=lambda window: firsts[window], shape=SimpleNamespace(windows=windows), first_window=0
    )
    measured = MeasuredRows(lambda _, number: WindowPlan(np.array([number]), np.array([0, 1])), seed=None)
    known = [np.array(each, np.float32) for each in windows]
    low, found, _ = measured.around(DividedEpoch(0, counts, whole.from_row(0, None), known), window)
    assert found.tolist() == of_epoch[low : low + len(found)]
    assert low <= firsts[window]
    assert low + len(found) >= firsts[window + 1]

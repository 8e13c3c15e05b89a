"""Rows of a source's window in a mixture: which shards get them, and which runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.divided_rounds import find_run_steps
from windrow.shuffle.order.mixed_steps import SourceRows, divide_source
from windrow.shuffle.order.shard_assignment import ShardAssignment

FREE = Balance("length", rows="free")


def _make_rows(rows: list[int], costs: list[float], shared: list[int] | None = None) -> SourceRows:
    """Rows of the second of two sources."""

    def count(at: NDArray[Any]) -> NDArray[np.int64]:
        own = np.searchsorted(np.sort(rows), at)
        return np.stack([at - own, own])

    is_shared = np.isin(rows, shared or [])
    return SourceRows(1, count, np.array(rows), np.array(costs, np.float64), is_shared)


def test_groups_begin_where_others_end() -> None:
    """A step of 3 shards of 2 rows, of which 4 are of another source: its last one goes to the first shard."""
    own = _make_rows([1, 4], [1.0, 2.0])
    found = divide_source(ShardAssignment(3, 2, balance=FREE), own, 6, 100)
    # the more expensive one comes first
    assert found.shards.tolist() == [2, 1]
    assert found.rows.tolist() == [1, 4]


def test_rounds_are_divided_by_themselves() -> None:
    own = _make_rows([0, 1, 2, 3], [1.0, 1.0, 9.0, 1.0])
    found = divide_source(ShardAssignment(2, 2, balance=FREE), own, 4, 2)
    assert sorted(found.shards[:2].tolist()) == sorted(found.shards[2:].tolist()) == [0, 1]
    # in one round, the expensive row is alone
    found = divide_source(ShardAssignment(2, 2, balance=FREE), own, 4, 4)
    assert np.bincount(found.shards).tolist() == [1, 3]


def test_shared_sequences_keep_their_places() -> None:
    """Without regard to costs, which no window knows whole."""
    assignment = ShardAssignment(2, 2, balance=Balance("length"))
    rows, costs = [0, 1, 2, 3], [9.0, 8.0, 1.0, 2.0]
    assert divide_source(assignment, _make_rows(rows, costs), 4, 4).rows.tolist() == [0, 2, 1, 3]
    shared = divide_source(assignment, _make_rows(rows, costs, [0]), 4, 4)
    assert shared.rows[0] == 0
    free = ShardAssignment(2, 2, balance=FREE)
    found = [
        divide_source(free, _make_rows(rows, [cost, *costs[1:]], [0]), 4, 4).shards[0] for cost in (1.0, 50.0)
    ]
    assert found[0] == found[1]


def test_rows_before_the_start_and_behind_the_end_go_nowhere() -> None:
    own = _make_rows([0, 5, 8, 12], [1.0] * 4)
    found = divide_source(ShardAssignment(2, 2, True, start_row=4, balance=FREE), own, 9, 100)
    assert (found.shards < 0).tolist() == [True, False, True, True]


def test_steps_beyond_32_bits() -> None:
    assert find_run_steps(ShardAssignment(4, 8, balance=FREE), 64) == 8
    assert find_run_steps(ShardAssignment(2**20, 2**10, balance=FREE), 2**20) == 4
    with pytest.raises(PlanError, match="too large to be divided by cost in a mixture"):
        find_run_steps(ShardAssignment(2**20, 2**13, balance=FREE), 2**20)

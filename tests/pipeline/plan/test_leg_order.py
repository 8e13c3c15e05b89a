"""In which order a leg's rows come, and where it can end."""

from __future__ import annotations

import pytest

from windrow.pipeline.plan.leg_order import LegOrder
from windrow.shuffle.order.length_groups import LengthGroups


def groups(steps: int, step_rows: int, first_row: int = 0) -> LengthGroups:
    return LengthGroups("tokens", steps, step_rows, first_row)


def test_groups_begin_with_a_step_behind_the_one_that_has_begun() -> None:
    order = LegOrder(10, 7, groups(3, 8, 40), groups(5, 10))
    assert order.spans(40) == [groups(3, 8, 40), groups(0, 10, 64), groups(5, 10, 67)]
    assert order.group_at(40, 63) == groups(3, 8, 40)
    assert order.group_at(40, 40) is order.group_at(40, 64) is order.group_at(40, 66) is None
    assert order.group_at(40, 67) is order.group_at(40, 117) is None
    assert order.group_at(40, 118) == groups(5, 10, 117)
    assert order.widen(40, 50, 65) == (40, 65)
    assert order.widen(40, 65, 68) == (65, 117)


def test_the_same_groups_go_on() -> None:
    order = LegOrder(8, 0, groups(3, 8, 40), groups(3, 8))
    assert order.spans(40) == [groups(3, 8, 40)]
    assert order.groups_from(40, 64) == LegOrder(8, 0, None, groups(3, 8)).groups_from(64, 64)
    # of fewer steps, because the mixture ended there before
    ended = LegOrder(8, 0, groups(2, 8, 40), groups(3, 8))
    assert ended.spans(40) == [groups(2, 8, 40), groups(3, 8, 56)]


def test_rows_behind_a_group_come_as_without_groups() -> None:
    order = LegOrder(10, 4, groups(3, 8, 40))
    assert order.spans(40) == [groups(3, 8, 40), groups(0, 8, 64)]
    assert order.group_at(40, 70) is None
    assert order.end_behind(40, 40, 0) == 74


def test_the_last_group_of_a_mixture_has_the_steps_that_there_are() -> None:
    order = LegOrder(10, 0, None, groups(5, 10))
    assert order.group_before(0, 70, 1_000) == groups(5, 10, 50)
    assert order.group_before(0, 70, 95) == groups(4, 10, 50)
    assert order.group_before(0, 90, 95) is None


@pytest.mark.parametrize(("row", "wanted", "end"), [(0, 0, 50), (0, 120, 100), (110, 120, 150), (40, 60, 50)])
def test_legs_end_with_a_group(row: int, wanted: int, end: int) -> None:
    assert LegOrder(10, 0, None, groups(5, 10)).end_behind(0, row, wanted) == end


def test_groups_are_told_by_their_text() -> None:
    for each in (groups(3, 8), groups(3, 8, 40)):
        assert LengthGroups.parse(str(each)) == each
    assert str(groups(3, 8, 40)) == "3 steps of 8 rows from 40 by tokens"

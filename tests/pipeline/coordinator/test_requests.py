"""From which rows, and in which batches, shards may read an epoch together."""

from __future__ import annotations

import pytest

from windrow.core.errors import StateError
from windrow.pipeline.coordinator.requests import EpochStarts
from windrow.pipeline.plan.cursor import Cursor
from windrow.shuffle.order.shard_assignment import ShardAssignment

OWN = (2, 10)


def _open(starts: EpochStarts, shard: int, row: int, assigned: tuple[int, int] | None = None) -> None:
    rest = ShardAssignment(2, 10, start_row=row)
    starts.open(shard, Cursor(0, row, assigned=assigned), rest, rest.whole if starts._starts else None)


@pytest.mark.parametrize(
    "rows",
    [
        [(0, None), (40, OWN), (20, OWN), (0, None)],
        [(40, OWN), (0, None), (60, OWN)],
        # started by other shards, from a row that all of them have
        [(30, (3, 5)), (30, (3, 5)), (50, OWN)],
        [(50, OWN), (30, (3, 5)), (30, None)],
    ],
)
def test_requests_can_skip_whole_steps_of_one_assignment(
    rows: list[tuple[int, tuple[int, int] | None]],
) -> None:
    starts = EpochStarts()
    for shard, (row, assigned) in enumerate(rows):
        _open(starts, shard % 2, row, assigned)


@pytest.mark.parametrize(
    ("rows", "last"),
    [
        ([(0, None)], (30, OWN)),
        ([(0, None)], (40, None)),
        ([(0, None)], (40, (4, 5))),
        ([(40, OWN), (20, (4, 5))], (40, (4, 5))),
        ([(40, OWN), (20, (4, 5))], (0, (4, 5))),
        ([(60, None)], (40, None)),
    ],
)
def test_rows_that_would_be_lost_or_read_twice_are_reported(
    rows: list[tuple[int, tuple[int, int] | None]], last: tuple[int, tuple[int, int] | None]
) -> None:
    starts = EpochStarts()
    for row, assigned in rows:
        _open(starts, 0, row, assigned)
    with pytest.raises(StateError, match=rf"shard 1 would go on at row {last[0]} .*merge_state_dicts"):
        _open(starts, 1, *last)

"""The shard assignment agrees with law 3, written out as lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.laws.reference import Assigned, assign_as_lists
from tests.shuffle.examples import by_day
from windrow.core.errors import PlanError
from windrow.shuffle.order.shard_assignment import ShardAssignment, check_equal


def _make(
    trainers: int, workers: int, batch_size: int, equal: Any, drop_last: bool, start: int, length: int
) -> Any:
    rows = batch_size * length, start * length
    return ShardAssignment(trainers * workers, rows[0], equal, drop_last, rows[1], workers, length)


ASSIGNMENTS = st.builds(
    _make,
    trainers=st.integers(1, 5),
    workers=st.sampled_from([1, 1, 2, 3]),
    batch_size=st.integers(1, 6),
    equal=st.sampled_from([True, False, "pad"]),
    drop_last=st.booleans(),
    start=st.integers(0, 30),
    length=st.sampled_from([1, 1, 2, 3]),
)
TOTALS = st.integers(0, 90)


def reference(assignment: ShardAssignment, total: int) -> Assigned:
    """Return the streams of all shards: worker w of W gets batches w, w + W, w + 2W ... of its trainer.

    Sequences are assigned as rows are, and then are the rows that they consist of.
    """
    trainers, length = assignment.shards // assignment.workers, assignment.sequence_rows
    found = assign_as_lists(
        total // length,
        trainers,
        assignment.batch_size,
        assignment.equal,
        drop_last=assignment.drop_last,
        start=assignment.start_row // length,
    )
    workers = [
        [
            [sequence * length + at for sequence in batch for at in range(length)]
            for batch in found.batches[trainer][worker :: assignment.workers]
        ]
        for worker in range(assignment.workers)
        for trainer in range(trainers)
    ]
    rest = max(0, total - assignment.start_row) % length
    return Assigned(workers, found.padded * length, found.left_out * length + rest)


@by_day(30)
@given(ASSIGNMENTS, TOTALS)
@example(ShardAssignment(4, 3, "pad"), 2)
@example(ShardAssignment(7, 5, True), 6)
@example(ShardAssignment(3, 2, False, start_row=9), 9)
@example(ShardAssignment(4, 2, "pad", workers=2), 11)
@example(ShardAssignment(6, 2, True, workers=2), 23)
def test_counts(assignment: ShardAssignment, total: int) -> None:
    expected = reference(assignment, total)
    shards = range(assignment.shards)
    assert [assignment.steps(total, t) for t in shards] == [len(batches) for batches in expected.batches]
    assert [assignment.shard_rows(total, t) for t in shards] == [len(expected.stream(t)) for t in shards]
    assert assignment.padded_rows(total) == expected.padded
    assert assignment.left_out_rows(total) == expected.left_out


@by_day(30)
@given(ASSIGNMENTS, TOTALS, st.sampled_from([np.uint32, np.int64]))
@example(ShardAssignment(4, 3, "pad"), 2, np.uint32)
@example(ShardAssignment(4, 3, "pad", start_row=9), 22, np.uint32)
@example(ShardAssignment(1, 4, False, True, 3), 9, np.uint32)
@example(ShardAssignment(1, 4, False, True), 9, np.uint32)
@example(ShardAssignment(2, 2**40), 9, np.uint32)
def test_every_row_gets_its_place(assignment: ShardAssignment, total: int, word: Any) -> None:
    expected = reference(assignment, total)
    rows = np.arange(total, dtype=word)
    shards, places = assignment.assign_rows(rows.copy(), total)
    if shards is None:
        assert assignment.shards == 1
        shards = np.zeros(total, dtype=word)
    assert places.dtype == rows.dtype
    assigned: list[dict[int, int]] = [{} for _ in range(assignment.shards + 1)]
    for row, shard, place in zip(range(total), shards.tolist(), places.tolist(), strict=True):
        assigned[shard][place if shard < assignment.shards else row] = row
    for row, shard, place in zip(*(values.tolist() for values in assignment.padding(total)), strict=True):
        assert place not in assigned[shard]
        assigned[shard][place] = row
    for shard in range(assignment.shards):
        assert [assigned[shard][place] for place in sorted(assigned[shard])] == expected.stream(shard)
        assert sorted(assigned[shard]) == list(range(len(assigned[shard])))
    assert len(assigned[-1]) == expected.left_out + min(assignment.start_row, total)


@by_day(30)
@given(ASSIGNMENTS, TOTALS, st.integers(0, 100))
def test_rows_before(assignment: ShardAssignment, total: int, row: int) -> None:
    row = min(row, total)
    expected = reference(assignment, total)
    padding = assignment.padding(total)
    for shard in range(assignment.shards):
        stream = expected.stream(shard)
        repeated = {int(place) for place, of in zip(padding[2], padding[1], strict=True) if of == shard}
        before = sum(value < row for place, value in enumerate(stream) if place not in repeated)
        assert assignment.rows_before(row, shard, total) == before


@by_day(30)
@given(ASSIGNMENTS, TOTALS, st.data())
def test_an_unknown_total_changes_nothing_in_full_steps(
    assignment: ShardAssignment, total: int, data: Any
) -> None:
    full = assignment.start_row + assignment.full_steps(total) * assignment.step_rows
    rows = np.arange(full, dtype=np.int64)
    known, unknown = assignment.assign_rows(rows.copy(), total), assignment.assign_rows(rows.copy(), None)
    own = [np.zeros(full) if shards is None else np.asarray(shards) for shards, _ in (known, unknown)]
    inside = rows >= assignment.start_row
    assert (own[0] == own[1])[inside].all()
    assert (known[1] == unknown[1])[inside].all()
    row = data.draw(st.integers(0, full))
    for shard in range(assignment.shards):
        assert assignment.rows_before(row, shard, None) == assignment.rows_before(row, shard, total)


def test_global_batches_do_not_depend_on_n() -> None:
    for equal in (True, False):
        batches = {}
        for n, B in ((1, 12), (2, 6), (4, 3), (12, 1)):
            assigned = assign_as_lists(100, n, B, equal, drop_last=True)
            batches[n] = [sorted(row for shard in assigned.batches for row in shard[s]) for s in range(8)]
        assert batches[1] == batches[2] == batches[4] == batches[12]


@pytest.mark.parametrize("total", [2**31 - 1, 2**31 + 5, 2**40 + 7])
@pytest.mark.parametrize("equal", [True, False, "pad"])
def test_huge_epochs(total: int, equal: Any) -> None:
    assignment = ShardAssignment(shards=48, batch_rows=4096, equal=equal)
    rows = np.arange(total - 300_000, total, dtype=np.int64)
    shards, places = assignment.assign_rows(rows.copy(), total)
    assert shards is not None
    for row, shard, place in zip(
        rows[-300:].tolist(), shards[-300:].tolist(), places[-300:].tolist(), strict=True
    ):
        if shard < 48:
            assert assignment.rows_before(row, shard, total) == place
            assert assignment.rows_before(row + 1, shard, total) == place + 1
    assigned = sum(assignment.shard_rows(total, t) for t in range(48))
    assert assigned == total - assignment.left_out_rows(total) + assignment.padded_rows(total)
    assert 0 <= assignment.padded_rows(total) < 48
    assert 0 <= assignment.left_out_rows(total) < 48


@pytest.mark.parametrize("equal", [None, 1.5, "padding", 2])
def test_wrong_equal_raises(equal: object) -> None:
    with pytest.raises(PlanError, match="equal"):
        check_equal(equal)

"""The deal against law 3 written out in lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.laws.reference import deal_list
from windrow.core.errors import PlanError
from windrow.shuffle.order.shard_assignment import Deal, check_equal

DEALS = st.builds(
    Deal,
    shards=st.integers(1, 7),
    batch_rows=st.integers(1, 6),
    equal=st.sampled_from([True, False, "pad"]),
    drop_last=st.booleans(),
    start_row=st.integers(0, 30),
)
TOTALS = st.integers(0, 90)


def reference(deal: Deal, total: int) -> Any:
    return deal_list(
        total, deal.shards, deal.batch_rows, deal.equal, drop_last=deal.drop_last, start=deal.start_row
    )


@given(DEALS, TOTALS)
@example(Deal(4, 3, "pad"), 2)
@example(Deal(7, 5, True), 6)
@example(Deal(3, 2, False, start_row=9), 9)
def test_counts(deal: Deal, total: int) -> None:
    expected = reference(deal, total)
    shards = range(deal.shards)
    assert [deal.steps(total, t) for t in shards] == [len(batches) for batches in expected.batches]
    assert [deal.shard_rows(total, t) for t in shards] == [len(expected.stream(t)) for t in shards]
    assert deal.padded_rows(total) == expected.padded
    assert deal.left_out_rows(total) == expected.left_out


@given(DEALS, TOTALS, st.sampled_from([np.uint32, np.int64]))
@example(Deal(4, 3, "pad"), 2, np.uint32)
@example(Deal(4, 3, "pad", start_row=9), 22, np.uint32)
@example(Deal(1, 4, False, True, 3), 9, np.uint32)
@example(Deal(1, 4, False, True), 9, np.uint32)
@example(Deal(2, 2**40), 9, np.uint32)
def test_every_row_gets_its_place(deal: Deal, total: int, word: Any) -> None:
    expected = reference(deal, total)
    rows = np.arange(total, dtype=word)
    shards, places = deal.deal_rows(rows.copy(), total)
    if shards is None:
        assert deal.shards == 1
        shards = np.zeros(total, dtype=word)
    assert places.dtype == rows.dtype
    dealt: list[dict[int, int]] = [{} for _ in range(deal.shards + 1)]
    for row, shard, place in zip(range(total), shards.tolist(), places.tolist(), strict=True):
        dealt[shard][place if shard < deal.shards else row] = row
    for row, shard, place in zip(*(values.tolist() for values in deal.padding(total)), strict=True):
        assert place not in dealt[shard]
        dealt[shard][place] = row
    for shard in range(deal.shards):
        assert [dealt[shard][place] for place in sorted(dealt[shard])] == expected.stream(shard)
        assert sorted(dealt[shard]) == list(range(len(dealt[shard])))
    assert len(dealt[-1]) == expected.left_out + min(deal.start_row, total)


@given(DEALS, TOTALS, st.integers(0, 100))
def test_rows_before(deal: Deal, total: int, row: int) -> None:
    row = min(row, total)
    expected = reference(deal, total)
    padding = deal.padding(total)
    for shard in range(deal.shards):
        stream = expected.stream(shard)
        repeated = {int(place) for place, of in zip(padding[2], padding[1], strict=True) if of == shard}
        before = sum(value < row for place, value in enumerate(stream) if place not in repeated)
        assert deal.rows_before(row, shard, total) == before


@given(DEALS, TOTALS, st.data())
def test_an_unknown_total_changes_nothing_in_full_steps(deal: Deal, total: int, data: Any) -> None:
    full = deal.start_row + deal.full_steps(total) * deal.step_rows
    rows = np.arange(full, dtype=np.int64)
    known, unknown = deal.deal_rows(rows.copy(), total), deal.deal_rows(rows.copy(), None)
    own = [np.zeros(full) if shards is None else np.asarray(shards) for shards, _ in (known, unknown)]
    inside = rows >= deal.start_row
    assert (own[0] == own[1])[inside].all()
    assert (known[1] == unknown[1])[inside].all()
    row = data.draw(st.integers(0, full))
    for shard in range(deal.shards):
        assert deal.rows_before(row, shard, None) == deal.rows_before(row, shard, total)


def test_the_same_global_batch_whatever_n_is() -> None:
    for equal in (True, False):
        batches = {}
        for n, B in ((1, 12), (2, 6), (4, 3), (12, 1)):
            dealt = deal_list(100, n, B, equal, drop_last=True)
            batches[n] = [sorted(row for shard in dealt.batches for row in shard[s]) for s in range(8)]
        assert batches[1] == batches[2] == batches[4] == batches[12]


@pytest.mark.parametrize("total", [2**31 - 1, 2**31 + 5, 2**40 + 7])
@pytest.mark.parametrize("equal", [True, False, "pad"])
def test_huge_epochs(total: int, equal: Any) -> None:
    deal = Deal(shards=48, batch_rows=4096, equal=equal)
    rows = np.arange(total - 300_000, total, dtype=np.int64)
    shards, places = deal.deal_rows(rows.copy(), total)
    assert shards is not None
    for row, shard, place in zip(
        rows[-300:].tolist(), shards[-300:].tolist(), places[-300:].tolist(), strict=True
    ):
        if shard < 48:
            assert deal.rows_before(row, shard, total) == place
            assert deal.rows_before(row + 1, shard, total) == place + 1
    dealt = sum(deal.shard_rows(total, t) for t in range(48))
    assert dealt == total - deal.left_out_rows(total) + deal.padded_rows(total)
    assert 0 <= deal.padded_rows(total) < 48
    assert 0 <= deal.left_out_rows(total) < 48


@pytest.mark.parametrize("equal", [None, 1.5, "padding", 2])
def test_a_wrong_equal_is_refused(equal: object) -> None:
    with pytest.raises(PlanError, match="equal"):
        check_equal(equal)

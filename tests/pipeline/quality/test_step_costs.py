"""The costs of steps are those of the batches that shards get, and no division is better than what is unavoidable."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from windrow.pipeline.quality.step_costs import StepCosts, find_row_limit, measure_steps
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import Equal, ShardAssignment

LENGTHS = st.lists(st.integers(1, 1_000), min_size=1, max_size=150)


@given(
    lengths=LENGTHS,
    shards=st.integers(1, 5),
    batch_rows=st.integers(1, 9),
    equal=st.sampled_from([True, False]),
    drop_last=st.booleans(),
)
@examples(60)
def test_steps_without_balance_are_those_of_the_assignment(
    lengths: list[int], shards: int, batch_rows: int, equal: Equal, drop_last: bool
) -> None:
    assignment = ShardAssignment(shards, batch_rows, equal=equal, drop_last=drop_last)
    measures, total = np.array(lengths, np.float32), len(lengths)
    found = measure_steps(measures, assignment, Balance("x", "length ** 2"), is_balanced=False)
    expected, padded, items = [], 0.0, 0.0
    for step in range(assignment.steps(total, 0)):
        rows = [assignment.rows_of_step(step, shard, total) for shard in range(shards)]
        batches = [measures[each] if each is not None else measures[:0] for each in rows]
        expected.append([float((batch.astype(float) ** 2).sum()) for batch in batches])
        padded += sum(float(batch.max()) * len(batch) for batch in batches if len(batch))
        items += sum(float(batch.sum()) for batch in batches)
    costs = np.array(expected).reshape(-1, shards)
    assert found.largest == pytest.approx(costs.max(axis=1))
    assert found.mean == pytest.approx(costs.mean(axis=1))
    assert found.padding == pytest.approx(1 - items / padded if padded else 0)


@given(
    lengths=LENGTHS,
    shards=st.integers(1, 5),
    batch_rows=st.integers(1, 9),
    rows=st.sampled_from(["equal", "free"]),
    microbatches=st.integers(1, 3),
)
@examples(60)
def test_no_division_is_better_than_what_is_unavoidable(
    lengths: list[int], shards: int, batch_rows: int, rows: str, microbatches: int
) -> None:
    balance = Balance("x", rows=rows, microbatches=microbatches)  # type: ignore[arg-type]
    assignment = ShardAssignment(shards, batch_rows)
    found = measure_steps(np.array(lengths, np.float32), assignment, balance)
    assert (found.excesses > 1 - 1e-9).all()
    assert (found.imbalances >= found.unavoidable - 1e-9).all()
    assert found.mean.sum() * shards * microbatches == pytest.approx(sum(lengths))
    assert 0 <= found.padding < 1


@given(lengths=LENGTHS, batch_rows=st.integers(1, 9))
@examples(60)
def test_rows_cut_at_the_limit_cost_no_more_than_a_mean_batch(lengths: list[int], batch_rows: int) -> None:
    balance, measures = Balance("x", "3 * length + length ** 2"), np.array(lengths, np.float32)
    some = np.ones(1)
    limit = find_row_limit(measures, balance, batch_rows, StepCosts(some, some, some, 0.0))
    cut = balance.costs(np.minimum(measures, np.float32(limit.length)))
    assert cut.max() <= batch_rows * cut.mean() * (1 + 1e-9)
    assert limit.quantile == pytest.approx((measures <= limit.length).mean())
    costs = balance.costs(measures)
    assert costs.max() <= limit.batch_rows * costs.mean() * (1 + 1e-9)
    longer = np.sort(measures[measures > limit.length])
    if len(longer):
        cut = balance.costs(np.minimum(measures, longer[0]))
        assert cut.max() > batch_rows * cut.mean() * (1 - 1e-9)

"""Law 11 for `group_by_length`: an epoch keeps the order in which it began, with any number of shards, on threads."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.cases import GROUPED, Case
from tests.laws.examples import examples
from tests.laws.reading import take_rows
from tests.laws.reference import divide_by_cost
from windrow.pipeline.checkpoint.resume import resume
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.shard.open_shards import open_shards
from windrow.shuffle.order.epoch_plan import WindowCut

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")

# steps of few rows, and windows of many, so that groups have several steps
CASES = st.builds(
    Case,
    sizes=st.lists(st.integers(1, 25), min_size=1, max_size=6).map(tuple),
    cut=st.builds(WindowCut, blocks_per_window=st.integers(1, 4)),
    seed=st.none() | st.integers(0, 2**16),
    epochs=st.just(2),
    shards=st.integers(1, 3),
    batch_rows=st.integers(1, 3),
    change=st.sampled_from(["none", "none", "filtered", "doubled"]),
    balance=GROUPED,
)
LEGS = st.lists(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 8), st.booleans()), min_size=1, max_size=5
)


@examples(400)
@given(CASES, LEGS)
def test_an_epoch_goes_on_in_the_order_in_which_it_began(case: Case, legs: list[Any]) -> None:
    """Each leg reads or skips some steps, with other numbers of shards and rows."""
    assert case.balance is not None
    job, at, epoch, row = case.job(ThreadsExecutor(2)), Cursor(), 0, 0
    groups = None
    for n, B, steps, is_skipped in legs:
        groups = groups if row else (case.balance.group_steps or 0, n * B)
        order = case.order(epoch, groups)
        if not order:
            return
        due = divide_by_cost(len(order), n, B, False, case.balance, order, start=row).batches
        shards = open_shards(job, n, equal=False, start=at)
        if is_skipped and case.rows_known:
            for shard in shards:
                shard.skip_batches(steps, batch_size=B, balance=case.balance)
        else:
            batches = [shard.iter_batches(B, balance=case.balance) for shard in shards]
            for step in range(min(steps, max(map(len, due)))):
                got = [take_rows(batch) for each in batches if (batch := next(each, None)) is not None]
                assert got == [[order[row] for row in each[step]] for each in due if step < len(each)]
        state = shards[0].state_dict()
        for shard in shards:
            shard.close()
        row += steps * n * B
        if steps >= max(map(len, due)):
            if is_skipped:
                return
            epoch, row = epoch + 1, 0
        assert (state["epoch"], state["row"]) == (epoch, row)
        if epoch == case.epochs:
            return
        job, at = resume(job, state)

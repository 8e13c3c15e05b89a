"""Law 4 at the end of an epoch: behind its last batch, the state of any plan is the start of the next epoch.

The consumer asks for no further batch, so a shard has to know by itself that none follows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.laws.cases import CASES, Case, Rows
from tests.laws.examples import examples
from tests.laws.mixture_cases import MIXTURES, PACKED, MixedCase, MixtureReading
from tests.laws.reading import take_rows
from tests.laws.reference import Assigned, assign_as_lists, divide_by_cost
from windrow.pipeline.checkpoint.resume import resume
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.shard.open_shards import open_shards
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import Equal

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")


class Leg(NamedTuple):
    """Steps from the state of the leg before, with a number of shards and a batch size; None: all that are left."""

    shards: int
    batch_rows: int
    steps: int | None


NUMBERS = st.integers(1, 3), st.integers(1, 6)
LEGS = st.builds(
    lambda legs, last: [*legs, last],
    st.lists(st.builds(Leg, *NUMBERS, st.integers(1, 5)), max_size=3),
    st.builds(Leg, *NUMBERS, st.none()),
)

# one shard gets 13 rows in 4 batches, the other 11
UNEVEN = Case((12,), seed=0, change="doubled", balance=Balance("x", "length", rows="free"))


def _assign(case: Case, row: int, groups: tuple[int, int] | None) -> tuple[Rows, Assigned]:
    """The order of the first epoch, and what of it the shards get from a row on."""
    order = case.order(0, groups)
    rows, n, B = len(order), case.shards, case.batch_rows
    if case.balance is None:
        return order, assign_as_lists(rows, n, B, case.equal, drop_last=case.drop_last, start=row)
    measures = case.measures(order)
    return order, divide_by_cost(
        rows, n, B, case.equal, case.balance, measures, drop_last=case.drop_last, start=row
    )


@examples(100)
@given(CASES, LEGS)
@example(UNEVEN, [Leg(2, 3, None)])
def test_the_state_behind_the_last_batch_is_the_start_of_the_next_epoch(case: Case, legs: list[Leg]) -> None:
    case = replace(case, epochs=2, cache=None)
    job, at, row = case.job(ThreadsExecutor(2)), Cursor(), 0
    groups = None
    for leg in legs:
        case = replace(case, shards=leg.shards, batch_rows=leg.batch_rows)
        groups = groups if row else case.groups()
        order, assigned = _assign(case, row, groups)
        due = assigned.batches
        last = max(map(len, due))
        steps = last if leg.steps is None else min(leg.steps, last)
        if not steps:
            return
        shards = open_shards(job, leg.shards, equal=case.equal, start=at)
        try:
            batches = [
                shard.iter_batches(leg.batch_rows, drop_last=case.drop_last, balance=case.balance)
                for shard in shards
            ]
            for step in range(steps):
                for number, iterator in enumerate(batches):
                    if step < len(due[number]):
                        expected = [order[each] for each in due[number][step]]
                        assert take_rows(next(iterator), case.most_items) == expected
            states = [shard.state_dict() for shard, own in zip(shards, due, strict=True) if len(own) >= steps]
            if steps == last and not (case.balance and case.balance.budget):
                # all rows are counted by then
                assert [len(each) - each.start for each in batches] == [len(own) for own in due]
        finally:
            for shard in shards:
                shard.close()
        places = [(state["epoch"], state["row"]) for state in states]
        assert all(state == states[0] for state in states), places
        if steps == last:
            assert places[0] == (1, 0)
            return
        job, at = resume(job, states[0])
        # with packing, states count tokens
        row = states[0]["row"] // max(1, case.packed)


EQUAL: st.SearchStrategy[Equal] = st.sampled_from([False, False, True, "pad"])


@examples(100)
@given(MIXTURES | PACKED, EQUAL, st.lists(st.tuples(*NUMBERS, st.integers(1, 8)), min_size=1, max_size=3))
def test_the_state_behind_the_last_batch_of_a_mixture_is_its_end(
    case: MixedCase, equal: Equal, legs: list[tuple[int, int, int]]
) -> None:
    """It is the same before and after the shards have found that no batch follows."""
    reading = MixtureReading(case, ThreadsExecutor(2))
    try:
        for number, (n, B, steps) in enumerate(legs):
            if number:
                reading.resume(case, n, equal)
            else:
                reading.split(n, equal)
            if not reading.begin(B):
                return
            iterators = reading.iterators
            reading.read(steps, B)
            if reading.has_ended:
                state = reading.save()
                assert [next(iterator, None) for iterator in iterators] == [None] * n
                assert reading.save() == state
                return
    finally:
        reading.close()

"""Mixtures whose rows are measured first, read in groups by length or in steps that end by their tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.laws.mixture_balance import BALANCES
from tests.laws.mixture_cases import NAMES, MixedCase, MixtureReading, replace_rows
from tests.laws.reference import divide_by_cost, group_by_length
from windrow.core.errors import PlanError, StateError
from windrow.dataset.dataset import DatasetPipeline
from windrow.pipeline.checkpoint.mixed_state import digest_schedule
from windrow.pipeline.executors.base import Executor
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import Equal
from windrow.shuffle.order.token_budget import TokenBudget

__all__ = ["BUDGETED", "GROUPED", "TOGETHER", "MeasuredReading", "begin_measured"]

TOGETHER = BALANCES
GROUPED = st.builds(Balance.with_groups, TOGETHER, st.integers(2, 4))
# the numbers in "x" are 100,000 and more for each source, and "flag" is 0 or 1
_BUDGETS = st.builds(
    TokenBudget, st.sampled_from([200_005, 400_000, 1_000_000]), st.just("drop"), st.booleans()
)
BUDGETED = st.one_of(
    st.builds(Balance.with_budget, TOGETHER.filter(lambda each: each.column == "x"), _BUDGETS),
    st.builds(
        Balance.with_budget,
        TOGETHER.filter(lambda each: each.column == "flag"),
        st.builds(TokenBudget, st.integers(1, 6), st.just("error"), st.booleans()),
    ),
)


def begin_measured(shard: Shard, batch_rows: int, balance: Balance) -> Iterator[Any]:
    """The batches of a shard by a balance, which knows its budget of tokens or its groups."""
    plain = Balance(balance.column, balance.cost, balance.rows, balance.microbatches)
    if balance.budget is not None:
        return iter(shard.iter_batches(token_budget=balance.budget, balance=plain))
    return iter(shard.iter_batches(batch_rows, balance=plain, group_by_length=balance.group_steps))


class MeasuredReading(MixtureReading):
    """The same for a mixture that has measured its rows; sources are balanced together."""

    def __init__(
        self, case: MixedCase, executor: str | Executor, balance: Balance, replicas: int | None = None
    ) -> None:
        super().__init__(case, executor, balance, replicas)
        self.column = balance.column
        # the rest of a group that has begun: source and value of each row, in the order in which they come
        self.group: list[tuple[str, Any]] = []
        self.row = 0

    def pipeline(self) -> DatasetPipeline:
        return self.case.pipeline(self.executor, self.column)

    def measure(self, value: int) -> int:
        return value % 2 if self.column == "flag" else value

    def _take(self, rows: int) -> list[tuple[str, Any]]:
        """The mixture's next rows without groups."""
        before = dict(self.model.counts or dict.fromkeys(self.case.names, 0))
        names = self.model.step(rows)
        order: dict[str, Iterator[Any]] = {}
        for number in self.case.members:
            name = NAMES[number]
            own = self.case.sources[number].rows(number, before.get(name, 0), names.count(name))
            order[name] = iter(own)
        return [(name, next(order[name])) for name in names]

    def expect(self, rows: int) -> list[list[Any]]:
        assert self.balance is not None
        if self.balance.budget is not None:
            return self._expect_by_tokens(self.balance)
        found: list[tuple[str, Any]] = []
        while len(found) < rows:
            if not self.group and not found:
                self._begin_group(rows)
            if not self.group:
                # the rest of the step in which a group ends, or one behind it
                more = self._take(rows - len(found))
                found += more
                break
            taken = rows - len(found)
            found, self.group = found + self.group[:taken], self.group[taken:]
        self.latest = [name for name, _ in found]
        self.row += len(found)
        return self._assign([value for _, value in found], rows)

    def _begin_group(self, rows: int) -> None:
        assert self.balance is not None
        steps = self.balance.group_steps or 1
        taken: list[tuple[str, Any]] = []
        for _ in range(steps):
            before, self.model = self.model, replace_rows(self.model)
            of_step = self._take(rows)
            if len(of_step) < rows:
                # a step that is not whole is in no group
                self.model = before
                break
            taken += of_step
        if steps == 1:
            self.group = taken
            return
        # by length, then by place
        keyed = [_Row(self.measure(value), place) for place, (_, value) in enumerate(taken)]
        self.group = [taken[each.place] for each in group_by_length(keyed, 0, steps, rows)]

    def _assign(self, values: list[Any], rows: int) -> list[list[Any]]:
        assert self.balance is not None
        n, B = self.number, self.batch_rows
        measures = [self.measure(value) for value in values]
        found = divide_by_cost(len(values), n, B, self.equal, self.balance, measures)
        return [[values[row] for batch in shard for row in batch] for shard in found.batches]

    def _expect_by_tokens(self, balance: Balance) -> list[list[Any]]:
        assert balance.budget is not None
        budget, ahead = balance.budget, replace_rows(self.model)
        whole, self.model = self.model, ahead
        values: list[Any] = []
        tokens, is_over = 0, False
        while tokens <= self.number * budget.tokens and not is_over:
            taken = self._take(1)
            is_over = not taken
            values += [value for _, value in taken]
            own = [max(1, self.measure(value)) for _, value in taken]
            tokens += sum(each for each in own if each <= budget.tokens)
        measures = [self.measure(value) for value in values]
        found = divide_by_cost(len(values), self.number, 1, self.equal, balance, measures)
        first = [shard[0] if shard else [] for shard in found.batches]
        self.model = whole
        given = max((row for batch in first for row in batch), default=-1) + 1
        self.is_last_step = not given
        self._take(given)
        self.row += given
        return [[values[row] for row in batch] for batch in first]

    def step(self) -> None:
        """Microbatches are compared as the rows of their batch."""
        rows = self.number * self.batch_rows
        expected = [batch for batch in self.expect(rows) for _ in range(self.replicas or 1)]
        found = self._of_all(self.iterators, lambda iterator: next(iterator, None))
        assert self.balance is not None
        assert [self._values(batch) for batch in found] == expected
        if self.balance.budget is None:
            self.has_ended = len(self.latest) < rows
        else:
            self.has_ended = self.is_last_step
        if self.has_ended:
            self.iterators = []

    def _values(self, batch: Any) -> list[Any]:
        parts = batch if isinstance(batch, list) else [] if batch is None else [batch]
        return [value for part in parts for value in part["x"].tolist()]

    def begin(self, batch_rows: int) -> bool:
        self.batch_rows = batch_rows
        self.has_ended = not self.group and not replace_rows(self.model).step(1)
        if self.has_ended:
            return False

        def begin(shard: Shard) -> Iterator[Any]:
            assert self.balance is not None
            return begin_measured(shard, batch_rows, self.balance)

        self.iterators = self._of_all(self.shards, begin)
        return True

    def split(self, shards: int, equal: Equal = False, state: dict[str, Any] | None = None) -> None:
        self.equal, self.iterators = equal, []
        self.number, pipe = shards, self.pipeline()
        if self.replicas is None:
            self.shards = pipe.split(shards, equal=equal, state_dict=state)
            return
        found = pipe.split(shards, replicas=self.replicas, equal=equal, state_dict=state)
        self.shards = [replica for of_shard in found for replica in of_shard]

    def save(self) -> dict[str, Any]:
        states = [shard.state_dict() for shard in self.shards]
        assert all(state == states[0] for state in states)
        if states[0]["row"] != self.row:
            # at the end, whatever no shard gets has been passed
            assert not any(self.expect(self.number * self.batch_rows))
            self.has_ended = True
        return states[0]

    def set_shares(self, shares: Any) -> None:
        if not {*shares} <= {*self._digest(self.case)[0]}:
            # drawn for sources with which it could not go on
            return
        if self.group:
            for shard in self.shards:
                with pytest.raises(PlanError, match="in the middle of a group"):
                    shard.set_shares(shares)
            return
        super().set_shares(shares)

    def resume(self, case: MixedCase, shards: int, equal: Equal) -> None:
        state = self.save()
        if self.group and self._digest(case) != self._digest(self.case):
            before, self.case = self.case, case
            with pytest.raises(StateError, match="in the middle of a group"):
                self.pipeline().split(shards, state_dict=state)
            self.case = case = before
        self.close()
        self.case, self.model = case, self.model.resumed(case)
        self.split(shards, equal, state)

    def _digest(self, case: MixedCase) -> tuple[list[str], str]:
        mine, self.case = self.case, case
        planned = self.pipeline()._plan.mixture
        self.case = mine
        assert planned is not None
        return planned.names, digest_schedule(planned)


class _Row(int):
    """A row's length, which also tells its place."""

    place: int

    def __new__(cls, length: int, place: int) -> _Row:
        found = super().__new__(cls, length)
        found.place = place
        return found

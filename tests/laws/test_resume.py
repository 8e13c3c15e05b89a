"""Law 4 on threads: any sequence of reading, saving and loading, compared with a plain list."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.laws.cases import CASES, Case, Rows
from tests.laws.reading import take_rows
from tests.laws.reference import Assigned, assign_as_lists, divide_by_cost
from windrow.core.errors import PlanError, StateError
from windrow.pipeline.checkpoint.resume import resume
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")

SHARDS = st.integers(1, 4)
BATCH_ROWS = st.integers(1, 20)


class Stream(RuleBasedStateMachine):
    """Shards, and the rows that they must deliver.

    The model consists of the list of an epoch's rows, the number of rows consumed when the epoch was
    opened, the number of steps since then, and whether the epoch was ended early. If rows are grouped by length, it
    also has the groups by which the epoch began.
    """

    shards: list[Shard]

    @initialize(case=CASES)
    def make(self, case: Case) -> None:
        self.case = replace(case, cache=None)
        if case.balance is not None and case.balance.budget is not None:
            # steps end by their tokens, and when a shard learns of the last one depends on time: see test_rejoin.py
            self.case = replace(self.case, balance=None)
        self.balance = self.case.balance
        self.job = self.case.job(ThreadsExecutor(2))
        self.orders: dict[tuple[int, tuple[int, int] | None], Rows] = {}
        self.enter(0)
        self.assigned: Assigned | None = None
        self.batch_rows: int | None = None
        self.saved: list[tuple[dict[str, Any], int, int, tuple[int, int] | None]] = []
        self.split(case.shards)

    def split(self, shards: int, state: dict[str, Any] | None = None) -> None:
        self.case = replace(self.case, shards=shards)
        job, start = (self.job, Cursor()) if state is None else resume(self.job, state)
        self.shards = open_shards(job, shards, equal=self.case.equal, start=start)

    @property
    def order(self) -> Rows:
        key = self.epoch, self.groups
        if key not in self.orders:
            self.orders[key] = self.case.order(*key)
        return self.orders[key]

    @property
    def is_done(self) -> bool:
        return self.epoch == self.case.epochs

    def assignment(self, batch_rows: int, row: int) -> Assigned:
        case, order = self.case, self.order
        how: dict[str, Any] = {"drop_last": case.drop_last, "start": row}
        if case.balance is None:
            return assign_as_lists(len(order), case.shards, batch_rows, case.equal, **how)
        measures = case.measures(order)
        return divide_by_cost(len(order), case.shards, batch_rows, case.equal, case.balance, measures, **how)

    def enter(self, epoch: int, row: int = 0, groups: tuple[int, int] | None = None) -> None:
        self.epoch, self.row, self.steps, self.assigned = epoch, row, 0, None
        self.groups = groups if row else None
        self.left = self.is_skipped = self.are_apart = False

    @property
    def some_have_reached_the_end(self) -> bool:
        """Whether some shards have reached the end of the open epoch and others may not have."""
        return self.assigned is not None and any(
            len(batches) < self.steps for batches in self.assigned.batches
        )

    # --- actions of a trainer

    @precondition(lambda self: self.assigned is None and not self.is_done)
    @rule(batch_rows=BATCH_ROWS, is_balanced=st.booleans())
    def open(self, batch_rows: int, is_balanced: bool) -> None:
        if self.left and self.epoch + 1 == self.case.epochs:
            for shard in self.shards:
                with pytest.raises(PlanError, match="have been read"):
                    shard.iter_batches(batch_rows)
            return
        if self.left:
            self.enter(self.epoch + 1)
        self.case = replace(self.case, balance=self.balance if is_balanced else None)
        if not self.row:
            self.groups = self.case.groups(batch_rows)
        elif self.groups is not None and not is_balanced:
            for shard in self.shards:
                with pytest.raises(StateError, match="until the epoch's end"):
                    shard.iter_batches(batch_rows)
            self.left = False
            return
        self.batch_rows = batch_rows
        self.assigned = self.assignment(batch_rows, self.row)
        drop_last = self.case.drop_last
        balance = self.case.balance
        self.iterators = [
            shard.iter_batches(batch_rows, drop_last=drop_last, balance=balance) for shard in self.shards
        ]

    @precondition(lambda self: self.assigned is not None)
    @rule(steps=st.integers(1, 6), turns=st.randoms(use_true_random=False))
    def read(self, steps: int, turns: Any) -> None:
        assert self.assigned is not None
        for _ in range(steps):
            numbers = list(range(len(self.shards)))
            turns.shuffle(numbers)
            ended = [self.step(number) for number in numbers]
            if all(ended):
                self.enter(self.epoch + 1)
                return
            self.steps += 1

    def step(self, number: int) -> bool:
        """Read one batch of a shard; returns whether the shard was exhausted."""
        assert self.assigned is not None
        expected = self.assigned.batches[number]
        batch = next(self.iterators[number], None)
        if batch is None:
            assert self.steps >= len(expected)
            return True
        assert take_rows(batch) == [self.order[row] for row in expected[self.steps]]
        return False

    @precondition(lambda self: self.assigned is not None)
    @rule(how=st.sampled_from(["close", "drop"]))
    def leave(self, how: str) -> None:
        """End the epoch early: only the delivered batches are consumed."""
        assert self.assigned is not None
        assert self.batch_rows is not None
        whole = self.steps == max(map(len, self.assigned.batches))
        apart = self.some_have_reached_the_end
        if how == "close":
            for iterator in self.iterators:
                iterator.close()
        self.iterators = []
        if whole and self.steps:
            self.enter(self.epoch + 1)
            # its end was not reached: it is still the epoch to skip, except for shards with fewer steps
            self.is_skipped, self.are_apart = True, apart
        else:
            row = self.row + self.steps * len(self.shards) * self.batch_rows
            self.enter(self.epoch, row, self.groups)
            self.left = True

    @precondition(lambda self: self.is_skipped or not self.is_done)
    @precondition(lambda self: not self.are_apart and not self.some_have_reached_the_end)
    @rule()
    def skip_epoch(self) -> None:
        for shard in self.shards:
            shard.skip_epoch()
        # an epoch that was left with no rows remaining is already finished
        self.iterators = []
        self.enter(self.epoch if self.is_skipped else self.epoch + 1)

    # --- states

    @rule()
    def save(self) -> None:
        epoch, row = self.epoch, self.row
        states = [shard.state_dict() for shard in self.shards]
        if self.assigned is not None and self.batch_rows is not None:
            lasting = [len(batches) >= self.steps for batches in self.assigned.batches]
            # a shard at its end is in the next epoch, while others may still read
            states = [state for state, lasts in zip(states, lasting, strict=True) if lasts]
            row += self.steps * len(self.shards) * self.batch_rows
            if self.steps and self.steps == max(map(len, self.assigned.batches)):
                epoch, row = epoch + 1, 0
        fields = ("epoch", "row", "window", "window_row", "shards", "batch_size", "corrupt")
        differing = [[state[name] for name in fields] for state in states]
        assert all(state == states[0] for state in states), (differing, self.case)
        text = json.dumps(states[0])
        assert len(text) < 1024
        state = json.loads(text)
        # with packing, states count tokens
        assert (state["epoch"], state["row"]) == (epoch, row * (self.case.packed or 1))
        self.saved.append((state, epoch, row, self.groups))

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), shards=SHARDS)
    def restart(self, data: Any, shards: int) -> None:
        state, epoch, row, groups = data.draw(st.sampled_from(self.saved))
        self.close()
        self.split(shards, state)
        self.enter(epoch, row, groups)

    @rule(shards=SHARDS)
    def stop(self, shards: int) -> None:
        """Close the shards at any point, and restart from their states."""
        self.close()
        self.save()
        state, epoch, row, groups = self.saved[-1]
        self.split(shards, state)
        self.enter(epoch, row, groups)

    @precondition(lambda self: self.saved)
    @rule(data=st.data())
    def load(self, data: Any) -> None:
        state, epoch, row, groups = data.draw(st.sampled_from(self.saved))
        if self.assigned is not None:
            for iterator in self.iterators:
                iterator.close()
        for shard in self.shards:
            shard.load_state_dict(state)
        self.enter(epoch, row, groups)

    @precondition(lambda self: self.assigned is None and not self.is_done and self.case.rows_known)
    @rule(count=st.integers(0, 12), batch_rows=BATCH_ROWS)
    def skip(self, count: int, batch_rows: int) -> None:
        drop_last = self.case.drop_last
        for shard in self.shards:
            shard.skip_batches(count, batch_size=batch_rows, drop_last=drop_last, balance=self.case.balance)
        self.left = self.is_skipped = False
        while count and not self.is_done:
            left = max(map(len, self.assignment(batch_rows, self.row).batches))
            if count < left:
                if not self.row:
                    self.groups = self.case.groups(batch_rows)
                self.row += count * len(self.shards) * batch_rows
                return
            count -= left
            self.enter(self.epoch + 1)

    def close(self) -> None:
        for shard in self.shards:
            shard.close()

    def teardown(self) -> None:
        if hasattr(self, "shards"):
            self.close()


_default = settings.default
assert _default is not None
# 3,500 steps in CI, 200,000 in nightly runs
_AT_NIGHT = _default.max_examples >= 1_000
Stream.TestCase.settings = settings(
    max_examples=1_000 if _AT_NIGHT else 70, stateful_step_count=200 if _AT_NIGHT else 50
)
TestStream = pytest.mark.usefixtures("small_runs", "leaves_no_thread")(Stream.TestCase)

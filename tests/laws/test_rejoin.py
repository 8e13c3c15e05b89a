"""A shard rejoins its epoch from a state some steps back, and all shards receive the expected rows."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.laws.cases import CASES, Case, Rows
from tests.laws.examples import examples
from tests.laws.reading import take_rows
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.shard.open_shards import open_shards
from windrow.pipeline.shard.shard import Shard
from windrow.shuffle.order.epoch_plan import WindowCut

pytestmark = pytest.mark.usefixtures("small_runs", "leaves_no_thread")

# one shard opens an epoch in the middle while another, one epoch behind, prefetches its first window
COUNTED = Case(
    (0, 0, 0, 0, 10, 12, 14, 4),
    WindowCut(blocks_per_window=1),
    seed=None,
    epochs=2,
    shards=2,
    batch_rows=3,
    change="doubled",
)


@dataclass
class Trainer:
    """Reads a shard, records its states, and can die and restart from one of them."""

    shard: Shard
    case: Case
    due: list[list[Rows]]
    step: int = 0
    epoch: int = 0
    batches: Any = None
    states: list[dict[str, Any]] = field(default_factory=list)
    # of the epoch, up to each state
    steps: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.epoch == self.case.epochs

    def take(self) -> None:
        """Take one batch, or the end of an epoch."""
        if self.batches is None:
            self.batches = self.shard.iter_batches(
                self.case.batch_rows, drop_last=self.case.drop_last, balance=self.case.balance
            )
        batch = next(self.batches, None)
        steps = self.due[self.epoch]
        if batch is None:
            assert self.step == len(steps)
            self.epoch, self.step, self.batches = self.epoch + 1, 0, None
            return
        assert take_rows(batch) == steps[self.step]
        self.step += 1
        self.states.append(self.shard.state_dict())
        self.steps.append(self.step)

    def die(self, steps_back: int) -> None:
        """Drop open iterators and resume from the state after an earlier step, possibly of an earlier epoch."""
        if self.batches is None or not self.states:
            return
        self.batches.close()
        at = max(0, len(self.states) - 1 - steps_back)
        self.batches, state = None, self.states[at]
        del self.states[at + 1 :], self.steps[at + 1 :]
        self.shard.load_state_dict(state)
        # behind the last step, a state can be at the next epoch
        self.epoch, self.step = state["epoch"], self.steps[at] if state["row"] else 0


def _make_trainers(case: Case) -> list[Trainer]:
    assigned = [case.assigned(epoch).batches for epoch in range(case.epochs)]
    shards = open_shards(case.job(ThreadsExecutor(2)), case.shards, equal=case.equal)
    return [
        Trainer(shard, case, [epoch[number] for epoch in assigned]) for number, shard in enumerate(shards)
    ]


@examples(50)
@given(case=CASES, seed=st.integers(0, 2**16), lead=st.integers(1, 12))
@example(COUNTED, 255, 1)
def test_restarted_trainers_receive_the_expected_rows(case: Case, seed: int, lead: int) -> None:
    case, chance = replace(case, cache=None), random.Random(seed)
    trainers = _make_trainers(case)
    try:
        while living := [trainer for trainer in trainers if not trainer.done]:
            least = min((trainer.epoch, trainer.step) for trainer in living)
            trainer = chance.choice(living)
            if trainer.step - least[1] > lead if trainer.epoch == least[0] else trainer.epoch > least[0] + 1:
                continue
            trainer.take()
            if chance.random() < 0.1:
                trainer.die(chance.randrange(4))
    finally:
        for trainer in trainers:
            trainer.shard.close()


@given(case=CASES, seed=st.integers(0, 2**16))
def test_new_run_serves_shards_at_different_steps(case: Case, seed: int) -> None:
    """Like a restarted coordinator: the shard with the most progress may open first."""
    case, chance = replace(case, cache=None, epochs=1), random.Random(seed)
    trainers = _make_trainers(case)
    for trainer in trainers:
        for _ in range(chance.randrange(len(trainer.due[0]) + 1)):
            trainer.take()
    for trainer in trainers:
        trainer.shard.close()
    if any(not trainer.states or trainer.states[-1]["epoch"] for trainer in trainers):
        return
    again = _make_trainers(case)
    for old, new in zip(trainers, again, strict=True):
        new.shard.load_state_dict(old.states[-1])
        new.step = old.step
    chance.shuffle(again)
    try:
        for trainer in again:
            trainer.batches = trainer.shard.iter_batches(
                case.batch_rows, drop_last=case.drop_last, balance=case.balance
            )
        while living := [trainer for trainer in again if not trainer.done]:
            chance.choice(living).take()
    finally:
        for trainer in again:
            trainer.shard.close()

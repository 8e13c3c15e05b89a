"""A shard comes back to its epoch with a state some steps behind, and all get what they were due."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.laws.cases import CASES, Case, Rows
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.shard.shard import Shard, open_shards
from windrow.shuffle.order.epoch_plan import WindowCut

pytestmark = pytest.mark.usefixtures("small_and_impatient", "leaves_no_thread")

# one shard opens an epoch in its middle while another, an epoch behind, has its first window prepared
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
    """Reads a shard, remembers its states, dies now and then, and comes back."""

    shard: Shard
    case: Case
    due: list[list[Rows]]
    step: int = 0
    epoch: int = 0
    batches: Any = None
    states: list[dict[str, Any]] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return self.epoch == self.case.epochs

    def take(self) -> None:
        """One batch, or the end of an epoch."""
        if self.batches is None:
            self.batches = self.shard.iter_batches(self.case.batch_rows, drop_last=self.case.drop_last)
        batch = next(self.batches, None)
        steps = self.due[self.epoch]
        if batch is None:
            assert self.step == len(steps)
            self.epoch, self.step, self.batches = self.epoch + 1, 0, None
            return
        assert batch["x"].tolist() == steps[self.step]
        self.step += 1
        self.states.append(self.shard.state_dict())

    def die(self, behind: int) -> None:
        """Lose what is open, and go on from the state after an earlier step, perhaps of an earlier epoch."""
        if self.batches is None or not self.states:
            return
        self.batches.close()
        at = max(0, len(self.states) - 1 - behind)
        self.batches, state = None, self.states[at]
        del self.states[at + 1 :]
        self.shard.load_state_dict(state)
        self.epoch, self.step = state["epoch"], self._steps(state)

    def _steps(self, state: dict[str, Any]) -> int:
        return int(state["row"]) // (self.case.shards * self.case.batch_rows)


def _crew(case: Case) -> list[Trainer]:
    assigned = [case.assigned(epoch).batches for epoch in range(case.epochs)]
    shards = open_shards(case.job(ThreadsExecutor(2)), case.shards, equal=case.equal)
    return [
        Trainer(shard, case, [epoch[number] for epoch in assigned]) for number, shard in enumerate(shards)
    ]


@given(case=CASES, seed=st.integers(0, 2**16), lead=st.integers(1, 12))
@example(COUNTED, 255, 1)
def test_trainers_that_come_back_get_what_they_were_due(case: Case, seed: int, lead: int) -> None:
    case, chance = replace(case, cache=None), random.Random(seed)
    crew = _crew(case)
    try:
        while living := [trainer for trainer in crew if not trainer.done]:
            least = min((trainer.epoch, trainer.step) for trainer in living)
            trainer = chance.choice(living)
            if trainer.step - least[1] > lead if trainer.epoch == least[0] else trainer.epoch > least[0] + 1:
                continue
            trainer.take()
            if chance.random() < 0.1:
                trainer.die(chance.randrange(4))
    finally:
        for trainer in crew:
            trainer.shard.close()


@given(case=CASES, seed=st.integers(0, 2**16))
def test_a_run_that_knows_nothing_serves_shards_at_different_steps(case: Case, seed: int) -> None:
    """As a coordinator does that is started again: the farthest may come first."""
    case, chance = replace(case, cache=None, epochs=1), random.Random(seed)
    crew = _crew(case)
    for trainer in crew:
        for _ in range(chance.randrange(len(trainer.due[0]) + 1)):
            trainer.take()
    for trainer in crew:
        trainer.shard.close()
    if any(not trainer.states or trainer.states[-1]["epoch"] for trainer in crew):
        return
    again = _crew(case)
    for old, new in zip(crew, again, strict=True):
        new.shard.load_state_dict(old.states[-1])
        new.step = old.step
    chance.shuffle(again)
    try:
        for trainer in again:
            trainer.batches = trainer.shard.iter_batches(case.batch_rows, drop_last=case.drop_last)
        while living := [trainer for trainer in again if not trainer.done]:
            chance.choice(living).take()
    finally:
        for trainer in again:
            trainer.shard.close()

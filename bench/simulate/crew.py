"""What the trainers of a run share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from bench.simulate.actor import Actor
from bench.simulate.law import Law
from bench.simulate.machines import Machines
from bench.simulate.scenario import Split
from bench.simulate.world import World
from windrow.pipeline.checkpoint.cursor import Cursor
from windrow.pipeline.plan.job import Job

__all__ = ["Crew"]


class Member(Protocol):
    """A trainer, as the others see it."""

    at: tuple[int, int]
    closed: bool

    def go_on(self) -> None:
        """Take the next batch, if it can."""
        ...


@dataclass
class Crew:
    """The trainers of a run, and what they know.

    Attributes
    ----------
    start
        Where the run began.
    job
        What is run.
    """

    world: World
    actor: Actor
    machines: Machines
    law: Law
    split: Split
    start: Cursor
    job: Job

    def __post_init__(self) -> None:
        assert self.job.epochs is not None, "a simulated stream ends"
        self.epochs: int = self.job.epochs
        self.trainers: list[Member] = []

    def begins(self, epoch: int) -> Cursor:
        """Where this run begins an epoch."""
        if epoch == self.start.epoch:
            return self.start
        return Cursor(epoch, corrupt=self.law.corrupt(self.start, epoch, -1))

    def cursor(self, epoch: int, steps: int) -> Cursor:
        """The place after some steps of an epoch in this run."""
        begin = self.begins(epoch)
        if steps == 0:
            return begin
        # the first shard has the most steps
        if steps >= len(self.batches(epoch, 0)):
            return self.begins(epoch + 1)
        split = self.split
        step_rows = split.shards * split.batch_rows
        row = begin.row + steps * step_rows
        at = self.law.cursor(epoch, row)
        # what all trainers have met: the windows up to that in which the last step begins; and a shard that
        # knows at which row a window begins has met all before it
        begun = max(self.law.cursor(epoch, row - step_rows + 1).window, at.window - 1)
        corrupt = self.law.corrupt(self.start, epoch, begun)
        return replace(at, assigned=(split.shards, split.batch_rows), corrupt=corrupt)

    def batches(self, epoch: int, shard: int) -> list[list[int]]:
        """What a shard must get of an epoch in this run."""
        return self.law.batches(epoch, self.split, self.begins(epoch).row)[shard]

    def may_step(self, trainer: Member) -> bool:
        """Whether nobody is behind, where trainers step together."""
        if not self.split.in_step:
            return True
        return all(other.closed or other.at >= trainer.at for other in self.trainers)

    def stepped(self) -> None:
        """Somebody has gone on, so that others may."""
        if self.split.in_step:
            for trainer in self.trainers:
                trainer.go_on()

"""The trainers of a run and the state that they share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from bench.simulate.cluster import Cluster
from bench.simulate.reference_order import ReferenceOrder
from bench.simulate.scenario import Split
from bench.simulation.actor import Actor
from bench.simulation.world import World
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Job


class Member(Protocol):
    """A trainer, as the other trainers see it."""

    progress: tuple[int, int]
    closed: bool

    def advance(self) -> None: ...


@dataclass
class TrainerGroup:
    """The trainers of a run, which begins at ``start``, and the batches that each must receive."""

    world: World
    actor: Actor
    cluster: Cluster
    reference: ReferenceOrder
    split: Split
    start: Cursor
    job: Job

    def __post_init__(self) -> None:
        assert self.job.epochs is not None, "a simulated stream is finite"
        self.epochs: int = self.job.epochs
        self.trainers: list[Member] = []

    def epoch_start(self, epoch: int) -> Cursor:
        if epoch == self.start.epoch:
            return self.start
        return Cursor(epoch, corrupt=self.reference.corrupt(self.start, epoch, -1))

    def cursor(self, epoch: int, steps: int) -> Cursor:
        begin = self.epoch_start(epoch)
        if steps == 0:
            return begin
        # the first shard has the most steps
        if steps >= len(self.batches(epoch, 0)):
            return self.epoch_start(epoch + 1)
        split = self.split
        step_rows = split.shards * split.batch_rows
        row = begin.row + steps * step_rows
        at = self.reference.cursor(epoch, row)
        # Corrupt blocks that all trainers know: those of the windows up to the one in which the last step epoch_start.
        # A shard that knows the first row of a window also knows the corrupt blocks of all windows before it.
        begun = max(self.reference.cursor(epoch, row - step_rows + 1).window, at.window - 1)
        corrupt = self.reference.corrupt(self.start, epoch, begun)
        return replace(at, assigned=(split.shards, split.batch_rows), corrupt=corrupt)

    def batches(self, epoch: int, shard: int) -> list[list[int]]:
        return self.reference.batches(epoch, self.split, self.epoch_start(epoch).row)[shard]

    def may_step(self, trainer: Member) -> bool:
        """Whether a trainer may take its next step: in lockstep, only when no other trainer is behind it."""
        if not self.split.lockstep:
            return True
        return all(other.closed or other.progress >= trainer.progress for other in self.trainers)

    def notify_step(self) -> None:
        """Let trainers in lockstep advance after one of them has taken a step."""
        if self.split.lockstep:
            for trainer in self.trainers:
                trainer.advance()

"""The trainers of a run: each checks every batch of its shard, and stalls, dies and restarts as the faults demand."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.simulate.cluster import FAILED, Cluster
from bench.simulate.reference_order import ReferenceOrder
from bench.simulate.scenario import Split
from bench.simulation.actor import Actor
from bench.simulation.client import CoordinatorClient
from bench.simulation.prefetch_loop import PrefetchLoop
from bench.simulation.world import Violation, World
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.job import Job
from windrow.shuffle.order.batching import Batching

_HEARTBEAT_SECONDS = 1.0
_LONGEST_ABSENCE_SECONDS = 10.0
# far longer than any wait for a batch under all faults: a longer wait is a hang
MAX_WAIT_SECONDS = 240.0


class Trainer:
    """One trainer across its restarts; ``progress``: its epoch, and the steps of it that were consumed in this run."""

    def __init__(self, group: TrainerGroup, shard: int) -> None:
        self._group, self._world, self._shard = group, group.world, shard
        self.progress = (group.start.epoch, 0)
        self.closed = False
        self._incarnations = 0
        self._client: CoordinatorClient | None = None
        self._prefetch_loop: PrefetchLoop | None = None
        # of readers that were replaced, and read on until the coordinator rejects them
        self._zombies: list[CoordinatorClient] = []
        self._waiting_since: float | None = None
        self._paused, self._open_pending = True, False
        self._world.after(self._world.rng.uniform(0.0, self._world.faults.attach_seconds), self._begin)

    # --- start, failure and restart

    def _begin(self) -> None:
        if self.closed:
            return
        self._incarnations += 1
        self._client = self._connect(f"{self._shard}.{self._incarnations}")
        self._world.record("trainer begins", self._shard, self._incarnations)
        self._last_heartbeat = self._world.now
        self._open()
        self._watch_for_stall(self._client)

    def _connect(self, token: str) -> CoordinatorClient:
        group = self._group
        node = f"node {self._world.rng.randrange(4)}"

        def failed(failure: Failure) -> None:
            if shard_client is not self._client:
                self._world.record("a replaced reader is rejected", self._shard)
                shard_client.die()
            elif failure.message == FAILED:
                shard_client.close()
                self._restart(self._world.rng.uniform(0.0, 2.0))
            else:
                raise Violation(
                    f"shard {self._shard} gets an error: {failure.message}\n{failure.traceback_text}"
                )

        shard_client = CoordinatorClient(
            self._world,
            group.actor,
            group.cluster,
            shard=self._shard,
            node=node,
            token=token,
            seed=group.job.seed,
            failed=failed,
            leads_on=group.job.leads_on,
        )
        return shard_client

    def die(self, *, downtime_seconds: float | None) -> None:
        """Kill its process; a new one starts after ``downtime_seconds``, or never if that is None."""
        if self._client is not None:
            self._client.die()
        if downtime_seconds is None:
            self._stop()
            self.closed = True
        else:
            self._restart(downtime_seconds)

    def _restart(self, seconds: float) -> None:
        self._stop()
        self._roll_back()
        self._world.after(seconds, self._begin)

    def _roll_back(self) -> None:
        """Return to the last saved state, which may be older than the progress and is never the end of the stream."""
        nothing_left = self._group.cursor(*self.progress).epoch >= self._group.epochs
        if nothing_left or self._world.happens(0.3):
            self.progress = (self.progress[0], 0)

    def _replace(self) -> None:
        """Start a second reader of the shard while this one, considered dead, keeps running."""
        assert self._client is not None
        assert self._prefetch_loop is not None
        self._zombies.append(self._client)
        absence_seconds = self._world.rng.uniform(0.0, _LONGEST_ABSENCE_SECONDS)
        self._world.after(absence_seconds, self._read_on, self._client, self._prefetch_loop)
        self._stop(ends=False)
        self._roll_back()
        self._world.after(self._world.rng.uniform(0.1, 5.0), self._begin)

    def _read_on(self, zombie: CoordinatorClient, prefetch_loop: PrefetchLoop) -> None:
        if zombie.alive:
            prefetch_loop.take()
            self._world.after(0.2, self._read_on, zombie, prefetch_loop)

    def kill_zombies(self) -> None:
        for zombie in self._zombies:
            zombie.die()
        self._zombies.clear()

    def _stop(self, *, ends: bool = True) -> None:
        if self._prefetch_loop is not None and ends:
            self._prefetch_loop.stop()
        self._client = self._prefetch_loop = None
        self._waiting_since = None
        self._paused = True

    def _close(self) -> None:
        assert self._client is not None
        self._world.record("trainer closes", self._shard)
        self.closed = True
        self._client.close()
        self._stop()
        self._group.notify_step()

    def _stop_early(self) -> None:
        """End the epoch early, like a loop that breaks."""
        assert self._client is not None
        assert self._prefetch_loop is not None
        shard_client, (epoch, _) = self._client, self.progress
        shard_client.acknowledge(Place(epoch + 1, 0))
        if self._world.happens(0.5):
            self._world.fault("early stop, resumed", self._shard)
            shard_client.close()
            self._stop()
            self._world.after(self._world.rng.uniform(0.0, 1.0), self._begin)
            return
        self._world.fault("early stop, next epoch", self._shard)
        self._prefetch_loop.stop()
        self._prefetch_loop = None
        self.progress = (epoch + 1, 0)
        self._group.notify_step()
        self._world.after(self._world.rng.uniform(0.0, 1.0), self._open_if, shard_client)

    def _open_if(self, shard_client: CoordinatorClient) -> None:
        """Open the current epoch, unless the trainer was replaced or closed meanwhile."""
        if shard_client is self._client:
            self._open()

    # --- epochs

    def _open(self) -> None:
        batching = Batching(self._group.split.batch_rows, self._group.split.drop_last)
        cursor = self._group.cursor(*self.progress)
        if cursor.epoch > self.progress[0]:
            self.progress = (cursor.epoch, 0)
        if cursor.epoch >= self._group.epochs:
            self._close()
            return
        assert self._client is not None
        self._waiting_since = self._world.now
        if self._prefetch_loop is not None and self._prefetch_loop.next is not None:
            facts = self._prefetch_loop.next
            self._open_pending = True
            self._client.open_next(cursor, batching, done=self._open_answered)
            self._prefetch_loop.begin_next()
            self._begin_epoch(facts)
            return
        self._prefetch_loop = None
        self._paused = True
        self._client.open_epoch(cursor, batching, done=self._opened)

    def _open_answered(self) -> None:
        self._open_pending = False
        self.advance()

    def _opened(self, facts: EpochFacts) -> None:
        assert self._client is not None
        self._paused, self._open_pending = True, False
        self._prefetch_loop = PrefetchLoop(
            self._world,
            self._group.cluster,
            self._client,
            facts,
            self._shard,
            batch_rows=self._group.split.batch_rows,
            notify=self.advance,
            leads_on=self._group.job.leads_on,
        )
        self._waiting_since = self._world.now
        self._begin_epoch(facts)

    def _begin_epoch(self, facts: EpochFacts) -> None:
        self._expected = self._group.batches(facts.epoch, self._shard)
        self._rows: list[int] = []
        self._paused = False
        self.advance()

    def _end_epoch(self) -> None:
        assert self._client is not None
        assert self._prefetch_loop is not None
        epoch, steps = self.progress
        if steps != len(self._expected):
            raise Violation(
                f"shard {self._shard}, epoch {epoch}: {steps} batches where {len(self._expected)} are expected"
            )
        self._client.acknowledge(Place(epoch + 1, 0))
        self._paused = True
        self.progress = (epoch + 1, 0)
        self._world.record("epoch ends", self._shard, epoch)
        self._group.notify_step()
        self._open()

    # --- steps

    def advance(self) -> None:
        if self._paused or self._prefetch_loop is None:
            return
        if not self._group.may_step(self):
            self._waiting_since = None
            return
        B = self._group.split.batch_rows
        while len(self._rows) < B:
            if self._prefetch_loop.empty:
                if self._rows:
                    break
                if self._open_pending:
                    self._waiting_since = self._waiting_since or self._world.now
                else:
                    self._end_epoch()
                return
            rows = self._prefetch_loop.take()
            if rows is None:
                if self._waiting_since is None:
                    self._waiting_since = self._world.now
                return
            self._rows.extend(rows)
        batch, self._rows = self._rows[:B], self._rows[B:]
        self._check(batch)
        self._step()

    def _check(self, batch: list[int]) -> None:
        epoch, step = self.progress
        self._world.record("batch", self._shard, epoch, step, *batch)
        due = self._expected[step] if step < len(self._expected) else None
        if batch != due:
            raise Violation(
                f"shard {self._shard}, epoch {epoch}, step {step}: {batch} where {due} is expected"
            )

    def _step(self) -> None:
        self.progress = (self.progress[0], self.progress[1] + 1)
        self._waiting_since = None
        self._send_heartbeat()
        self._paused = True
        if not self._ends():
            seconds = self._group.split.step_seconds * self._world.rng.random()
            if self._world.happens(self._world.faults.stall):
                self._world.fault("trainer stalled", self._shard)
                seconds += self._world.rng.uniform(0.5, self._world.faults.stall_seconds)
            self._world.after(seconds, self._ready, self._prefetch_loop)
        self._group.notify_step()

    def _ends(self) -> bool:
        """Draw a fault after a step; returns whether it ends this reader."""
        world, faults = self._world, self._world.faults
        if world.happens(faults.close):
            world.fault("trainer ended early", self._shard)
            self._close()
        elif world.happens(faults.die):
            world.fault("trainer died", self._shard)
            self.die(downtime_seconds=world.rng.uniform(0.1, 12.0))
        elif world.happens(faults.zombie) and not self._zombies:
            world.fault("trainer replaced", self._shard)
            self._replace()
        elif world.happens(faults.early_stop):
            self._stop_early()
        else:
            return False
        return True

    def _ready(self, prefetch_loop: PrefetchLoop) -> None:
        if prefetch_loop is self._prefetch_loop:
            self._paused = False
            self.advance()

    # --- heartbeats

    def _send_heartbeat(self) -> None:
        if self._client is not None and self._world.now - self._last_heartbeat >= _HEARTBEAT_SECONDS:
            self._last_heartbeat = self._world.now
            self._client.heartbeat()

    def _watch_for_stall(self, shard_client: CoordinatorClient) -> None:
        """Send heartbeats while waiting for rows, and fail if the wait takes too long."""
        if shard_client is not self._client:
            return
        since = self._waiting_since
        if since is not None:
            self._send_heartbeat()
            if self._world.now - since > MAX_WAIT_SECONDS:
                reason = self._group.actor.core.diagnose(self._shard)[0]
                raise Violation(f"shard {self._shard} waits forever at {self.progress}: {reason}")
        self._world.after(_HEARTBEAT_SECONDS, self._watch_for_stall, shard_client)


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
        self.trainers: list[Trainer] = []

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

    def may_step(self, trainer: Trainer) -> bool:
        """Whether a trainer may take its next step: in lockstep, only when no other trainer is behind it."""
        if not self.split.lockstep:
            return True
        return all(other.closed or other.progress >= trainer.progress for other in self.trainers)

    def notify_step(self) -> None:
        """Let trainers in lockstep advance after one of them has taken a step."""
        if self.split.lockstep:
            for trainer in self.trainers:
                trainer.advance()

"""A trainer: reads its shard batch by batch, checks each, stalls, dies and comes back."""

from __future__ import annotations

from bench.simulate.crew import Crew
from bench.simulate.machines import FAILED
from bench.simulate.prefetch_loop import PrefetchLoop
from bench.simulate.shard_client import CoordinatorClient
from bench.simulate.world import Violation, World
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.scheduling.events import Place
from windrow.pipeline.executors.base import EpochFacts

__all__ = ["Trainer"]

_HEARTBEAT_SECONDS = 1.0
_RUNS_AHEAD = 2
_LONGEST_ABSENCE_SECONDS = 10.0
# with every fault there is, nobody waits nearly as long for a batch
PATIENCE_SECONDS = 240.0


class Trainer:
    """One trainer, over all its lives.

    Attributes
    ----------
    at
        Its epoch, and the steps that it has consumed of it in this run.
    closed
        Whether it reads no more.
    """

    def __init__(self, crew: Crew, shard: int) -> None:
        self._crew, self._world, self._shard = crew, crew.world, shard
        self.at = (crew.start.epoch, 0)
        self.closed = False
        self._lives = 0
        self._client: CoordinatorClient | None = None
        self._prefetch_loop: PrefetchLoop | None = None
        self._zombies: list[_Zombie] = []
        self._waits_since: float | None = None
        self._pausing, self._unheard = True, False
        self._world.after(self._world.between(0.0, self._world.faults.attach_seconds), self._begin)

    # --- lives

    def _begin(self) -> None:
        if self.closed:
            return
        self._lives += 1
        self._client = self._connect(f"{self._shard}.{self._lives}")
        self._world.note("trainer begins", self._shard, self._lives)
        self._signed = self._world.now
        self._open()
        self._keep_signing(self._client)

    def _connect(self, token: str) -> CoordinatorClient:
        crew = self._crew
        node = f"node {self._world.chance.randrange(4)}"

        def failed(failure: Failure) -> None:
            if shard_client is not self._client:
                self._world.note("a replaced reader is refused", self._shard)
                shard_client.die()
            elif failure.message == FAILED:
                shard_client.close()
                self._come_back(self._world.between(0.0, 2.0))
            else:
                raise Violation(
                    f"shard {self._shard} gets an error: {failure.message}\n{failure.traceback_text}"
                )

        shard_client = CoordinatorClient(
            self._world,
            crew.actor,
            crew.machines,
            shard=self._shard,
            node=node,
            token=token,
            seed=crew.job.seed,
            failed=failed,
            leads_on=crew.job.leads_on,
        )
        return shard_client

    def die(self, *, back_seconds: float | None) -> None:
        """Its process ends; another one comes back, if at all, to where it was."""
        if self._client is not None:
            self._client.die()
        if back_seconds is None:
            self._stop()
            self.closed = True
        else:
            self._come_back(back_seconds)

    def _come_back(self, seconds: float) -> None:
        self._stop()
        self._go_back()
        self._world.after(seconds, self._begin)

    def _go_back(self) -> None:
        """Its last state may be older than what it has consumed, and says that something is left."""
        nothing_left = self._crew.cursor(*self.at).epoch >= self._crew.epochs
        if nothing_left or self._world.happens(0.3):
            self.at = (self.at[0], 0)

    def _replace(self) -> None:
        """It is taken for dead, and another one reads its shard."""
        assert self._client is not None
        assert self._prefetch_loop is not None
        self._zombies.append(_Zombie(self._world, self._client, self._prefetch_loop))
        self._client = None
        self._stop(ends=False)
        self._go_back()
        self._world.after(self._world.between(0.1, 5.0), self._begin)

    def kill_zombies(self) -> None:
        """Those that were taken for dead end."""
        for zombie in self._zombies:
            zombie.shard_client.die()
        self._zombies.clear()

    def _stop(self, *, ends: bool = True) -> None:
        if self._prefetch_loop is not None and ends:
            self._prefetch_loop.stop()
        self._client = self._prefetch_loop = None
        self._waits_since = None
        self._pausing = True

    def _close(self) -> None:
        assert self._client is not None
        self._world.note("trainer closes", self._shard)
        self.closed = True
        self._client.close()
        self._stop()
        self._crew.stepped()

    def _leave(self) -> None:
        """It leaves the epoch early, as a loop that breaks does."""
        assert self._client is not None
        assert self._prefetch_loop is not None
        shard_client, (epoch, _) = self._client, self.at
        shard_client.acknowledge(Place(epoch + 1, 0))
        if self._world.happens(0.5):
            self._world.fault("early stop, resumed", self._shard)
            shard_client.close()
            self._stop()
            self._world.after(self._world.between(0.0, 1.0), self._begin)
            return
        self._world.fault("early stop, next epoch", self._shard)
        self._prefetch_loop.stop()
        self._prefetch_loop = None
        self.at = (epoch + 1, 0)
        self._crew.stepped()
        self._world.after(self._world.between(0.0, 1.0), self._open_if, shard_client)

    def _open_if(self, shard_client: CoordinatorClient) -> None:
        """Open the epoch that it is at, unless it was replaced or ended meanwhile."""
        if shard_client is self._client:
            self._open()

    # --- epochs

    def _open(self) -> None:
        split = self._crew.split
        cursor = self._crew.cursor(*self.at)
        if cursor.epoch > self.at[0]:
            self.at = (cursor.epoch, 0)
        if cursor.epoch >= self._crew.epochs:
            self._close()
            return
        assert self._client is not None
        self._waits_since = self._world.now
        if self._prefetch_loop is not None and self._prefetch_loop.next is not None:
            facts = self._prefetch_loop.next
            self._unheard = True
            self._client.open_next(cursor, split.batch_rows, drop_last=split.drop_last, done=self._heard)
            self._prefetch_loop.begin_next()
            self._begin_epoch(facts)
            return
        self._prefetch_loop = None
        self._pausing = True
        self._client.open_epoch(cursor, split.batch_rows, drop_last=split.drop_last, done=self._opened)

    def _heard(self) -> None:
        """The coordinator has answered to an opening that was not waited for."""
        self._unheard = False
        self.go_on()

    def _opened(self, facts: EpochFacts) -> None:
        assert self._client is not None
        depth = max(_RUNS_AHEAD, -(-self._crew.split.batch_rows // facts.run_rows) + 1)
        self._pausing, self._unheard = True, False
        self._prefetch_loop = PrefetchLoop(
            self._world,
            self._client,
            facts,
            self._shard,
            depth=depth,
            news=self.go_on,
            leads_on=self._crew.job.leads_on,
        )
        self._waits_since = self._world.now
        self._begin_epoch(facts)

    def _begin_epoch(self, facts: EpochFacts) -> None:
        self._expected = self._crew.batches(facts.epoch, self._shard)
        self._rows: list[int] = []
        self._pausing = False
        self.go_on()

    def _end_epoch(self) -> None:
        assert self._client is not None
        assert self._prefetch_loop is not None
        epoch, steps = self.at
        if steps != len(self._expected):
            raise Violation(
                f"shard {self._shard}, epoch {epoch}: {steps} batches where {len(self._expected)} are due"
            )
        self._client.acknowledge(Place(epoch + 1, 0))
        self._pausing = True
        self.at = (epoch + 1, 0)
        self._world.note("epoch ends", self._shard, epoch)
        self._crew.stepped()
        self._open()

    # --- steps

    def go_on(self) -> None:
        """Take the next batch, if it is there and the trainer is ready for it."""
        if self._pausing or self._prefetch_loop is None:
            return
        if not self._crew.may_step(self):
            self._waits_since = None
            return
        B = self._crew.split.batch_rows
        while len(self._rows) < B:
            if self._prefetch_loop.empty:
                if self._rows:
                    break
                if self._unheard:
                    self._waits_since = self._waits_since or self._world.now
                else:
                    self._end_epoch()
                return
            rows = self._prefetch_loop.take()
            if rows is None:
                if self._waits_since is None:
                    self._waits_since = self._world.now
                return
            self._rows.extend(rows)
        batch, self._rows = self._rows[:B], self._rows[B:]
        self._check(batch)
        self._step()

    def _check(self, batch: list[int]) -> None:
        epoch, step = self.at
        self._world.note("batch", self._shard, epoch, step, *batch)
        due = self._expected[step] if step < len(self._expected) else None
        if batch != due:
            raise Violation(f"shard {self._shard}, epoch {epoch}, step {step}: {batch} where {due} is due")

    def _step(self) -> None:
        self.at = (self.at[0], self.at[1] + 1)
        self._waits_since = None
        self._sign()
        self._pausing = True
        if not self._ends():
            seconds = self._crew.split.step_seconds * self._world.chance.random()
            if self._world.happens(self._world.faults.stall):
                self._world.fault("trainer stalled", self._shard)
                seconds += self._world.between(0.5, self._world.faults.stall_seconds)
            self._world.after(seconds, self._ready, self._prefetch_loop)
        self._crew.stepped()

    def _ends(self) -> bool:
        """Whether this reader ends with this step, in one way or another."""
        world, faults = self._world, self._world.faults
        if world.happens(faults.close):
            world.fault("trainer ended early", self._shard)
            self._close()
        elif world.happens(faults.die):
            world.fault("trainer died", self._shard)
            self.die(back_seconds=world.between(0.1, 12.0))
        elif world.happens(faults.zombie) and not self._zombies:
            world.fault("trainer replaced", self._shard)
            self._replace()
        elif world.happens(faults.leave):
            self._leave()
        else:
            return False
        return True

    def _ready(self, prefetch_loop: PrefetchLoop) -> None:
        if prefetch_loop is self._prefetch_loop:
            self._pausing = False
            self.go_on()

    # --- heartbeats

    def _sign(self) -> None:
        if self._client is not None and self._world.now - self._signed >= _HEARTBEAT_SECONDS:
            self._signed = self._world.now
            self._client.heartbeat()

    def _keep_signing(self, shard_client: CoordinatorClient) -> None:
        """Give signs while it waits for rows; see that it does not wait forever."""
        if shard_client is not self._client:
            return
        since = self._waits_since
        if since is not None:
            self._sign()
            if self._world.now - since > PATIENCE_SECONDS:
                reason = self._crew.actor.coordination.diagnose(self._shard)[0]
                raise Violation(f"shard {self._shard} waits forever at {self.at}: {reason}")
        self._world.after(_HEARTBEAT_SECONDS, self._keep_signing, shard_client)


class _Zombie:
    """A trainer that was replaced and does not know: after a while it goes on, until it is refused."""

    def __init__(self, world: World, shard_client: CoordinatorClient, prefetch_loop: PrefetchLoop) -> None:
        self._world, self.shard_client, self._prefetch_loop = world, shard_client, prefetch_loop
        world.after(world.between(0.0, _LONGEST_ABSENCE_SECONDS), self._go_on)

    def _go_on(self) -> None:
        if self.shard_client.alive:
            self._prefetch_loop.take()
            self._world.after(0.2, self._go_on)

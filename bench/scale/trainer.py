"""A trainer of ``scale``: takes every run of its shard, and notes how long it waits."""

from __future__ import annotations

from bench.scale.cluster import Cluster
from bench.scale.machines import CostlyMachines, name_node
from bench.simulation.actor import Actor
from bench.simulation.client import CoordinatorClient
from bench.simulation.prefetch_loop import PrefetchLoop
from bench.simulation.world import World
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.program import Program
from windrow.shuffle.order.batching import Batching

_HEARTBEAT_SECONDS = 1.0


class Trainer:
    def __init__(
        self,
        world: World,
        program: Program,
        machines: CostlyMachines,
        actor: Actor,
        cluster: Cluster,
        shard: int,
        *,
        batch_rows: int,
        epochs: int,
    ) -> None:
        self._world, self._machines, self._shard = world, machines, shard
        self._batch_rows, self._epochs, self._windows = batch_rows, epochs, program.plan(0).windows
        self._epoch_rows = float(program.stored_rows.sum()) / program.shards
        self.delivered: list[int] = []
        self.ended: list[float] = []
        self.done = False
        self._waited = 0.0
        self._waiting_since: float | None = 0.0
        self._open_pending = False
        self._loop: PrefetchLoop | None = None
        self._client = CoordinatorClient(
            world,
            actor,
            machines,
            shard=shard,
            node=name_node(shard, cluster),
            token=str(shard),
            seed=program.job.seed,
            failed=Failure.rethrow,
            leads_on=self._leads_on,
        )
        self._client.open_epoch(Cursor(), Batching(batch_rows), done=self._opened)
        world.after(_HEARTBEAT_SECONDS, self._send_heartbeat)

    @property
    def waiting(self) -> float:
        since = self._waiting_since
        return self._waited + (0.0 if since is None or self.done else self._world.now - since)

    @property
    def consumed_windows(self) -> float:
        """About how many windows it has taken, by its share of the rows of an epoch."""
        in_epoch = self.delivered[-1] if len(self.delivered) > len(self.ended) else 0
        return self._windows * (len(self.ended) + in_epoch / self._epoch_rows)

    def _leads_on(self, epoch: int) -> bool:
        return epoch + 1 < self._epochs

    def _opened(self, facts: EpochFacts) -> None:
        self.delivered.append(0)
        self._loop = PrefetchLoop(
            self._world,
            self._machines,
            self._client,
            facts,
            self._shard,
            batch_rows=self._batch_rows,
            notify=self._advance,
            leads_on=self._leads_on,
        )
        self._advance()

    def _end(self, loop: PrefetchLoop) -> None:
        epoch = len(self.ended)
        self._client.acknowledge(Place(epoch + 1, 0))
        self.ended.append(self._world.now)
        if not self._leads_on(epoch):
            self.done = True
            return
        self._open_pending = True
        self.delivered.append(0)
        self._client.open_next(Cursor(epoch + 1), Batching(self._batch_rows), done=self._open_answered)
        loop.begin_next()

    def _open_answered(self) -> None:
        self._open_pending = False
        self._advance()

    def _send_heartbeat(self) -> None:
        if not self.done:
            self._client.heartbeat()
            self._world.after(_HEARTBEAT_SECONDS, self._send_heartbeat)

    def _advance(self) -> None:
        loop = self._loop
        if loop is None or self._waiting_since is None or self.done:
            return
        # what is called here can call this again
        waiting_since, self._waiting_since = self._waiting_since, None
        if loop.empty and not self._open_pending:
            self._end(loop)
        rows = None if self.done else loop.take()
        if rows is None:
            self._waiting_since = waiting_since
            return
        assert rows[0] == self.delivered[-1], "a shard's rows arrive in order, each once"
        self.delivered[-1] += len(rows)
        self._waited += self._world.now - waiting_since
        self._machines.consume(self._shard, rows, self._taken)

    def _taken(self) -> None:
        self._waiting_since = self._world.now
        self._advance()

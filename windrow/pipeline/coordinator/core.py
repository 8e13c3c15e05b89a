"""The coordinator core: which shards are served, by which driver, and when each request is answered.

The coordinator is a cache over a pure function: it recomputes what it lacks. Requests are idempotent
and carry everything that a restarted coordinator needs to continue. The core does not wait, start
threads or read a clock; its environment does (an actor on Ray, a simulation in tests).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from windrow.core.errors import PlanError, StateError
from windrow.pipeline.checkpoint.resume import make_seed_error
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.coordinator.requests import Ask, EpochFacts, OpenRequest, WindowReply, group_by_nodes
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.coordinator.shard_readers import ShardReaders
from windrow.pipeline.coordinator.window_history import Capacity
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.memory_budget import budget_program
from windrow.pipeline.plan.program import Program
from windrow.pipeline.statistics.phases import TrainerStats
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.task import Task

logger = logging.getLogger(__name__)

T = TypeVar("T")
TICK_SECONDS = 1.0
_POLL_SECONDS = 10.0
# An answer costs the same however many parts it has, so parts are batched for this long.
_GATHER_SECONDS = 0.25
# Tasks queued behind the running ones, so that no CPU waits for the coordinator.
_TASKS_PER_CPU = 2

# The attempt at a window, and what is ready of it. None: the request is outdated.
Answer = tuple[str, WindowReply] | Failure | None


class Environment(Protocol):
    """What a coordinator runs in."""

    def now(self) -> float:
        """Seconds since an arbitrary start."""

    def name_driver(self) -> str:
        """A name that is unique among the drivers of all coordinators."""

    def is_restarted(self) -> bool:
        """Whether this coordinator replaces an earlier one of the same run."""

    def user_warnings(self) -> tuple[str, ...]:
        """Warnings for the user, each returned once."""

    def submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        """Start a task; later report its result to ``driver`` and wake all pollers."""


class CoordinatorCore:
    """Serves the shards of a program; creates a new driver after a failure.

    ``nodes`` holds the node that each client, by `Program.shard_of`, is expected on; None where it is not known.
    ``here`` is the coordinator's own, which an unknown one is assumed to be.
    """

    def __init__(
        self,
        program: Program,
        resources: Resources,
        nodes: Mapping[int, str | None],
        environment: Environment,
        here: str = "",
    ) -> None:
        self._program = program
        self._resources = resources
        self._nodes = dict(nodes)
        self._here = here
        self._environment = environment
        self._incarnation = ""
        self._readers = ShardReaders()
        # the place of each shard that the current driver knows
        self._acknowledged: dict[int, Place] = {}
        # by shard: the token and place of a reader in an epoch whose opening has not arrived yet
        self._early_acks: dict[int, tuple[str, Place]] = {}
        self._driver: Driver | None = None
        # where the processes of a launcher share the run: how they disagree, which ends all of them
        self._disagreement: Failure | None = None

    @property
    def destinations(self) -> tuple[tuple[int, ...], ...]:
        """Shards grouped by the nodes that they are consumed on."""
        return group_by_nodes(
            (self._program.shard_of(client), node or self._here) for client, node in self._nodes.items()
        )

    # --- requests of shards; answered with a result or a `Failure`

    def open_epoch(self, request: OpenRequest) -> EpochFacts | Failure:
        """Start an epoch for a shard; after a failure, with a new driver."""
        if self._disagreement is not None:
            return self._disagreement
        if self._driver is not None and self._driver.failure is not None:
            logger.info("the run starts again after a failure, since shard %d opens an epoch", request.shard)
            self._driver = None
        return self._capture(lambda: self._open(request))

    def poll(self, request: OpenRequest, place: Place, key: Key, ask: Ask) -> Generator[float, bool, Answer]:
        """Wait a bounded time for parts of a window that a shard at ``place`` lacks.

        The window belongs to the epoch that the request opened, or to the next one as read-ahead.
        None means that the shard has moved on; if it has not, it polls again.

        Yields the maximum number of seconds to wait for news; the caller sends whether there were any.
        """
        started_at = self._environment.now()
        self._abandon(request, key, ask.lost)
        while True:
            answer = self._capture(lambda: self._read_window(request, place, key, ask))
            if answer is None or isinstance(answer, Failure):
                return answer
            now, reply = answer
            waited = self._environment.now() - started_at
            whole = len(ask.have) + len(reply.outputs) >= reply.parts
            if whole or (reply.outputs and waited >= _GATHER_SECONDS) or waited >= _POLL_SECONDS:
                user_warnings = () if self._driver is None else self._driver.take_user_warnings()
                return now, replace(reply, user_warnings=(*self._environment.user_warnings(), *user_warnings))
            # a later error would keep this frame, and with it these references, alive
            del answer, reply
            yield from self._wait_for_news(request, key, waited)

    def acknowledge(self, shard: int, token: str, place: Place) -> bool:
        """A shard needs nothing before ``place`` any more.

        Returns whether the current driver serves this reader.
        """
        opened = self._readers.opened.get(shard)
        if self._driver is None or opened is None or opened.token != token:
            return False
        if place.epoch > opened.cursor.epoch:
            # an acknowledgement can overtake the opening, which would otherwise move the shard back to released windows
            known = self._early_acks.get(shard, (token, place))
            self._early_acks[shard] = max(known, (token, place)) if known[0] == token else (token, place)
            # either way, the shard has left the open epoch
            place = Place(opened.cursor.epoch + 1, 0)
        self._acknowledge(self._driver, shard, place)
        return True

    def fail(self, error: Exception) -> None:
        """End the current run with an error that occurred while no shard was waiting for an answer."""
        if self._driver is None:
            raise error
        self._driver.task_failed(Failure.capture(error))

    def heartbeat(self, shard: int, *stats: TrainerStats) -> Failure | None:
        """A shard's consumers are alive, and have received what ``stats`` says of each; as `Driver.heartbeat`."""
        return None if self._driver is None else self._driver.heartbeat(shard, *stats)

    def note_delivered(self, row_bytes: float) -> None:
        """Record the bytes per delivered row that a shard measured."""
        if self._driver is not None:
            self._driver.note_delivered(row_bytes)

    def close_shard(self, shard: int, token: str, stats: TrainerStats | None = None) -> bool:
        """A reader of a shard has closed; returns whether it was the last of the run."""
        if not self._readers.close(shard, token) or self._driver is None:
            return False
        last = self._driver.close_shard(shard, stats)
        if last:
            logger.info("the run ends: its last shard, %d, has closed", shard)
        if not last and not self._readers.opened and self._environment.is_restarted():
            # other shards may have closed with the coordinator that died; any that still reads opens its epoch again
            for other in self._nodes:
                self._driver.close_shard(other)
        return last

    def diagnose(self, shard: int) -> tuple[str, float]:
        """Describe what a shard waits for, and the seconds since the last progress."""
        if self._driver is None:
            return "the coordinator has just started", 0.0
        return self._driver.diagnose(shard)

    def run_stats(self, *, spans: bool) -> RunStats:
        """Statistics of the run so far."""
        return RunStats() if self._driver is None else self._driver.run_stats(spans=spans)

    def describe(self) -> tuple[Program, dict[int, Place], Failure | None]:
        """The program as it runs, the place of each client that has an epoch open, and what ended the run."""
        places = {client: self._acknowledged.get(client, Place(0, 0)) for client in self._readers.opened}
        ended = None if self._driver is None else self._driver.failure
        return self._program, places, self._disagreement or ended

    def tick(self) -> None:
        """Handle timeouts; to be called every `TICK_SECONDS`."""
        if self._driver is not None:
            self._driver.tick()

    # --- requests of the driver

    def run(self, task: Task, tables: Any, *cached: Any) -> None:
        # a task belongs to the driver that started it, even after that driver is replaced
        driver = self._driver
        assert driver is not None, "tasks are started by the driver"
        self._environment.submit(driver, task, tables, cached)

    def _capture(self, call: Callable[[], T]) -> T | Failure:
        try:
            return call()
        except Exception as error:
            # pass a task's failure on unchanged: what it carries may not pickle from here
            return (self._driver and self._driver.failure) or Failure.capture(error)

    def _open(self, request: OpenRequest) -> EpochFacts:
        opened = self._readers.opened.get(request.shard)
        number = opened.number if opened is not None and opened.token == request.token else -1
        if opened is not None and number > request.number:
            # a retried call, whose answer is no longer awaited
            raise PlanError(f"shard {request.shard} has opened epoch {opened.cursor.epoch} meanwhile")
        if self._readers.has_closed(request):
            raise PlanError(f"shard {request.shard} has been closed meanwhile")
        if request.goes_on:
            self._readers.check_not_replaced(request)
        if self._driver is not None and request.shard in self._acknowledged and number == request.number:
            # a poll of this epoch arrived before its opening, and opened it
            return self._driver.describe_epoch(request.cursor, request.batching)
        self._adopt_seed(request)
        user_warnings = self._environment.user_warnings()
        driver = self._ensure_driver(request.batching.size)
        replaced = self._note_node(request)
        try:
            facts = driver.open_epoch(request.shard, request.cursor, request.batching)
        except (PlanError, StateError) as error:
            if self._program.job.launch.shared:
                self._disagreement = Failure.capture(error)
                driver.task_failed(self._disagreement)
            raise
        for client in replaced:
            driver.close_shard(client)
        self._readers.open(request)
        self._acknowledged[request.shard] = Place(request.cursor.epoch, request.cursor.window)
        token, place = self._early_acks.pop(request.shard, ("", Place(0, 0)))
        if token == request.token:
            self.acknowledge(request.shard, token, place)
        return replace(facts, user_warnings=(*user_warnings, *facts.user_warnings))

    def _note_node(self, request: OpenRequest) -> list[int]:
        """Note where a client is; one that was not expected takes the place of those returned, which are closed later.

        Until it has opened its epoch, the shard would have no reader, and rows would be placed without it.
        """
        replaced: list[int] = []
        if request.shard not in self._nodes:
            shard = self._program.shard_of(request.shard)
            expected = [client for client in self._nodes if self._program.shard_of(client) == shard]
            replaced = [client for client in expected if not self._nodes[client]]
        self._nodes[request.shard] = request.node
        for client in replaced:
            del self._nodes[client]
        return replaced

    def _adopt_seed(self, request: OpenRequest) -> None:
        """Use the seed that a state gave the shard, unless another shard reads by a different one."""
        if request.seed == self._program.job.seed:
            return
        others = [other.seed for shard, other in self._readers.opened.items() if shard != request.shard]
        if any(seed != request.seed for seed in others):
            raise make_seed_error(request.seed, self._program.job.seed)
        if self._driver is not None:
            # a failed driver starts no more tasks
            self._driver.task_failed(Failure.capture(make_seed_error(request.seed, self._program.job.seed)))
        self._program = self._program.with_seed(request.seed)
        self._driver = None

    def _read_window(
        self, request: OpenRequest, place: Place, key: Key, ask: Ask
    ) -> tuple[str, WindowReply] | None:
        if not self._readers.is_current(request):
            return None
        opened = self._readers.opened.get(request.shard)
        if request.shard not in self._acknowledged or opened is None or opened.precedes(request):
            # the coordinator or its driver has restarted since the shard opened its epoch
            self._open(request)
            if opened is None or opened.token != request.token:
                logger.info("shard %d reconnects at epoch %d, window %d", request.shard, *key)
                self._readers.recover(request.shard)
            # a shard that polls a window may have rows of all windows before it
            epoch, window = key
            if epoch == request.cursor.epoch:
                self._ensure_driver(request.batching.size).admit(request.cursor, window - 1)
        driver = self._ensure_driver(request.batching.size)
        if place > self._acknowledged[request.shard]:
            # acknowledged to a coordinator that died; a retried call carries an older place
            self._acknowledge(driver, request.shard, place)
        reply = driver.poll(request.shard, *key, ())
        now = f"{self._incarnation}-{reply.attempt}"
        if now == ask.attempt:
            outputs = {part: refs for part, refs in reply.outputs.items() if part not in ask.have}
            reply = replace(reply, outputs=outputs)
        return now, reply

    def _abandon(self, request: OpenRequest, key: Key, lost: str) -> None:
        incarnation, _, attempt = lost.rpartition("-")
        is_this = incarnation == self._incarnation and self._readers.opened.get(request.shard) == request
        if lost and is_this and self._driver is not None:
            logger.warning("epoch %d, window %d has lost objects: it is prepared again", *key)
            self._driver.abandon(*key, int(attempt))

    def _acknowledge(self, driver: Driver, shard: int, place: Place) -> None:
        if shard in self._acknowledged:
            self._acknowledged[shard] = max(place, self._acknowledged[shard])
        driver.acknowledge(shard, place)

    def _wait_for_news(
        self, request: OpenRequest, key: Key, waited_seconds: float
    ) -> Generator[float, bool, None]:
        """Wait until a window is complete, can get no further, or has enough new parts for an answer."""
        until = self._environment.now() + max(_GATHER_SECONDS - waited_seconds, TICK_SECONDS / 10)
        while self._environment.now() < until:
            changed = yield TICK_SECONDS
            driver = self._driver
            if driver is None or driver.failure is not None:
                return
            if driver.is_complete(*key) or self._readers.opened.get(request.shard) != request:
                return
            if not changed:
                return

    def _ensure_driver(self, batch_rows: int) -> Driver:
        if self._driver is None:
            resources = self._resources
            budget = budget_program(self._program, resources, batch_rows)
            self._incarnation = self._environment.name_driver()
            if self._environment.is_restarted():
                logger.warning(
                    "the coordinator was restarted: it prepares windows again, as %s", self._incarnation
                )
            else:
                logger.info("a run of %d shards starts, driver %s", self._program.shards, self._incarnation)
            self._acknowledged.clear()
            self._driver = Driver(
                self._program,
                budget,
                self,
                workers=resources.workers * _TASKS_PER_CPU,
                clock=self._environment.now,
                capacity=Capacity(resources.workers, resources.nodes),
                clients=tuple(self._nodes),
            )
            for shard in self._readers.closed_shards:
                self._driver.close_shard(shard)
        return self._driver

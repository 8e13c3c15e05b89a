"""The coordinator: one actor that drives a run and answers its shards.

It is a cache over a pure function: what it lacks it computes. Requests are idempotent
and carry what a restarted coordinator needs to go on.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.core.errors import PlanError
from windrow.pipeline.budgeting import budget_program
from windrow.pipeline.cache.disk import DiskCache, open_disk
from windrow.pipeline.driver import Driver
from windrow.pipeline.executors.ray.deaths import explain_death
from windrow.pipeline.executors.ray.nodes import find_starving, group_by_node, this_node
from windrow.pipeline.executors.ray.requests import OpenRequest
from windrow.pipeline.executors.ray.tasks import remove_everywhere, submit_task
from windrow.pipeline.executors.seam import EpochFacts, Resources
from windrow.pipeline.failures import Failure
from windrow.pipeline.held import WindowReply
from windrow.pipeline.program import Program
from windrow.pipeline.scheduling.events import Place
from windrow.pipeline.stats import RunStats
from windrow.pipeline.tasks import Task

__all__ = ["Coordinator", "start_coordinator"]

T = TypeVar("T")
_TICK_SECONDS = 1.0
_POLL_SECONDS = 10.0
# An answer with a few parts costs as much as one with many.
_GATHER_SECONDS = 0.25
_LOOK_AROUND_SECONDS = 10.0
# Queued behind every running task, so that no CPU waits for the coordinator.
_TASKS_PER_CPU = 2


class Coordinator:
    """Drives a run; every method returns its result or a `Failure`."""

    def __init__(
        self,
        program: Program,
        resources: Resources,
        nodes: tuple[str | None, ...],
        disk: DiskCache | None = None,
    ) -> None:
        self._incarnation = ""
        self._program = program
        self._resources = resources
        self._nodes = {shard: nodes[shard] or this_node() for shard in program.members}
        self._opened: dict[int, OpenRequest] = {}
        # the shards that the present driver knows the places of
        self._served: set[int] = set()
        self._closed: dict[int, set[str]] = {}
        self._ticking = False
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._driver: Driver | None = None
        self._disk = disk
        self._context = ray.put(replace(program.context, disk=disk))
        self._spread = False
        self._look_around_at = 0.0

    async def open_epoch(self, request: OpenRequest) -> EpochFacts | Failure:
        """Begin an epoch for a shard; after a failure, with a new driver."""
        if self._driver is not None and self._driver.failure is not None:
            self._driver = None
        facts = self._answer(lambda: self._open(request))
        self._wake()
        return facts

    async def poll(
        self, request: OpenRequest, place: Place, window: int, attempt: str, have: frozenset[int]
    ) -> tuple[str, WindowReply] | Failure | None:
        """Wait, for a bounded time, for parts of a window that a shard at ``place`` lacks.

        None: the shard has gone on since; if it has not, it asks again.
        """
        began = time.monotonic()
        while True:
            answer = self._answer(lambda: self._look(request, place, window, attempt, have))
            if answer is None or isinstance(answer, Failure):
                return answer
            now, reply = answer
            waited = time.monotonic() - began
            whole = len(have) + len(reply.outputs) >= reply.parts
            if whole or (reply.outputs and waited >= _GATHER_SECONDS) or waited >= _POLL_SECONDS:
                look_out = () if self._driver is None else self._driver.take_look_out()
                return now, replace(reply, look_out=look_out)
            await self._wait_for_news(request, window, waited)

    async def reached(self, shard: int, token: str, place: Place) -> None:
        """A shard needs nothing before ``place`` any more."""
        opened = self._opened.get(shard)
        if self._driver is not None and opened is not None and opened.token == token:
            self._driver.reached(shard, place)
            self._wake()

    async def sign(self, shard: int) -> None:
        """A shard's consumer is alive."""
        if self._driver is not None:
            self._driver.sign(shard)

    async def close_shard(self, shard: int, token: str) -> None:
        """A reader of a shard reads no more."""
        self._closed.setdefault(shard, set()).add(token)
        opened = self._opened.get(shard)
        if opened is not None and opened.token != token:
            return
        self._opened.pop(shard, None)
        if self._driver is not None and self._driver.close_shard(shard) and self._disk is not None:
            await self._remove_files(self._disk)
        self._wake()

    async def diagnose(self, shard: int) -> tuple[str, float]:
        """Say what a shard waits for, and for how many seconds nothing has moved."""
        return (
            ("the coordinator has just started", 0.0)
            if self._driver is None
            else self._driver.diagnose(shard)
        )

    async def run_stats(self, *, spans: bool) -> RunStats:
        """What the run has done so far."""
        return RunStats() if self._driver is None else self._driver.run_stats(spans=spans)

    # --- inside

    def _answer(self, call: Callable[[], T]) -> T | Failure:
        try:
            return call()
        except Exception as error:
            # a task's failure goes on as it came: what it carries may not pickle from here
            return (self._driver and self._driver.failure) or Failure.capture(error)

    def _open(self, request: OpenRequest) -> EpochFacts:
        look_out = () if self._driver is not None else find_starving()
        driver = self._drive(request.batch_rows)
        self._nodes[request.shard] = request.node
        facts = driver.open_epoch(
            request.shard, request.cursor, request.batch_rows, drop_last=request.drop_last
        )
        self._opened[request.shard] = request
        self._served.add(request.shard)
        return replace(facts, look_out=(*look_out, *facts.look_out))

    def _look(
        self, request: OpenRequest, place: Place, window: int, attempt: str, have: frozenset[int]
    ) -> tuple[str, WindowReply] | None:
        if not self._is_current(request):
            return None
        if request.shard not in self._served:
            # this coordinator, or its driver, began anew since the shard opened its epoch
            self._open(request)
            self._drive(request.batch_rows).reached(request.shard, place)
        driver = self._drive(request.batch_rows)
        reply = driver.poll(request.shard, request.cursor.epoch, window, ())
        now = f"{self._incarnation}-{reply.attempt}"
        if now == attempt:
            outputs = {part: refs for part, refs in reply.outputs.items() if part not in have}
            reply = WindowReply(reply.attempt, reply.parts, reply.layout, outputs)
        return now, reply

    def _is_current(self, request: OpenRequest) -> bool:
        """Whether a request is a shard's latest; False when its reader has gone on or has closed."""
        opened = self._opened.get(request.shard)
        if opened is None:
            return request.token not in self._closed.get(request.shard, ())
        if opened.token != request.token:
            raise PlanError(
                f"shard {request.shard} is being iterated elsewhere: another copy of it has begun epoch "
                f"{opened.cursor.epoch} since. Send each shard to one reader only"
            )
        return opened == request

    def _drive(self, batch_rows: int) -> Driver:
        if self._driver is None:
            resources = self._resources
            budget = budget_program(self._program, resources, batch_rows)
            self._incarnation = uuid.uuid4().hex[:8]
            self._served.clear()
            self._driver = Driver(
                self._program,
                budget,
                _Runner(self),
                workers=resources.workers * _TASKS_PER_CPU,
                clock=time.monotonic,
                cache_bytes=budget.cache_bytes,
            )
            for shard in self._closed.keys() - self._opened.keys():
                self._driver.close_shard(shard)
            if not self._ticking:
                self._ticking = True
                self._tick()
        return self._driver

    def _look_around(self) -> None:
        now = time.monotonic()
        if now >= self._look_around_at:
            self._look_around_at = now + _LOOK_AROUND_SECONDS
            self._spread = sum(node["Alive"] for node in ray.nodes()) > 1

    def _tick(self) -> None:
        self._look_around()
        if self._driver is not None:
            self._driver.tick()
        self._wake()
        asyncio.get_running_loop().call_later(_TICK_SECONDS, self._tick)

    async def _wait_for_news(self, request: OpenRequest, window: int, waited_seconds: float) -> None:
        """Wait until a window is complete, nothing more will come, or some parts are worth an answer."""
        until = time.monotonic() + max(_GATHER_SECONDS - waited_seconds, _TICK_SECONDS / 10)
        while time.monotonic() < until:
            changed = self._changed
            await self._wait_for_change()
            driver = self._driver
            if driver is None or driver.failure is not None:
                return
            if driver.is_complete(request.cursor.epoch, window) or self._opened.get(request.shard) != request:
                return
            if changed is self._changed:
                return

    async def _wait_for_change(self) -> None:
        try:
            await asyncio.wait_for(self._changed.wait(), _TICK_SECONDS)
        except asyncio.TimeoutError:
            return

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def spawn(self, work: Any) -> None:
        """Run a coroutine beside the requests, and keep hold of it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def start(self, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        """Submit a task, and take its outputs when it is done."""
        # a task belongs to the driver that began it, even when another has taken its place
        driver = self._driver
        assert driver is not None, "tasks are started by the driver"
        self._submit(driver, task, tables, cached)

    def _submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        first, output, kept = submit_task(self._context, task, tables, cached, spread=self._spread)
        self.spawn(self._take(driver, task, first, output, kept))

    async def _take(self, driver: Driver, task: Task, first: Any, output: Any, kept: Sequence[Any]) -> None:
        try:
            report, lane = await first
        except Exception as error:
            if task.found and isinstance(error, ray.exceptions.ObjectLostError):
                # kept blocks went with their node, or with the coordinator that owned them
                self._submit(driver, driver.blocks_lost(task), None, ())
                return
            transforms = bool(self._program.context.before)
            died = explain_death(task, error, transforms=transforms)
            died.__cause__ = error
            driver.task_failed(Failure.capture(died))
        else:
            if isinstance(report, Failure):
                driver.task_failed(report)
            else:
                driver.task_done(task, report, output, lane, kept)
        self._wake()

    async def _remove_files(self, disk: DiskCache) -> None:
        """Remove the run's files from all machines, once nothing writes there any more."""
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*remove_everywhere(disk), return_exceptions=True)

    def destinations(self) -> tuple[tuple[int, ...], ...]:
        """Shards by the node that they are consumed on."""
        return group_by_node(self._nodes)


def start_coordinator(program: Program, resources: Resources, nodes: tuple[str | None, ...]) -> Any:
    """Start a coordinator on this node, owned by this process; returns its handle."""
    here = NodeAffinitySchedulingStrategy(this_node(), soft=True)
    actor: Any = ray.remote(Coordinator)
    options = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1, "scheduling_strategy": here}
    # named here, so that a coordinator that is restarted finds the same files
    return actor.options(**options).remote(program, resources, nodes, open_disk(program.job))


class _Runner:
    """The driver's way to the coordinator."""

    def __init__(self, coordinator: Any) -> None:
        self._coordinator = coordinator

    @property
    def destinations(self) -> tuple[tuple[int, ...], ...]:
        """Shards by the node that they are consumed on."""
        groups: tuple[tuple[int, ...], ...] = self._coordinator.destinations()
        return groups

    def run(self, task: Task, tables: Any, *cached: Any) -> None:
        """Start a task."""
        self._coordinator.start(task, tables, cached)

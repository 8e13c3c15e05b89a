"""Pools of actors that run a transform: the manager that hands them batches, and how a run starts and uses them.

Map tasks come and go, so none of them knows how busy an actor is. The manager, an actor itself, gets references
only: a task puts a batch into the object store and gets a reference to the result back. If a task's worker dies,
nothing is left to release. If an actor dies, Ray starts it again and repeats its calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import cloudpickle

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.source import with_stages
from windrow.core.user_functions import ConstructorError
from windrow.core.user_warnings import warn_user
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.pool_calls import Answers, RayWorkers
from windrow.pipeline.executors.ray.ray_task import ignoring_interrupts
from windrow.pipeline.tasks.actor_pool import CorePool
from windrow.pipeline.tasks.map_batches import Call, MapBatches, Result
from windrow.pipeline.tasks.map_task import TaskContext
from windrow.pipeline.tasks.transforms import call_function

logger = logging.getLogger(__name__)

# an actor that dies while it runs a batch gets the batch again; one that no actor survives must end
_CALL_RETRIES = 3
# and, where it was the only one that the actor had, this often
_ALONE_RETRIES = 1
# Models are loaded in seconds, and autoscalers add a node in minutes.
_START_SECONDS = 600.0
_POLL_SECONDS = 0.05
_IDLE_SECONDS = 30.0
_TICK_SECONDS = 2.0
# With this many batches at each actor, one more actor helps: a task has one more on the way to each.
_BUSY_CALLS = 2


class _Worker:
    """One actor: calls the function, or an object of the class, with one batch after another."""

    def __init__(self, stage: bytes, name: str) -> None:
        # a module that is missing here must not end the actor without a reason
        self._pickled, self._name = stage, name
        self._loaded: tuple[MapBatches, Any] | None = None

    def start(self) -> None:
        """Return once the process has started."""

    def load(self) -> None:
        """Load the function, or make an object of the class, which the first batch does where this fails."""
        with ignoring_interrupts(), suppress(Exception):
            self._load()

    def _load(self) -> tuple[MapBatches, Any]:
        if self._loaded is None:
            try:
                stage: MapBatches = cloudpickle.loads(self._pickled)
            except Exception as error:  # of any module that is imported
                raise ConstructorError(
                    f"{self._name}: its function cannot be loaded on an actor: {type(error).__name__}: {error}"
                ) from error
            self._loaded = stage, stage.make_instance()
        return self._loaded

    # two objects, so that waiting for the marker does not fetch the rows
    @ray.method(num_returns=2)  # type: ignore[untyped-decorator]
    def run(self, calls: Sequence[Call]) -> tuple[None, Answers]:
        """Call the function with each batch; returns a marker that the calls have ended, and the answers."""
        with ignoring_interrupts():
            try:
                stage, fn = self._load()
            except Exception as error:
                return None, Answers([Failure.capture(error, cloudpickle.dumps)] * len(calls))
            began, answers = time.perf_counter(), Answers()
            for call in calls:
                try:
                    result: Result | Failure = call_function(stage, fn, call)
                except Exception as error:
                    result = Failure.capture(error, cloudpickle.dumps)
                answers.results.append(result)
                answers.seconds = time.perf_counter() - began
                answers.size_bytes += arrow_bytes(call.rows)
                if not isinstance(result, Failure):
                    answers.size_bytes += arrow_bytes(result[0])
                elif not call.skips_failed:
                    break
                if answers.is_enough:
                    break
            return None, answers


@dataclass(eq=False)
class _Member:
    """One actor as the manager sees it."""

    handle: Any
    # batches that it has not finished
    calls: int = 0
    started: bool = False
    # for one that gets no others meanwhile
    reserved: bool = False
    idle_since: float = 0.0


class PoolManager:
    """Starts the actors of one pool, gives each batch to the least busy one, and fits their number to the load."""

    def __init__(
        self,
        stage: bytes,
        name: str,
        sizes: tuple[int, int],
        options: dict[str, Any],
        busy_calls: int = _BUSY_CALLS,
    ) -> None:
        self._stage, self._name, self._options = stage, name, options
        self._busy_calls = busy_calls
        self._least, self._largest = sizes
        self._members: list[_Member] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._begun = 0.0
        self._first_started = asyncio.Event()
        self._start_error = ""
        # whether an actor has its function, and why one died before it had
        self._has_loaded = False
        self._load_error = ""
        self._ticking = False

    async def submit(self, holder: list[Any], alone: bool) -> list[Any] | Failure:
        """Give batches to an actor: the reference in ``holder`` is to their calls; returns one to `Answers`.

        ``alone``: wait until an actor has no other batches, and give it no others meanwhile.
        """
        self._start()
        while True:
            if (failure := await self._await_actors()) is not None:
                return failure
            free = [one for one in self._members if one.started and not one.reserved]
            member = min(free, key=lambda one: one.calls, default=None)
            is_busy = member is None or member.calls >= (1 if alone else self._busy_calls)
            if is_busy and len(self._members) < self._largest and all(one.started for one in self._members):
                self._add()
            if member is not None and (not alone or await self._reserve(member)):
                break
            await asyncio.sleep(_POLL_SECONDS)
        run = member.handle.run
        done, result = (run.options(max_task_retries=_ALONE_RETRIES) if alone else run).remote(holder[0])
        member.calls += 1
        self._spawn(self._finish(member, done, alone))
        return [result]

    async def _reserve(self, member: _Member) -> bool:
        """Wait until an actor has made its calls, with no new ones; False if it has died of them."""
        member.reserved = True
        while member.calls:
            await asyncio.sleep(_POLL_SECONDS)
        return member in self._members

    async def _await_actors(self) -> Failure | None:
        """Wait until an actor has started; returns why none has."""
        try:
            # Even with a set event, a timeout of 0 would end before it is looked at. By the time that this goes on, the
            # last actor can have died, which clears the event.
            while not self._first_started.is_set():
                left = self._begun + _START_SECONDS - time.monotonic()
                await asyncio.wait_for(self._first_started.wait(), max(0.0, left))
        except asyncio.TimeoutError:
            return Failure.capture(
                ConstructorError(
                    f"{self._name}: Ray has started no actor for it within {_START_SECONDS:.0f} s. "
                    f"{_describe_shortage(self._options) or 'Others may hold the resources: '}"
                    "start nodes that have what it needs, or ask for less"
                )
            )
        if not self._members:
            error = f"{self._name}: no actor can start: {self._start_error}"
            return Failure.capture(ConstructorError(error))
        if self._load_error and not self._has_loaded:
            error = (
                f"{self._name}: actors died repeatedly while they loaded its function or made an object of its class, "
                f"from a crash in native code, or for want of memory: {self._load_error}"
            )
            return Failure.capture(ConstructorError(error))
        return None

    def _start(self) -> None:
        if self._ticking:
            return
        self._begun = time.monotonic()
        for _ in range(self._least):
            self._add()
        self._spawn(self._shrink())
        self._ticking = True

    def _add(self) -> None:
        # explicit, or the caller's placement group could capture the actor
        options = {"scheduling_strategy": "DEFAULT", **self._options}
        handle = _worker_class.options(**options).remote(self._stage, self._name)
        member = _Member(handle, idle_since=time.monotonic())
        self._members.append(member)
        self._spawn(self._await_start(member))

    async def _await_start(self, member: _Member) -> None:
        try:
            await member.handle.start.remote()
            member.started, member.idle_since = True, time.monotonic()
            self._spawn(self._await_function(member))
        except Exception as error:
            self._start_error = f"{type(error).__name__}: {error}"
            logger.warning("an actor of %s has not started: %s", self._name, self._start_error)
            self._members.remove(member)
        if any(one.started for one in self._members) or not self._members:
            self._first_started.set()

    async def _await_function(self, member: _Member) -> None:
        try:
            await member.handle.load.remote()
            self._has_loaded = True
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            self._load_error = f"{type(error).__name__}: {error}"

    async def _finish(self, member: _Member, done: Any, alone: bool) -> None:
        try:
            await done
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError):
            # its process has died again and again: others get the next batches until a new one has started
            logger.warning("an actor of %s has died: another one replaces it", self._name)
            if member in self._members:
                self._members.remove(member)
                if len(self._members) < self._least:
                    self._add()
                if not any(one.started for one in self._members):
                    self._first_started.clear()
                    self._begun = time.monotonic()
        finally:
            member.calls -= 1
            if alone:
                member.reserved = False
            member.idle_since = time.monotonic()

    async def _shrink(self) -> None:
        """End actors that have had no work for a while; dropping the last handle ends an actor."""
        while True:
            await asyncio.sleep(_TICK_SECONDS)
            now = time.monotonic()
            for member in list(self._members):
                idle = member.started and not member.calls and now - member.idle_since > _IDLE_SECONDS
                if idle and len(self._members) > self._least:
                    self._members.remove(member)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            # the caller gets the error with the result; here it only must not count as never retrieved
            task.exception()


_worker_class: Any = ray.remote(max_restarts=-1, max_task_retries=_CALL_RETRIES)(_Worker)


def _describe_shortage(options: dict[str, Any]) -> str:
    """Say what an actor needs that no node of the cluster has; empty if a node has it."""
    needs = {"CPU": options.get("num_cpus", 0), "GPU": options.get("num_gpus", 0)}
    needs |= {"memory": options.get("memory", 0), **options.get("resources", {})}
    needs = {name: amount for name, amount in needs.items() if amount}
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if any(all(node.get(name, 0) >= amount for name, amount in needs.items()) for node in nodes):
        return ""
    wanted = ", ".join(f"{name}: {amount:g}" for name, amount in needs.items())
    return f"Each actor needs {{{wanted}}}, and no node of the cluster has that: "


def start_pools(stages: Iterable[MapBatches], *, shuffled: bool = False) -> tuple[MapBatches, ...]:
    """Start a manager for each transform with a pool; returns the transforms, which then run there.

    ``shuffled``: they come after the shuffle. Those before it that ask for processes have them: the tasks'. The pools
    end with this process, or with `end_pools`.
    """
    return tuple(_start_pool(stage, shuffled) if _has_pool(stage, shuffled) else stage for stage in stages)


def _has_pool(stage: MapBatches, shuffled: bool) -> bool:
    return stage.pool is not None and (shuffled or not isinstance(stage.pool, CorePool))


def _start_pool(stage: MapBatches, shuffled: bool) -> MapBatches:
    assert stage.pool is not None, "only transforms with a pool have one started"
    sizes = stage.pool.sizes(int(ray.cluster_resources().get("CPU", 1)))
    options = stage.resources.options
    if isinstance(stage.pool, CorePool) and stage.resources.num_cpus is None:
        # beside the tasks that read, which would not run any more if these reserved all CPUs
        options |= {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
    # shards have as many batches on the way as there are actors
    busy_calls = 1 if shuffled else _BUSY_CALLS
    manager = _manager_class.options(scheduling_strategy="DEFAULT", name=None).remote(
        cloudpickle.dumps(replace(stage, workers=None)), stage.name, sizes, options, busy_calls
    )
    return replace(stage, workers=RayWorkers(manager, stage.name, sizes[1]))


_manager_class: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(PoolManager)


def end_pools(stages: Iterable[MapBatches]) -> None:
    """End the pools that `start_pools` has started; workers that have cached the transforms keep no actor alive."""
    for stage in stages:
        if isinstance(stage.workers, RayWorkers):
            with suppress(Exception):
                # its handles of the actors are the only ones
                ray.kill(stage.workers.manager, no_restart=True)


class RunPools:
    """The pools of a run, and in the object store what its tasks share: a context that refers to them."""

    def __init__(self, context: TaskContext, after: Sequence[MapBatches]) -> None:
        self._plain, self._after = context, tuple(after)
        self._started: tuple[MapBatches, ...] = ()
        self._has_ended = False
        self.context = self._put()

    def _put(self) -> Any:
        of_parents: list[MapBatches] = []

        def start(stages: tuple[MapBatches, ...]) -> tuple[MapBatches, ...]:
            started = start_pools(stages)
            of_parents.extend(started)
            return started

        before, after = start_pools(self._plain.before), start_pools(self._after, shuffled=True)
        reader = with_stages(self._plain.reader, start)
        self._started, self._has_ended = (*before, *after, *of_parents), False
        return ray.put(replace(self._plain, reader=reader, before=before))

    @property
    def after(self) -> tuple[RayWorkers | None, ...]:
        """The workers of each transform after the shuffle; None: the process that reads a shard runs it."""
        self.ensure()
        first = len(self._plain.before)
        found = (stage.workers for stage in self._started[first : first + len(self._after)])
        return tuple(workers if isinstance(workers, RayWorkers) else None for workers in found)

    def end(self) -> None:
        """End the pools while nobody reads: idle actors would keep CPUs and GPUs from others."""
        started, self._started = self._started, ()
        self._has_ended = bool(started)
        end_pools(started)

    def ensure(self) -> None:
        """Start the pools again if they have ended."""
        if self._has_ended:
            self.context = self._put()


def warn_of_shortages(stages: Iterable[MapBatches]) -> None:
    """Warn about pools whose actors no node of the cluster can hold."""
    for stage in stages:
        has_needs = stage.pool is not None and (stage.resources or not isinstance(stage.pool, CorePool))
        lacking = _describe_shortage(stage.resources.options) if has_needs else ""
        if lacking:
            text = f"{stage.name} waits until a node joins. {lacking}start one, or ask for less"
            warn_user(text)

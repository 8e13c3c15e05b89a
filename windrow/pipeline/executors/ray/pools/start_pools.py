"""Starts the pools of a run's transforms, and lets map tasks use them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray import cloudpickle

from windrow.core.errors import TransformError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.executors.ray.pools.pool_manager import PoolManager, describe_shortage
from windrow.pipeline.tasks.map_batches import Call, MapBatches, Result
from windrow.pipeline.tasks.map_task import TaskContext

_MANAGER_LIVES = 3

__all__ = ["RunPools", "end_pools", "start_pools", "warn_of_shortages"]


def start_pools(stages: Iterable[MapBatches]) -> tuple[MapBatches, ...]:
    """Start a manager for each transform with a pool; returns the transforms, which then run there.

    The pools end with this process, or with `end_pools`.
    """
    return tuple(stage if stage.pool is None else _start_pool(stage, stage.pool.sizes) for stage in stages)


def _start_pool(stage: MapBatches, sizes: tuple[int, int]) -> MapBatches:
    manager = _manager_class.options(scheduling_strategy="DEFAULT", name=None).remote(
        cloudpickle.dumps(stage), stage.name, sizes, stage.resources.options
    )
    return replace(stage, workers=RayWorkers(manager, stage.name))


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

    def __init__(self, context: TaskContext) -> None:
        self._plain = context
        self._started: tuple[MapBatches, ...] = ()
        self.context = self._put()

    def _put(self) -> Any:
        self._started = start_pools(self._plain.before)
        return ray.put(replace(self._plain, before=self._started))

    def end(self) -> None:
        """End the pools while nobody reads: idle actors would keep CPUs and GPUs from others."""
        started, self._started = self._started, ()
        end_pools(started)

    def ensure(self) -> None:
        """Start the pools again if they have ended."""
        if self._plain.before and not self._started:
            self.context = self._put()


def warn_of_shortages(stages: Iterable[MapBatches]) -> None:
    """Warn about pools whose actors no node of the cluster can hold."""
    for stage in stages:
        lacking = "" if stage.pool is None else describe_shortage(stage.resources.options)
        if lacking:
            text = f"{stage.name} waits until a node joins. {lacking}start one, or ask for less"
            warnings.warn(text, RuntimeWarning, stacklevel=4)


@dataclass(frozen=True)
class RayWorkers:
    """The pool of one transform, for tasks of any process; see `RemoteWorkers`."""

    manager: Any
    name: str

    def start(self, call: Call) -> Callable[[], Result]:
        """Begin a call; returns what waits for its result, or raises its error."""
        # in a list, so that the manager gets the reference instead of the rows
        holder = [ray.put(call)]
        reply = self.manager.submit.remote(holder)

        def wait() -> Result:
            try:
                result = self._wait(reply, holder, f"{call.where} on actors")
            except (ray.exceptions.RayActorError, ray.exceptions.ObjectLostError) as error:
                raise TransformError(
                    f"{call.where}: the actor's process died repeatedly while it worked on this batch or another one, "
                    f"from a crash in native code, or for want of memory; its log has more. Ray says: {error}"
                ) from error
            if isinstance(result, Failure):
                result.rethrow()
            answer: Result = result
            return answer

        return wait

    def _wait(self, reply: Any, holder: list[Any], who: str) -> Any:
        """The result of a batch; if the manager dies, which owns the results, its next life gets the batch again."""
        for _ in range(_MANAGER_LIVES):
            (found,) = get_all([reply], who)
            if isinstance(found, Failure):
                found.rethrow()
            try:
                return get_all(found, who)[0]
            except ray.exceptions.OwnerDiedError:
                reply = self.manager.submit.remote(holder)
        (found,) = get_all([reply], who)
        return get_all(found, who)[0]

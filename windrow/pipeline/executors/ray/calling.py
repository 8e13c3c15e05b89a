"""Calls of one function, as Ray tasks: each is run again where its worker dies, anywhere."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, TypeVar

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.core.errors import SourceError, StallError, WindrowError
from windrow.pipeline.executors.ray.asking import await_some
from windrow.pipeline.executors.ray.executor import _start_ray
from windrow.pipeline.executors.ray.exporting import export_code
from windrow.pipeline.executors.ray.interrupts import uninterrupted
from windrow.pipeline.executors.ray.nodes import describe_starving, list_nodes
from windrow.pipeline.executors.ray.placement import MOMENT_SECONDS, find_core
from windrow.pipeline.failures import Failure

__all__ = ["call_on_ray"]

T = TypeVar("T")
R = TypeVar("R")

# tasks that Ray knows of for each CPU: enough that none waits for the next
_AHEAD = 4
_LOOK_SECONDS = 0.2


def call_on_ray(call: Callable[[T], R], arguments: Sequence[T], describe: Callable[[T], str]) -> list[R]:
    """Call a function once for each argument; starts Ray where it is not initialised.

    Parameters
    ----------
    call
        Pure, or so that to run it again changes nothing: a worker that dies is replaced.
    describe
        An argument in words, for errors.

    Raises
    ------
    WindrowError
        What the first call that fails raises; no others are begun then, and those that run have ended.
    """
    if not ray.is_initialized():
        _start_ray()
    export_code()
    holder = [ray.put(cloudpickle.dumps(call))]
    places = _Places()
    running: dict[Any, int] = {}
    results: dict[int, R] = {}
    try:
        for at, argument in enumerate(arguments):
            if len(running) >= places.ahead:
                places.leave(_take_one(running, results, arguments, describe))
            running[places.submit(holder, argument)] = at
        while running:
            _take_one(running, results, arguments, describe)
    finally:
        _end(list(running))
    return [results[at] for at in range(len(arguments))]


class _Places:
    """Where calls run: on CPUs, or without one on each core of the cluster where none is to be had.

    Attributes
    ----------
    ahead
        How many calls Ray is to know of at once.
    """

    def __init__(self) -> None:
        self._nodes = () if _await_cpu() else tuple(list_nodes())
        self._taken: dict[Any, str | None] = {}
        self.ahead = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
        if self._nodes:
            self.ahead = sum(node.cores for node in self._nodes)
            warnings.warn(describe_starving()[0], RuntimeWarning, stacklevel=4)

    def submit(self, holder: list[Any], argument: Any) -> Any:
        """Submit a call; returns its reference."""
        place = find_core(self._nodes, Counter(self._taken.values()))
        if place is None or place.node is None:
            # named, or Ray would put it into the caller's placement group, which may have no CPU left
            return _call_remote.options(scheduling_strategy="DEFAULT").remote(holder, argument)
        there = NodeAffinitySchedulingStrategy(place.node, soft=True)
        call = _call_remote.options(num_cpus=0, scheduling_strategy=there).remote(holder, argument)
        self._taken[call] = place.node
        return call

    def leave(self, call: Any) -> None:
        """A call has ended."""
        self._taken.pop(call, None)


def _await_cpu() -> bool:
    """Whether a CPU is free, now or within a moment."""
    until = time.monotonic() + MOMENT_SECONDS
    while ray.available_resources().get("CPU", 0) < 1:
        if time.monotonic() > until:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def _take_one(
    running: dict[Any, int], results: dict[int, R], arguments: Sequence[T], describe: Callable[[T], str]
) -> Any:
    (done, *_), _ = await_some(list(running), describe(arguments[next(iter(running.values()))]))
    at = running.pop(done)
    try:
        result = ray.get(done)
    except ray.exceptions.RayError as error:
        raise _explain(describe(arguments[at]), error) from error
    if isinstance(result, Failure):
        result.rethrow()
    results[at] = result
    return done


def _end(running: list[Any]) -> None:
    """Cancel tasks that have not begun, and wait for the others to end, while any does."""
    for task in running:
        ray.cancel(task)
    # what has brought us here is the error to raise
    with suppress(StallError):
        while running:
            _, running = await_some(running, "cancelling tasks")


def _explain(what: str, error: ray.exceptions.RayError) -> WindrowError:
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        remedy = "its node ran out of memory: use smaller blocks (target_block_bytes=), or fewer CPUs there"
        return SourceError(f"{what}: Ray ended the worker, since {remedy}. Ray says: {error}")
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        why = "a crash in native code, or a kill from outside; the worker's log has more"
        return SourceError(f"{what}: the worker process died, again and again: {why}. Ray says: {error}")
    remedy = (
        "if a module cannot be imported there, install it on every node or give it with "
        "ray.init(runtime_env=...); if nodes die, see Ray's logs"
    )
    return StallError(
        f"{what}: Ray could not run the task: {type(error).__name__}; {remedy}. Ray says: {error}"
    )


def _call(holder: list[Any], argument: Any) -> Any:
    with uninterrupted():
        try:
            return _load(holder[0])(argument)
        except Exception as error:
            return Failure.capture(error, cloudpickle.dumps)


_call_remote: Any = ray.remote(num_cpus=1, max_retries=8)(_call)


@lru_cache(maxsize=1)
def _load(ref: Any) -> Callable[[Any], Any]:
    loaded: Callable[[Any], Any] = cloudpickle.loads(ray.get(ref))
    return loaded

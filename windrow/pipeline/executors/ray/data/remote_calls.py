"""Maps one function over arguments as Ray tasks; a call whose worker dies is retried on any node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import ray
from ray import cloudpickle
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from windrow.core.errors import SourceError, StallError, WindrowError
from windrow.core.source import BlockReader
from windrow.core.user_functions import ConstructorError
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.ray.coordinator_calls import get_all
from windrow.pipeline.executors.ray.data.call_dispatch import CallDispatcher
from windrow.pipeline.executors.ray.executor import start_ray
from windrow.pipeline.executors.ray.pickling import ON_THREADS, call_with_picklable, export_code
from windrow.pipeline.executors.ray.placement import Placement
from windrow.pipeline.executors.ray.pools import end_pools, start_pools, warn_of_shortages
from windrow.pipeline.executors.ray.ray_task import ignoring_interrupts
from windrow.pipeline.tasks.map_batches import MapBatches, StagedCall

T = TypeVar("T")
R = TypeVar("R")


def call_on_ray(call: Callable[[T], R], arguments: Sequence[T], describe: Callable[[T], str]) -> list[R]:
    """Call a function once for each argument; starts Ray if it is not initialised.

    Parameters
    ----------
    call
        Pure, or idempotent: it is retried if a worker dies, and runs twice concurrently if it stays silent.
    describe
        Returns a description of an argument, for errors.

    Raises
    ------
    WindrowError
        The error of the first call that fails. No others are started then, and the running ones have ended.
    """
    return _dispatch(call, arguments, describe).run()


def call_with_outputs(
    call: Callable[[T], tuple[R, Iterator[Any]]],
    arguments: Sequence[T],
    describe: Callable[[T], str],
    outputs: int,
) -> tuple[list[R], list[list[Any]]]:
    """Like `call_on_ray`, for calls that return an answer and an iterator of ``outputs`` objects.

    The objects stay in the object store. This process owns them, so they outlive the workers that made them, and Ray
    makes lost ones again.

    Returns
    -------
    tuple[list, list[list]]
        The answers, and the references of each call's objects.
    """
    dispatcher = _dispatch(call, arguments, describe, outputs=outputs)
    answers: list[R] = dispatcher.run()
    return answers, dispatcher.outputs


def _dispatch(
    call: Callable[[T], Any],
    arguments: Sequence[T],
    describe: Callable[[T], str],
    *,
    outputs: int = 0,
    waits_for_actors: bool = False,
) -> CallDispatcher:
    start_ray()
    export_code()
    holder = [ray.put(cloudpickle.dumps(call))]

    def submit(key: int, placement: Placement) -> Any:
        return _submit(holder, arguments[key], placement, outputs > 0)

    return CallDispatcher(
        len(arguments),
        submit,
        lambda key: describe(arguments[key]),
        _make_call_error,
        outputs,
        waits_for_actors=waits_for_actors,
    )


def start_call_pools(stages: tuple[MapBatches, ...], reader: BlockReader) -> tuple[MapBatches, ...]:
    """`start_pools` for calls from any process; starts Ray if there is a pool and it is not initialised."""
    if all(stage.pool is None for stage in stages):
        return stages
    start_ray()
    warn_of_shortages(stages)
    return call_with_picklable(lambda: start_pools(stages), stages, reader, otherwise=ON_THREADS)


def call_stages_on_ray(
    call: StagedCall[T, R], arguments: Sequence[T], describe: Callable[[T], str]
) -> list[R]:
    """`call_on_ray` for a call with transforms, whose pools of actors live as long as this runs."""
    start_ray()
    export_code()
    warn_of_shortages(call.maps)

    def run() -> list[R]:
        maps = start_pools(call.maps)
        pooled = any(stage.pool is not None for stage in maps)
        try:
            return _dispatch(replace(call, maps=maps), arguments, describe, waits_for_actors=pooled).run()
        finally:
            end_pools(maps)

    return call_with_picklable(run, call.maps, call.reader, otherwise=ON_THREADS)


def _submit(holder: list[Any], argument: Any, placement: Placement, has_outputs: bool) -> Any:
    # an explicit strategy, or Ray would put the call into the caller's placement group, which may be full
    strategy: Any = "DEFAULT"
    if placement.node is not None:
        strategy = NodeAffinitySchedulingStrategy(placement.node, soft=True)
    return _call_remote.options(num_cpus=placement.cpus, scheduling_strategy=strategy).remote(
        holder, argument, has_outputs
    )


def _make_call_error(what: str, error: ray.exceptions.RayError) -> WindrowError:
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        fix = "its node ran out of memory: use smaller blocks (target_block_bytes=), or fewer CPUs there"
        return SourceError(f"{what}: Ray ended the worker, since {fix}. Ray says: {error}")
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        why = "a crash in native code, or a kill from outside; the worker's log has more"
        return SourceError(f"{what}: the worker process died repeatedly: {why}. Ray says: {error}")
    fix = (
        "if a module cannot be imported there, install it on every node or pass it with "
        "ray.init(runtime_env=...); if nodes die, see Ray's logs"
    )
    return StallError(f"{what}: Ray could not run the task: {type(error).__name__}; {fix}. Ray says: {error}")


def _call(holder: list[Any], argument: Any, has_outputs: bool) -> Iterator[Any]:
    """Yield once to signal that the call has started, then its result, or a `Failure`, and then its outputs."""
    with ignoring_interrupts():
        yield None
        outputs: Iterator[Any] = iter(())
        try:
            answer = _load(holder[0])(argument)
            if has_outputs:
                answer, outputs = answer
        except Exception as error:
            answer = Failure.capture(error, cloudpickle.dumps)
        yield answer
        yield from outputs


_call_remote: Any = ray.remote(num_cpus=1, max_retries=8, num_returns="streaming")(_call)


@lru_cache(maxsize=1)
def _load(ref: Any) -> Callable[[Any], Any]:
    (pickled,) = get_all([ref], "a call on Ray that needs its function")
    try:
        call: Callable[[Any], Any] = cloudpickle.loads(pickled)
    except Exception as error:  # of any module that is imported
        raise ConstructorError(
            f"functions cannot be loaded in a worker process of Ray: {type(error).__name__}: {error}. Install the "
            "module on every node, or ship it with the runtime environment of the job"
        ) from error
    return call

"""Calls of one function, as Ray tasks: each is run again where its worker dies, anywhere."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, TypeVar

import ray
from ray import cloudpickle

from windrow.core.errors import SourceError, StallError, WindrowError
from windrow.pipeline.executors.ray.executor import _start_ray
from windrow.pipeline.executors.ray.exporting import export_code
from windrow.pipeline.failures import Failure

__all__ = ["call_on_ray"]

T = TypeVar("T")
R = TypeVar("R")

# tasks that Ray knows of for each CPU: enough that none waits for the next
_AHEAD = 4


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
    ahead = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    running: dict[Any, int] = {}
    results: dict[int, R] = {}
    try:
        for at, argument in enumerate(arguments):
            if len(running) >= ahead:
                _take_one(running, results, arguments, describe)
            running[_call_remote.remote(holder, argument)] = at
        while running:
            _take_one(running, results, arguments, describe)
    finally:
        _end(list(running))
    return [results[at] for at in range(len(arguments))]


def _take_one(
    running: dict[Any, int], results: dict[int, R], arguments: Sequence[T], describe: Callable[[T], str]
) -> None:
    (done,), _ = ray.wait(list(running), num_returns=1)
    at = running.pop(done)
    try:
        result = ray.get(done)
    except ray.exceptions.RayError as error:
        raise _explain(describe(arguments[at]), error) from error
    if isinstance(result, Failure):
        result.rethrow()
    results[at] = result


def _end(running: list[Any]) -> None:
    """Have those that were not begun forgotten, and the others end."""
    for task in running:
        ray.cancel(task)
    if running:
        ray.wait(running, num_returns=len(running))


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
    with _uninterrupted():
        try:
            return _load(holder[0])(argument)
        except Exception as error:
            return Failure.capture(error, cloudpickle.dumps)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Finish what was begun.

    Ray cancels a running task by an interrupt. In the middle of an import that leaves a module that
    is broken for whatever runs in this worker later; pandas then has no ``core``.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)


_call_remote: Any = ray.remote(num_cpus=1, max_retries=8)(_call)


@lru_cache(maxsize=1)
def _load(ref: Any) -> Callable[[Any], Any]:
    loaded: Callable[[Any], Any] = cloudpickle.loads(ray.get(ref))
    return loaded

"""Calls to the coordinator and waits for Ray objects: stall warnings, timeouts, and errors that say why tasks died."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import ray

from windrow.core.errors import SourceError, StallError, TransformError, WindrowError
from windrow.core.user_warnings import warn_user
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.executors.base import Waiting
from windrow.pipeline.statistics.stats import RunStats
from windrow.pipeline.tasks.task import Task

POLL_SECONDS = 1.0
_STATS_SECONDS = 60.0
_CHECK_NODES = "see that nodes are alive and have CPUs that nothing else holds"
_MAX_ORIGINS = 3


class PendingCalls:
    """The calls of one reader that the coordinator has not answered yet.

    Ray replays them to a restarted coordinator, whether or not the reader still waits for the answers.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._refs: list[Any] = []

    def add(self, ref: Any) -> None:
        """Register a call."""
        with self._lock:
            self._refs.append(ref)

    def remove(self, ref: Any) -> None:
        """Unregister a call whose answer has arrived."""
        with self._lock:
            self._refs = [other for other in self._refs if other != ref]

    def await_answers(self, seconds: float) -> bool:
        """Wait at most ``seconds``; returns whether no call is pending, which holds after ray.shutdown() too.

        Answers that no thread consumed are released, with the objects that they reference.
        """
        with self._lock:
            refs = list(self._refs)
        if not refs or not ray.is_initialized():
            return True
        ready, left = ray.wait(refs, num_returns=len(refs), timeout=seconds)
        with self._lock:
            self._refs = [ref for ref in self._refs if ref not in ready]
        return not left


def notify(method: Any, *args: Any) -> Any:
    """Call the coordinator without waiting for an answer; does nothing after ray.shutdown().

    Returns the reference of the call's result, or None.
    """
    return method.remote(*args) if ray.is_initialized() else None


def await_answer(ref: Any, who: str, waiting: Waiting) -> Any:
    """Wait for the coordinator's answer; warns during a long wait, and finally raises a `StallError`."""
    for limit_seconds in (waiting.warn_seconds, waiting.fail_seconds - waiting.warn_seconds):
        try:
            return _unwrap(ref, who, limit_seconds)
        except ray.exceptions.GetTimeoutError:
            warn_user(f"{who} still waits for the coordinator to answer")
    raise StallError(
        f"{who} has waited {waiting.fail_seconds:,.0f} s for the coordinator, an actor that needs no CPU: "
        "is the node of the process that called split() alive?"
    )


def await_answer_until(ref: Any, who: str, stopped: threading.Event) -> Any:
    """Wait for the coordinator's answer; None if ``stopped`` is set first."""
    while not stopped.is_set():
        try:
            return _unwrap(ref, who, POLL_SECONDS)
        except ray.exceptions.GetTimeoutError:
            continue
    return None


def get_run_stats(coordinator: Any, who: str, *, spans: bool) -> RunStats:
    """Get the statistics of a coordinator's job; a `StallError` if it does not answer."""
    missing = f"{who} has no statistics of its job"
    if not ray.is_initialized():
        raise StallError(f"{missing}: Ray has been shut down")
    try:
        stats: RunStats = ray.get(coordinator.run_stats.remote(spans=spans), timeout=_STATS_SECONDS)
    except ray.exceptions.RayActorError as error:
        raise _make_loss_error(who, error) from error
    except ray.exceptions.GetTimeoutError as error:
        silent = f"the coordinator has not answered for {_STATS_SECONDS:.0f} s"
        raise StallError(f"{missing}: {silent}") from error
    except ray.exceptions.RayError as error:
        raise StallError(f"{missing}: the coordinator could not answer ({error})") from error
    return stats


def _wait_for_any(refs: Sequence[Any], who: str) -> tuple[list[Any], list[Any]]:
    """Wait until at least one of several objects is ready; returns the ready ones and the rest.

    Raises a `StallError`, after a warning, if none is ready within the stall timeout.
    """
    waiting = Waiting()
    for limit_seconds in (waiting.warn_seconds, waiting.fail_seconds - waiting.warn_seconds):
        ready, left = ray.wait(list(refs), num_returns=1, timeout=limit_seconds)
        if ready and left:
            also, left = ray.wait(left, num_returns=len(left), timeout=0)
            ready += also
        if ready:
            return ready, left
        text = f"{who} still waits for Ray: none of {len(refs):,} tasks or objects has become ready; {_count_cpus()}"
        warn_user(text)
    raise StallError(f"{text}, for {waiting.fail_seconds:,.0f} s: {_CHECK_NODES}")


def get_all(refs: Sequence[Any], who: str) -> list[Any]:
    """Get objects as they become ready; raises like `_wait_for_any`, and Ray's errors for lost objects."""
    values: dict[Any, Any] = {}
    left = list(dict.fromkeys(refs))
    while left:
        ready, left = _wait_for_any(left, who)
        values.update(zip(ready, _get_ready(ready, who), strict=True))
    return [values[ref] for ref in refs]


def _get_ready(refs: Sequence[Any], who: str) -> list[Any]:
    """Get ready objects; Ray would wait indefinitely for one that was evicted or whose spill file was deleted."""
    waiting = Waiting()
    text = f"{who} waits for Ray to fetch {len(refs):,} objects that it reports as ready"
    for limit_seconds in (waiting.warn_seconds, waiting.fail_seconds - waiting.warn_seconds):
        try:
            values: list[Any] = ray.get(list(refs), timeout=limit_seconds)
        except ray.exceptions.GetTimeoutError:
            warn_user(text)
        else:
            return values
    raise StallError(
        f"{text}, for {waiting.fail_seconds:,.0f} s: an object may have been evicted, or its spill file deleted; "
        "see that nodes are alive and that their spill directories are intact, then run it again"
    )


class StallWatch:
    """Warns about a wait without progress, and raises after ``fail_seconds``, by default the stall timeout."""

    def __init__(self, fail_seconds: float | None = None) -> None:
        self._waiting = Waiting() if fail_seconds is None else Waiting(fail_seconds=fail_seconds)
        self.note_progress()

    def note_progress(self) -> None:
        """Restart the timer."""
        self._since = time.monotonic()
        self._warned = False

    def check(self, describe: Callable[[], str]) -> None:
        """Warn or raise a `StallError` if that is due; ``describe`` returns what waits for what."""
        seconds = time.monotonic() - self._since
        if seconds >= self._waiting.fail_seconds:
            raise StallError(f"{describe()} for {seconds:,.0f} s; {_count_cpus()}: {_CHECK_NODES}")
        if seconds >= self._waiting.warn_seconds and not self._warned:
            self._warned = True
            text = f"{describe()} for {seconds:,.0f} s; {_count_cpus()}"
            warn_user(text)


def _count_cpus() -> str:
    free, total = (count().get("CPU", 0) for count in (ray.available_resources, ray.cluster_resources))
    return f"CPUs free: {free:g} of {total:g}"


def _unwrap(ref: Any, who: str, limit_seconds: float) -> Any:
    try:
        answer = ray.get(ref, timeout=limit_seconds)
    except ray.exceptions.RayActorError as error:
        raise _make_loss_error(who, error) from error
    if isinstance(answer, Failure):
        answer.rethrow()
    return answer


def _make_loss_error(who: str, error: ray.exceptions.RayActorError) -> StallError:
    """Make an error that says why a coordinator does not answer, and how to fix it."""
    if error.actor_init_failed:
        return StallError(
            f"{who} has no coordinator: it could not start. The usual reason is a module of the source or "
            f"of a transform that Ray's workers cannot import: install it there, or pass it with "
            f"ray.init(runtime_env=...).\n{error}"
        )
    return StallError(
        f"{who} has lost the coordinator: {error}. It lives as long as the process that called split(): "
        "keep that process, and its Ray session, alive"
    )


def make_death_error(task: Task, error: BaseException, *, transforms: bool) -> WindrowError:
    """Make an error for a task that failed permanently, which names its blocks.

    ``transforms``: the job has functions of the user before the shuffle.
    """
    where = _describe(task)
    error_type = TransformError if transforms and task.reads else SourceError
    work = "reading or transforming" if transforms and task.reads else "reading or shuffling"
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return error_type(
            f"{where}: Ray ended the worker because its node ran out of memory while {work} these blocks. "
            f"Use smaller blocks (read_parquet(target_block_bytes=...)), fewer CPUs on that node, or functions "
            f"that need less memory. Ray says: {error}"
        )
    if isinstance(error, ray.exceptions.WorkerCrashedError):
        return error_type(
            f"{where}: the worker process died repeatedly while {work} these blocks: a crash in native "
            f"code, or a kill from outside. The worker's log has more. Ray says: {error}"
        )
    if isinstance(error, ray.exceptions.TaskCancelledError):
        return StallError(
            f"{where}: the task was cancelled: by ray.cancel, or by an interrupt (SIGINT) of its worker. Start "
            f"the epoch again. Ray says: {_last_line(error)}"
        )
    return StallError(
        f"{where}: Ray could not run the task: {type(error).__name__}. If a module cannot be imported there, "
        f"install it on every node or pass it with ray.init(runtime_env=...); if nodes die, see Ray's logs. "
        f"Ray says: {_last_line(error)}"
    )


def is_conclusive(error: Exception) -> bool:
    """Whether an error would end any other copy of the task too: its worker died repeatedly, or its input is lost."""
    return isinstance(
        error,
        (
            ray.exceptions.OutOfMemoryError,
            ray.exceptions.WorkerCrashedError,
            ray.exceptions.ObjectLostError,
            ray.exceptions.RayTaskError,
        ),
    )


def _last_line(error: BaseException) -> str:
    """The message of a task's error, without the worker's traceback before it."""
    text = str(error).strip()
    return text.splitlines()[-1] if isinstance(error, ray.exceptions.RayTaskError) and text else text


def _describe(task: Task) -> str:
    origins = [address.origin for address in task.addresses]
    more = len(origins) - _MAX_ORIGINS
    named = ", ".join(origins[:_MAX_ORIGINS]) + (f" and {more} more" if more > 0 else "")
    return f"epoch {task.work.epoch}, window {task.work.window}: {named}"

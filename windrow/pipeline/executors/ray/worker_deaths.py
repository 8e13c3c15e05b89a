"""Turns Ray's errors about dead tasks into windrow errors that name the blocks and how to fix it."""

from __future__ import annotations

import ray

from windrow.core.errors import SourceError, StallError, TransformError, WindrowError
from windrow.pipeline.tasks.map_task import Task

__all__ = ["is_conclusive", "make_death_error"]

_MAX_ORIGINS = 3


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

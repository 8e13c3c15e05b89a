"""One copy of a call on Ray: what it yields, and when it has ended."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from windrow.pipeline.executors.ray.coordinator_calls import get_all

__all__ = ["Copy"]

_READ_SECONDS = 1.0


@dataclass(eq=False)
class Copy:
    """One copy of a call.

    Attributes
    ----------
    key, number
        The call's number, and the copy's.
    stream
        Yields once when the call begins, and then its answer.
    since
        When it was submitted.
    begun
        Whether the call has begun.
    overtaken
        Whether nobody needs its answer any more.
    cancelled
        Whether Ray was asked to cancel it, or has ended it.
    """

    key: int
    number: int
    stream: Any
    since: float
    started: bool = False
    superseded: bool = False
    cancelled: bool = False

    def is_draining(self) -> bool:
        """Whether all that is left to know is when it has ended."""
        return self.superseded and (self.started or self.cancelled)

    def wait_ref(self) -> Any:
        """What to wait for; a cancelled stream is ready at once, but complete only when the task has ended."""
        return self.stream.completed() if self.is_draining() else self.stream

    def read(self, who: str) -> tuple[Any] | None:
        """What it has yielded next, in a tuple; None where that is not there yet after all.

        Raises
        ------
        RayError
            If that is why the task has ended.
        StallError
            If what it has yielded cannot be fetched.
        """
        try:
            ref = self.stream._next_sync(_READ_SECONDS)
        except StopIteration:
            raise ray.exceptions.RaySystemError("the task has ended without an answer") from None
        return None if ref.is_nil() else (get_all([ref], who)[0],)

    def cancel(self, *, force: bool = False) -> None:
        """Cancel it; a call that runs ends by itself, unless ``force`` ends its process."""
        self.cancelled = True
        # where that fails, the copy is waited for like one that runs
        with suppress(Exception):
            ray.cancel(self.stream, force=force, recursive=False)

"""One copy of a remote call: reads its stream of results, cancels it, and tracks whether it has ended."""

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
        The call's number, and the copy's number.
    stream
        Yields once when the call starts, and then its answer.
    since
        Time of submission.
    started
        Whether the call has started.
    superseded
        Whether its answer is not needed any more.
    cancelled
        Whether it was cancelled, or Ray has ended it.
    """

    key: int
    number: int
    stream: Any
    since: float
    started: bool = False
    superseded: bool = False
    cancelled: bool = False

    def is_draining(self) -> bool:
        """Whether only its end is still awaited."""
        return self.superseded and (self.started or self.cancelled)

    def wait_ref(self) -> Any:
        """What to wait for; a cancelled stream is ready immediately, but complete only once the task has ended."""
        return self.stream.completed() if self.is_draining() else self.stream

    def read(self, who: str) -> tuple[Any] | None:
        """Read the next yielded value, in a tuple; None if it is not there yet after all.

        Raises
        ------
        RayError
            If the task has failed with it.
        StallError
            If the yielded value cannot be fetched.
        """
        try:
            ref = self.stream._next_sync(_READ_SECONDS)
        except StopIteration:
            raise ray.exceptions.RaySystemError("the task has ended without an answer") from None
        return None if ref.is_nil() else (get_all([ref], who)[0],)

    def cancel(self, *, force: bool = False) -> None:
        """Cancel the copy; a running call runs to its end, unless ``force`` kills its process."""
        self.cancelled = True
        # if cancelling fails, the copy is awaited like a running one
        with suppress(Exception):
            ray.cancel(self.stream, force=force, recursive=False)

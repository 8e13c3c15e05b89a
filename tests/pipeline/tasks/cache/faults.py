"""A file system whose calls fail, for everything that uses the disk cache."""

from __future__ import annotations

import errno
import functools
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from windrow.pipeline.tasks.cache import system_calls

__all__ = ["ERRORS", "Calls", "failing_calls"]

# full, over quota, read-only, not allowed, broken
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)


class Calls:
    """The calls that the cache has made to the operating system, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._lock = threading.Lock()

    def note(self, name: str) -> int:
        with self._lock:
            self.names.append(name)
            return len(self.names)


@contextmanager
def failing_calls(error: int, fails: Callable[[str, int], bool]) -> Iterator[Calls]:
    """Let calls fail.

    Parameters
    ----------
    error
        With this number.
    fails
        Whether a call does, given its name and how many calls there have been with it.
    """
    calls = Calls()

    def wrap(name: str) -> Any:
        real = getattr(system_calls, name)

        @functools.wraps(real)
        def call(*args: Any, **options: Any) -> Any:
            if fails(name, calls.note(name)):
                if name == "close":
                    # the system closes a file even where it reports an error
                    real(*args)
                raise OSError(error, os.strerror(error))
            return real(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in system_calls.__all__:
            patch.setattr(system_calls, name, wrap(name))
        yield calls

"""Failing system calls for tests of the disk cache."""

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

# disk full, over quota, read-only, permission denied, I/O error
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)


class Calls:
    """The system calls of the cache, in order."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._lock = threading.Lock()

    def note(self, name: str) -> int:
        with self._lock:
            self.names.append(name)
            return len(self.names)


@contextmanager
def failing_calls(error: int, fails: Callable[[str, int], bool]) -> Iterator[Calls]:
    """Make system calls of the cache fail.

    Parameters
    ----------
    error
        The errno of the errors.
    fails
        Whether a call fails, given its name and its number, counted from 1.
    """
    calls = Calls()

    def wrap(name: str) -> Any:
        real = getattr(system_calls, name)

        @functools.wraps(real)
        def call(*args: Any, **options: Any) -> Any:
            if fails(name, calls.note(name)):
                if name == "close":
                    # Linux closes a file even if close() reports an error
                    real(*args)
                raise OSError(error, os.strerror(error))
            return real(*args, **options)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name, value in vars(system_calls).items() if callable(value)]:
            patch.setattr(system_calls, name, wrap(name))
        yield calls

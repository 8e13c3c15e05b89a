"""Where a transform's function runs in this process: in the calling thread, or with one instance of a small pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["FunctionWorkers"]


class FunctionWorkers:
    """The instances of a transform's class in this process; a plain function is its own instance.

    Without a pool, each thread has an instance, which it makes when it first needs one and which ends with it.
    With a pool of ``size``, there are at most so many, each used by one thread at a time, and a thread waits
    for one that is free.
    """

    def __init__(self, make: Callable[[], Callable[..., Any]], size: int | None) -> None:
        self._make = make
        self._of_thread = threading.local()
        self._slots = None if size is None else threading.Semaphore(size)
        self._idle: list[Callable[..., Any]] = []

    @contextmanager
    def instance(self) -> Iterator[Callable[..., Any]]:
        """An instance that no other thread uses meanwhile."""
        if self._slots is None:
            found = getattr(self._of_thread, "instance", None)
            if found is None:
                found = self._of_thread.instance = self._make()
            yield found
            return
        with self._slots:
            try:
                found = self._idle.pop()
            except IndexError:
                found = self._make()
            try:
                yield found
            finally:
                self._idle.append(found)

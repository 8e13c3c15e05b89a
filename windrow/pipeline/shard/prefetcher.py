"""Prepares batches ahead of the consumer in a thread of its own, where conversion is slow."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

from windrow.core.errors import StallError

_POLL_SECONDS = 1.0
# of batches that wait on a device, so that many large ones do not take its memory
_READY_BYTES = 256 * 2**20
_JOIN_SECONDS = 10.0


class Prefetcher:
    """Keeps up to ``depth`` items of a generator ready, of at most `_READY_BYTES` if they are more than one.

    An exception of the generator is raised in the consumer, at its place in the order.
    """

    def __init__(
        self, items: Generator[Any, None, None], depth: int, size_of: Callable[[Any], int] = lambda _: 0
    ) -> None:
        self._ready = _Ready(depth)
        self._thread = threading.Thread(
            target=_fill, args=(items, self._ready, size_of), name="windrow-prefetch", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            entry = self._ready.get(_POLL_SECONDS)
            if entry is not None:
                break
            if self._ready.is_closed:
                raise StopIteration
            if not self._thread.is_alive() and self._ready.is_empty:
                raise StallError("the thread that prepares batches ended without reporting an error")
        kind, value = entry
        if kind == "item":
            return value
        if kind == "error":
            raise value
        raise StopIteration

    def close(self) -> None:
        """Stop the thread and drop ready items."""
        self._ready.close()
        if self._thread.ident != threading.get_ident():
            self._thread.join(_JOIN_SECONDS)


class _Ready:
    """A queue of (kind, value) that is bounded in entries and in bytes, between two threads."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._entries: deque[tuple[tuple[str, Any], int]] = deque()
        self._bytes = 0
        self._changed = threading.Condition()
        self.is_closed = False

    @property
    def is_empty(self) -> bool:
        return not self._entries

    def put(self, entry: tuple[str, Any], size_bytes: int) -> bool:
        """Wait until there is space, and append an entry; returns False if the queue was closed."""
        with self._changed:
            self._changed.wait_for(lambda: self.is_closed or self._has_space(size_bytes))
            if self.is_closed:
                return False
            self._entries.append((entry, size_bytes))
            self._bytes += size_bytes
            self._changed.notify_all()
            return True

    def _has_space(self, size_bytes: int) -> bool:
        fits = self._bytes + size_bytes <= _READY_BYTES
        return not self._entries or (len(self._entries) < self._depth and fits)

    def get(self, timeout: float) -> tuple[str, Any] | None:
        """Remove and return the first entry; None if there is none in time."""
        with self._changed:
            if (
                not self._changed.wait_for(lambda: self.is_closed or self._entries, timeout)
                or not self._entries
            ):
                return None
            entry, size_bytes = self._entries.popleft()
            self._bytes -= size_bytes
            self._changed.notify_all()
            return entry

    def close(self) -> None:
        """Drop all entries, and accept no more."""
        with self._changed:
            self.is_closed = True
            self._entries.clear()
            self._changed.notify_all()


def _fill(items: Generator[Any, None, None], ready: _Ready, size_of: Callable[[Any], int]) -> None:
    end: tuple[str, Any] = ("end", None)
    try:
        with closing(items):
            for item in items:
                if not ready.put(("item", item), size_of(item)):
                    break
                # the queue alone holds it from here on
                del item
    except BaseException as error:
        end = ("error", error)
    ready.put(end, 0)

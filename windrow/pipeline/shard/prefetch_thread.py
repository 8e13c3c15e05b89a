"""Runs a generator of batches ahead of its consumer, in a background thread."""

from __future__ import annotations

import queue
import threading
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

from windrow.core.errors import StallError

__all__ = ["Prefetcher"]

_POLL_SECONDS = 1.0
_JOIN_SECONDS = 10.0


class Prefetcher:
    """Keeps up to ``depth`` items of a generator ready.

    An exception of the generator is raised in the consumer, at its place in the order.
    """

    def __init__(self, items: Generator[Any, None, None], depth: int) -> None:
        self._queue: queue.Queue[tuple[str, Any]] = queue.Queue(maxsize=depth)
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=_fill, args=(items, self._queue, self._stopped), name="windrow-prefetch", daemon=True
        )
        self._thread.start()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        while True:
            try:
                kind, value = self._queue.get(timeout=_POLL_SECONDS)
                break
            except queue.Empty:
                if not self._thread.is_alive() and self._queue.empty():
                    if self._stopped.is_set():
                        raise StopIteration from None
                    raise StallError(
                        "the thread that prepares batches ended without reporting an error"
                    ) from None
        if kind == "item":
            return value
        if kind == "error":
            raise value
        raise StopIteration

    def close(self) -> None:
        """Stop the thread and drop ready items."""
        self._stopped.set()
        while not self._queue.empty():
            try:
                self._queue.get_nowait()
            except queue.Empty:
                break
        if self._thread.ident != threading.get_ident():
            self._thread.join(_JOIN_SECONDS)


def _fill(
    items: Generator[Any, None, None], ready: queue.Queue[tuple[str, Any]], stopped: threading.Event
) -> None:
    end: tuple[str, Any] = ("end", None)
    try:
        with closing(items):
            for item in items:
                if not _put(ready, ("item", item), stopped):
                    break
    except BaseException as error:
        end = ("error", error)
    _put(ready, end, stopped)


def _put(ready: queue.Queue[tuple[str, Any]], entry: tuple[str, Any], stopped: threading.Event) -> bool:
    while not stopped.is_set():
        try:
            ready.put(entry, timeout=_POLL_SECONDS)
            return True
        except queue.Full:
            continue
    return False

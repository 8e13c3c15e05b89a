"""LRU cache of parsed footers, so that the blocks of a file parse its footer once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any


class FooterCache:
    """An LRU cache of footers, bounded in number and serialized bytes; thread-safe.

    Parsed footers take about three times as much, and as much again once each chunk of a wide table has been
    looked up. The latest footer is cached whatever its size, since its file's next block needs it.
    """

    def __init__(self, max_footers: int, max_bytes: int) -> None:
        self._max_footers = max_footers
        self._max_bytes = max_bytes
        self._cached: OrderedDict[bytes, Any] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def forget(self) -> None:
        """Drop all footers, and a lock that another thread can have held when the process was forked."""
        self._cached.clear()
        self._bytes = 0
        self._lock = threading.Lock()

    def find(self, digest: bytes) -> Any | None:
        with self._lock:
            if digest not in self._cached:
                return None
            self._cached.move_to_end(digest)
            return self._cached[digest]

    def get(self, digest: bytes, read: Callable[[], Any]) -> Any:
        """The footer of a digest, from the cache or by calling ``read``, whose errors are not cached."""
        found = self.find(digest)
        if found is not None:
            return found
        # without the lock, so that footers of several files are read concurrently
        metadata = read()
        with self._lock:
            self._insert(digest, metadata)
        return metadata

    def _insert(self, digest: bytes, metadata: Any) -> None:
        if digest in self._cached:
            return
        self._cached[digest] = metadata
        self._bytes += metadata.serialized_size
        while len(self._cached) > 1 and (
            len(self._cached) > self._max_footers or self._bytes > self._max_bytes
        ):
            _, oldest = self._cached.popitem(last=False)
            self._bytes -= oldest.serialized_size

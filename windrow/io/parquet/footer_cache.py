"""Parsed footers that are kept, so that the blocks of a file parse its footer once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

__all__ = ["FooterCache"]


class FooterCache:
    """The footers used last, bounded in number and bytes; safe to share between threads.

    Parameters
    ----------
    max_footers
        Most footers that are kept.
    max_bytes
        Most bytes of them, as serialized; parsed, they take about three times as much, and
        as much again where each chunk of a wide table has been looked up.
        The last footer is kept whatever its size, since its file's next block needs it.
    """

    def __init__(self, max_footers: int, max_bytes: int) -> None:
        self._max_footers = max_footers
        self._max_bytes = max_bytes
        self._kept: OrderedDict[bytes, Any] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of the footers kept, as serialized."""
        return self._bytes

    def get(self, digest: bytes, read: Callable[[], Any]) -> Any:
        """The footer of a digest; ``read`` gives it if it is not kept, and what it raises is not."""
        with self._lock:
            if digest in self._kept:
                self._kept.move_to_end(digest)
                return self._kept[digest]
        # not under the lock, so that footers of other files are read at the same time
        metadata = read()
        with self._lock:
            self._keep(digest, metadata)
        return metadata

    def _keep(self, digest: bytes, metadata: Any) -> None:
        if digest in self._kept:
            return
        self._kept[digest] = metadata
        self._bytes += metadata.serialized_size
        while len(self._kept) > 1 and (len(self._kept) > self._max_footers or self._bytes > self._max_bytes):
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= oldest.serialized_size

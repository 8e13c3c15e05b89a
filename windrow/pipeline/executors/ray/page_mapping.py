"""Pages of the object store, mapped before a worker writes to them.

Ray copies what a task returns into the store, which every process maps as a whole. The
first write of a process to a page is a fault of its own, also where others have used the
page before: with two workers, windows of some gigabytes are written for ten epochs until each
has met every page. Mapping pages that exist already, some megabytes at a call, costs a
quarter of that.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import re
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np

__all__ = ["ObjectStorePages"]

_CHUNK_BYTES = 2 * 2**20
_MAX_CHUNKS = 4096
# Tens of milliseconds, so that no task is held up for long.
_MAX_BYTES_PER_CALL = 256 * 2**20
# The store fills from its beginning: behind so many chunks that nobody uses there is nothing to be found.
_MAX_MISSES_PER_CALL = 64
_MIN_PAUSE_SECONDS = 0.25
_MAX_PAUSE_SECONDS = 8.0
_POPULATE_READ = 22  # Linux 5.14; the mmap module does not name it
_STORE_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw-s .*/plasma\w+ \(deleted\)$", re.MULTILINE)


class ObjectStorePages:
    """What this process has mapped of its node's object store.

    It maps pages that exist, and makes none: those which nobody has written stay with the
    system. What is mapped takes 8 bytes of page table for each page, as it would when it is
    written. Where the system cannot be asked (not Linux, or an older one) nothing happens.

    Parameters
    ----------
    find
        Where the store lies in this process, as its address and bytes; None where it is not mapped.
    clock
        Seconds, of any beginning.
    """

    def __init__(
        self,
        find: Callable[[], tuple[int, int] | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._find = find or _find_store
        self._clock = clock
        self._due = 0.0
        self._pause = _MIN_PAUSE_SECONDS
        self._mapped: tuple[int, int] | None = None
        self._chunk_bytes = _CHUNK_BYTES
        self._unmapped: list[int] = []

    def map_ahead(self) -> int:
        """Map pages that others have used since; returns their bytes.

        To be called often: it looks four times a second while there is something to be found, and
        more and more rarely while there is not.
        """
        now = self._clock()
        if now < self._due:
            return 0
        found = self._search()
        self._pause = _MIN_PAUSE_SECONDS if found else min(2 * self._pause, _MAX_PAUSE_SECONDS)
        self._due = now + self._pause
        return found

    def _search(self) -> int:
        found = self._map_chunks()
        if not found and (mapped := self._find()) is not None and mapped != self._mapped:
            self._mapped = mapped
            start, nbytes = mapped
            chunks = min(math.ceil(nbytes / _CHUNK_BYTES), _MAX_CHUNKS)
            self._chunk_bytes = _CHUNK_BYTES * math.ceil(nbytes / chunks / _CHUNK_BYTES)
            self._unmapped = list(range(start, start + nbytes, self._chunk_bytes))
            found = self._map_chunks()
        return found

    def _map_chunks(self) -> int:
        found = missed = 0
        left = []
        stop = sum(self._mapped or ())
        for at, start in enumerate(self._unmapped):
            if found >= _MAX_BYTES_PER_CALL or missed == _MAX_MISSES_PER_CALL:
                left += self._unmapped[at:]
                break
            nbytes = min(self._chunk_bytes, stop - start)
            # one page first: a chunk that nobody uses costs as little as can be
            if not _is_resident(start, mmap.PAGESIZE):
                left.append(start)
                missed += 1
            elif not _is_resident(start, nbytes):
                left.append(start)
            elif _call_libc("madvise", start, nbytes, ctypes.c_int(_POPULATE_READ)):
                found += nbytes
            else:
                left = []
                break
        self._unmapped = left
        return found


def _find_store() -> tuple[int, int] | None:
    try:
        maps = Path("/proc/self/maps").read_bytes()  # names of files may be of any encoding
    except OSError:
        return None
    spans = [(int(start, 16), int(stop, 16)) for start, stop in _STORE_MAPPING.findall(maps)]
    # others are single objects that found no room in the store
    start, stop = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
    return (start, stop - start) if stop else None


def _is_resident(address: int, nbytes: int) -> bool:
    """If all these pages have memory already; any answer is safe, also for an address that is gone."""
    pages = np.empty(math.ceil(nbytes / mmap.PAGESIZE), np.uint8)
    succeeded = _call_libc("mincore", address, nbytes, pages.ctypes.data_as(ctypes.c_void_p))
    return succeeded and bool((pages & 1).all())


def _call_libc(name: str, address: int, nbytes: int, last: ctypes.c_void_p | ctypes.c_int) -> bool:
    function = getattr(_library(), name, None)
    if function is None:
        return False
    return int(function(ctypes.c_void_p(address), ctypes.c_size_t(nbytes), last)) == 0


@cache
def _library() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None)
    except (OSError, TypeError):  # not on every system
        return None

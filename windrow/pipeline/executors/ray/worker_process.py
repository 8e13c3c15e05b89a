"""What a task changes in its worker process: it yields CPU to trainers, and maps the object store's pages ahead.

Tasks prepare later windows, so their CPU priority is below that of trainers.

Ray copies a task's results into the object store, a shared memory segment that every process maps as a whole.
The first write of a process to a page causes a minor page fault, even if other processes have used the page.
With two workers and windows of some gigabytes, it takes ten epochs until each worker has touched every page.
Populating existing pages with madvise, some megabytes per call, takes a quarter of the time of those faults.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np

from windrow.core.system.memory import c_function
from windrow.core.system.processes import (
    HAS_THREAD_PRIORITY,
    read_memory_map,
    set_thread_niceness,
    thread_niceness,
)

# Ray starts its workers at niceness 15, and 19 is the maximum: a trainer then gets over two thirds of a
# core that both contend for.
_NICE_INCREMENT, _MAX_NICE = 4, 19
_CHUNK_BYTES = 2 * 2**20
_MAX_CHUNKS = 4096
# Takes tens of milliseconds, so that no task is delayed for long.
_MAX_BYTES_PER_CALL = 256 * 2**20
# The store fills from its start: after this many unused chunks the rest is unused too.
_MAX_MISSES_PER_CALL = 64
_MIN_PAUSE_SECONDS = 0.25
_MAX_PAUSE_SECONDS = 8.0
_POPULATE_READ = 22  # Linux 5.14; the mmap module does not name it
_STORE_MAPPING = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) rw-s .*/plasma\w+ \(deleted\)$", re.MULTILINE)


@contextmanager
def yielding_cpu() -> Iterator[None]:
    """Raise this thread's niceness, where it can be restored afterwards.

    Without the privilege to lower niceness nothing is done, since the process may run tasks of other users
    later. Threads that a transform or a library starts inside inherit the raised niceness, and keep it.
    """
    if not HAS_THREAD_PRIORITY or not _can_restore_priority():
        yield
        return
    thread = threading.get_native_id()
    before = thread_niceness(thread)
    try:
        set_thread_niceness(thread, min(before + _NICE_INCREMENT, _MAX_NICE))
        yield
    finally:
        set_thread_niceness(thread, before)


@cache
def _can_restore_priority() -> bool:
    """Whether this process has the privilege to lower a thread's niceness; tries it and restores the value."""
    thread = threading.get_native_id()
    try:
        before = thread_niceness(thread)
        set_thread_niceness(thread, before - 1)
        set_thread_niceness(thread, before)
    except OSError:
        # not permitted, or not implemented in some sandbox
        return False
    return True


class ObjectStorePages:
    """Tracks which pages of the node's object store this process has mapped.

    It maps only resident pages and allocates none. Each mapped page takes 8 bytes of page table, as it would
    once written. On systems without the calls (not Linux, or before 5.14) nothing happens.

    Parameters
    ----------
    find
        Returns the address and size in bytes of the object store's mapping; None if it is not mapped.
    clock
        Monotonic clock, in seconds.
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
        """Map pages that other processes have written since; returns their bytes.

        Call it often. It searches four times a second while it finds pages, and backs off to once in 8 s
        while it does not.
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
            # one page first, so that checking an unused chunk is cheap
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
    maps = read_memory_map()
    spans = [(int(start, 16), int(stop, 16)) for start, stop in _STORE_MAPPING.findall(maps)]
    # the others are fallback allocations: single objects that did not fit into the store
    start, stop = max(spans, key=lambda span: span[1] - span[0], default=(0, 0))
    return (start, stop - start) if stop else None


def _is_resident(address: int, nbytes: int) -> bool:
    """Whether all these pages are resident; any answer is safe, and so is an address that is not mapped any more."""
    pages = np.empty(math.ceil(nbytes / mmap.PAGESIZE), np.uint8)
    succeeded = _call_libc("mincore", address, nbytes, pages.ctypes.data_as(ctypes.c_void_p))
    return succeeded and bool((pages & 1).all())


def _call_libc(name: str, address: int, nbytes: int, last: ctypes.c_void_p | ctypes.c_int) -> bool:
    function = _function(name)
    return function is not None and int(function(address, nbytes, last)) == 0


@cache
def _function(name: str) -> Callable[..., Any] | None:
    last = ctypes.c_void_p if name == "mincore" else ctypes.c_int
    return c_function(name, [ctypes.c_void_p, ctypes.c_size_t, last], ctypes.c_int)

"""The share of the time in which some thread of another process holds the GIL, read out of its memory.

CPython keeps in static memory whether the GIL is held. Where, differs between versions, so this process finds it in
itself: it is what reads 1 while a thread runs Python, and 0 while that thread waits in a system call, which releases
the GIL. Other processes of the same interpreter have it at the same distance from where the interpreter is mapped.
Reading it does not stop a process, unlike py-spy without ``--nonblocking``.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import numpy as np

_STATIC_BYTES = 2**20
_TRIALS = 5
_INTERVAL_SECONDS = 0.001
_SEARCH_SECONDS = 0.2


@lru_cache(maxsize=1)
def find_gil() -> tuple[str, int] | None:
    """The file of the interpreter, and the distance of its flag from where that file is mapped; None if not found."""
    if not hasattr(ctypes.pythonapi, "_PyRuntime"):
        return None
    start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    found: list[int] = []
    # a thread of its own, whose state is not in static memory
    thread = threading.Thread(target=lambda: found.extend(_find_flags(start)))
    thread.start()
    thread.join()
    if len(found) != 1:
        return None
    files: dict[str, int] = {}
    for low, path in _read_mappings(os.getpid()):
        files.setdefault(path, low)
    # static memory that begins as zeros lies behind the file's own
    path = max((path for path, low in files.items() if low <= start), key=lambda path: files[path])
    return path, found[0] - files[path]


def _find_flags(start: int) -> list[int]:
    """Addresses from ``start`` on of what is 1 while this thread holds the GIL, and 0 while it does not."""
    memory = os.open("/proc/self/mem", os.O_RDONLY)
    try:
        count = len(os.pread(memory, _STATIC_BYTES, start)) // 4
        flags = np.ones(count, np.bool_)
        for _ in range(_TRIALS):
            # reading the file releases the GIL, copying memory does not
            released = np.frombuffer(os.pread(memory, 4 * count, start), np.int32)
            held = np.frombuffer(ctypes.string_at(start, 4 * count), np.int32)
            flags &= (released == 0) & (held == 1)
    finally:
        os.close(memory)
    return [start + 4 * int(at) for at in np.flatnonzero(flags)]


def _read_mappings(process: int) -> list[tuple[int, str]]:
    """The first address and the path of each mapped file of a process, ascending."""
    lines = (line.split() for line in Path(f"/proc/{process}/maps").read_text().splitlines())
    return [
        (int(line[0].partition("-")[0], 16), line[5])
        for line in lines
        if len(line) > 5 and line[5][0] == "/"
    ]


class GilSampler:
    """Samples the GIL of a process a thousand times a second, from a thread of this one.

    ``find`` returns the process, or None as long as there is none; it is called again once the process has ended.
    """

    def __init__(self, find: Callable[[], int | None]) -> None:
        self._find = find
        self._samples: list[tuple[float, bool]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="gil sampler")
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopped.set()
        self._thread.join()

    def share(self, began: float, ended: float) -> float | None:
        """The share of the samples between two times of the clock in which the GIL was held; None without samples."""
        held = [is_held for when, is_held in self._samples if began <= when <= ended]
        return sum(held) / len(held) if held else None

    def _run(self) -> None:
        where = find_gil()
        while where is not None and not self._stopped.wait(_SEARCH_SECONDS):
            process = self._find()
            if process is not None:
                # it has ended, or may not be read
                with suppress(OSError, StopIteration):
                    self._sample(process, *where)

    def _sample(self, process: int, path: str, distance: int) -> None:
        base = next(low for low, mapped in _read_mappings(process) if mapped == path)
        memory = os.open(f"/proc/{process}/mem", os.O_RDONLY)
        try:
            # no bytes come of one that has ended
            while not self._stopped.is_set() and (flag := os.pread(memory, 4, base + distance)):
                self._samples.append((time.time(), any(flag)))
                time.sleep(_INTERVAL_SECONDS)
        finally:
            os.close(memory)

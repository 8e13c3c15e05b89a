"""The share of the time in which some thread of another process holds the GIL, read out of its memory.

CPython keeps in static memory whether the GIL is held. Where, differs between versions, so this process finds it in
itself: it is what reads 1 while a thread runs Python, and 0 while that thread waits in a system call, which releases
the GIL. In other processes of the same interpreter, it is as far from where the interpreter is mapped. Nothing stops
them, as py-spy does without ``--nonblocking``.
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

_STATIC_BYTES, _TRIALS = 2**20, 5
_INTERVAL_SECONDS, _SEARCH_SECONDS = 0.001, 0.2


@lru_cache(maxsize=1)
def find_gil() -> tuple[str, int] | None:
    """The file of the interpreter, and how far its flag is from where that is mapped; None if it is not found."""
    if not hasattr(ctypes.pythonapi, "_PyRuntime"):
        return None
    start = ctypes.addressof(ctypes.c_char.in_dll(ctypes.pythonapi, "_PyRuntime"))
    found: list[int] = []
    # a thread of its own, whose state is not in static memory
    thread = threading.Thread(target=lambda: found.extend(_find_flags(start)))
    thread.start()
    thread.join()
    # memory that begins as zeros lies behind that of the file
    low, path = max(each for each in _read_mappings(os.getpid()).items() if each[0] <= start)
    return (path, start + found[0] - low) if len(found) == 1 else None


def _find_flags(start: int) -> list[int]:
    """How far from ``start`` there is what is 1 while this thread holds the GIL, and 0 while it does not."""
    with open("/proc/self/mem", "rb") as memory:
        count = len(os.pread(memory.fileno(), _STATIC_BYTES, start)) // 4
        flags = np.ones(count, np.bool_)
        for _ in range(_TRIALS):
            # reading the file releases the GIL, copying memory does not
            released = np.frombuffer(os.pread(memory.fileno(), 4 * count, start), np.int32)
            held = np.frombuffer(ctypes.string_at(start, 4 * count), np.int32)
            flags &= (released == 0) & (held == 1)
    return [4 * int(at) for at in np.flatnonzero(flags)]


def _read_mappings(process: int) -> dict[int, str]:
    """The path of each file that a process has mapped, by where it begins."""
    lines = (line.split() for line in Path(f"/proc/{process}/maps").read_text().splitlines())
    lows: dict[str, int] = {}
    for line in lines:
        if len(line) > 5 and line[5][0] == "/":
            lows.setdefault(line[5], int(line[0].partition("-")[0], 16))
    return {low: path for path, low in lows.items()}


class GilSampler:
    """Samples the GIL of a process a thousand times a second.

    ``find`` returns the process, None as long as there is none, and is called again once one has ended.
    """

    def __init__(self, find: Callable[[], int | None]) -> None:
        self._find, self._samples = find, list[tuple[float, bool]]()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="gil sampler")
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def share(self, began: float, ended: float) -> float | None:
        """The share of the samples between two times in which the GIL was held; None without any."""
        held = [is_held for when, is_held in self._samples if began <= when <= ended]
        return sum(held) / len(held) if held else None

    def _run(self) -> None:
        where = find_gil()
        while where is not None and not self._stopped.wait(_SEARCH_SECONDS):
            # a process may end meanwhile, or not be readable
            with suppress(OSError, StopIteration):
                if (process := self._find()) is not None:
                    self._sample(process, *where)

    def _sample(self, process: int, path: str, distance: int) -> None:
        base = next(low for low, mapped in _read_mappings(process).items() if mapped == path)
        with open(f"/proc/{process}/mem", "rb") as memory:
            # no bytes come of one that has ended
            while not self._stopped.is_set() and (flag := os.pread(memory.fileno(), 4, base + distance)):
                self._samples.append((time.time(), any(flag)))
                time.sleep(_INTERVAL_SECONDS)

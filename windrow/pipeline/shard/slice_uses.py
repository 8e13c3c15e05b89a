"""Which slices of a window a shard still needs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from windrow.pipeline.executors.base import WindowData
from windrow.shuffle.kernels.place_rows import MapOutputs

__all__ = ["SliceUses"]


class SliceUses:
    """Counts what still needs each slice: runs, or portions of them; reports when the first slices are free."""

    def __init__(self, data: WindowData, report: Callable[[int, bool], None]) -> None:
        self._data = data
        self._report = report
        self._lock = threading.Lock()
        self._uses = [0] * len(data.slices)
        self._free = 0
        self._all_submitted = False
        self._reported = (0, False)

    def expect(self, slices: list[int]) -> None:
        """Note the slice of every run of the window, and of every portion of a run but the last."""
        with self._lock:
            for number in slices:
                self._uses[number] += 1

    def used(self, number: int) -> None:
        """One run of a slice has been placed, or a portion of one."""
        with self._lock:
            self._uses[number] -= 1
        self._advance()

    def finish(self) -> None:
        """Every run of the window has been submitted."""
        self._all_submitted = True
        self._advance()

    def _advance(self) -> None:
        with self._lock:
            while self._free < len(self._uses) and self._uses[self._free] == 0:
                self._data.slices[self._free] = MapOutputs()
                self._free += 1
            ended = self._all_submitted and self._free == len(self._uses)
            news = (self._free, ended)
            if news == self._reported:
                return
            self._reported = news
        self._report(*news)

"""Counts which slices of a window a shard still needs, and releases the others."""

from __future__ import annotations

import threading
from collections.abc import Callable

from windrow.pipeline.executors.base import WindowData
from windrow.shuffle.kernels.place_rows import MapOutputs

__all__ = ["SliceUses"]


class SliceUses:
    """Counts the runs and portions of runs that still need each slice; reports how many first slices are free."""

    def __init__(self, data: WindowData, report: Callable[[int, bool], None]) -> None:
        self._data = data
        self._report = report
        self._lock = threading.Lock()
        self._uses = [0] * len(data.slices)
        self._free = 0
        self._all_submitted = False
        self._reported = (0, False)

    def expect(self, slices: list[int]) -> None:
        """Add one use for each slice listed: one per run, and one per portion of a run except the last."""
        with self._lock:
            for number in slices:
                self._uses[number] += 1

    def used(self, number: int) -> None:
        """Remove one use of a slice: a run or a portion of one has been placed."""
        with self._lock:
            self._uses[number] -= 1
        self._advance()

    def finish(self) -> None:
        """Note that every run of the window has been submitted."""
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

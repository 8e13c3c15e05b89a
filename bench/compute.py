"""Simulated training work on one core, and its slowdown while the engine is busy."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Computing", "slowed_share"]

_SCHEDSTAT = Path("/proc/thread-self/schedstat")

_SIDE = 256
_SETTLE_SECONDS = 1.5
_ALONE_SECONDS = 1.0
_LAUNCHES = 64


@dataclass
class Computing:
    """Products of small matrices on one thread, each launched from Python like the operations of a model.

    A launch takes some tenths of a millisecond, during which it releases the GIL.
    """

    _matrices: list[Any] = field(default_factory=list)

    def run(self, launches: int) -> float:
        """Compute; returns the elapsed seconds."""
        import torch

        if not self._matrices:
            self._matrices = [torch.full((_SIDE, _SIDE), 0.5) for _ in range(3)]
        one, other, product = self._matrices
        began = time.monotonic()
        for _ in range(launches):
            torch.mm(one, other, out=product)
        return time.monotonic() - began

    def core_wait(self) -> float:
        """Total seconds that this thread was runnable without a core; 0 if the system does not report it."""
        try:
            return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
        except (OSError, IndexError, ValueError):
            return 0.0

    def time_launch_alone(self, settle_seconds: float = _SETTLE_SECONDS) -> float:
        """Seconds of one launch, measured after the engine has become idle.

        If the engine is still busy after ``settle_seconds``, the reported slowdown is too small.
        """
        until = time.monotonic() + settle_seconds
        while time.monotonic() < until:
            self.run(_LAUNCHES)
        times = [self.run(_LAUNCHES)]
        while sum(times) < _ALONE_SECONDS:
            times.append(self.run(_LAUNCHES))
        return statistics.fmean(times) / _LAUNCHES


def slowed_share(seconds: float, launches: int, alone: tuple[float, float]) -> float:
    """Relative slowdown of launches, compared with launches measured alone before and after.

    Examples
    --------
    >>> round(slowed_share(1.1, 1000, (0.001, 0.001)), 6)
    0.1
    """
    return seconds / (launches * statistics.fmean(alone)) - 1.0

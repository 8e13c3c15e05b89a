"""How much of this machine others use, while it is measured."""

from __future__ import annotations

import os
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType

__all__ = ["TICK_SECONDS", "CoresLeft", "others_share", "read_used", "wait_until_quiet"]

_LOOK_SECONDS = 1.0
_SAMPLE_SECONDS = 0.2
_QUIET_SHARE = 0.08
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def others_share() -> float:
    """The share of this machine's cores that is in use; call it while this process does nothing."""
    busy, total = _read_ticks()
    time.sleep(_LOOK_SECONDS)
    busy_now, total_now = _read_ticks()
    return (busy_now - busy) / max(1, total_now - total)


def wait_until_quiet(patience_seconds: float) -> float:
    """Wait until nearly nothing else runs, for a while; returns how much did in the last second."""
    until = time.monotonic() + patience_seconds
    while (share := others_share()) > _QUIET_SHARE and time.monotonic() < until:
        pass
    return share


class CoresLeft:
    """Samples what others use, all but the processes that are started inside the context.

    Processes are known by a mark in their environment, which Ray's daemons inherit too.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._mark = f"BENCH_SCALE_{uuid.uuid4().hex}"
        self._own: dict[str, bool] = {}
        self._used: dict[str, int] = {}
        self._samples: list[tuple[float, int]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> CoresLeft:
        os.environ[self._mark] = "1"
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del os.environ[self._mark]
        self._stopped.set()
        self._thread.join()

    def during(self, start: float, end: float) -> float:
        """The cores that others left, on average, between two times of the monotonic clock."""
        before = max((sample for sample in self._samples if sample[0] <= start), default=self._samples[0])
        after = min((sample for sample in self._samples if sample[0] >= end), default=self._samples[-1])
        seconds = max(_SAMPLE_SECONDS, after[0] - before[0])
        return max(0.1, self._cores - (after[1] - before[1]) * TICK_SECONDS / seconds)

    def _watch(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            for process in Path("/proc").iterdir():
                if process.name.isdigit() and self._is_own(process):
                    self._used[process.name] = read_used(process, self._used.get(process.name, 0))
            busy, _ = _read_ticks()
            self._samples.append((time.monotonic(), busy - sum(self._used.values())))

    def _is_own(self, process: Path) -> bool:
        # a process that is being started has its parent's environment, or none yet
        if not self._own.get(process.name):
            try:
                self._own[process.name] = self._mark.encode() in (process / "environ").read_bytes()
            except OSError:
                return False
        return self._own[process.name]


def read_used(process: Path, before: int = 0) -> int:
    """Ticks that a process of ``/proc`` has spent on cores; ``before`` where it is gone."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return before
    return int(fields[11]) + int(fields[12])


def _read_ticks() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)

"""How busy other processes keep the machine."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

from bench.system.processes import ProcessTree, read_cpu_seconds

_INTERVAL_SECONDS = 1.0
_SAMPLE_SECONDS = 0.2
_QUIET_SHARE = 0.08
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def busy_share() -> float:
    """Share of the machine's cores in use; call it while this process is idle."""
    busy, total = _read_core_seconds()
    time.sleep(_INTERVAL_SECONDS)
    busy_now, total_now = _read_core_seconds()
    return (busy_now - busy) / max(_TICK_SECONDS, total_now - total)


def wait_until_idle(timeout_seconds: float) -> float:
    """Wait, at most ``timeout_seconds``, until the machine is idle; returns the busy share of the last second."""
    until = time.monotonic() + timeout_seconds
    while (share := busy_share()) > _QUIET_SHARE and time.monotonic() < until:
        pass
    return share


class FreeCores:
    """Samples the cores that are left free by all processes but this one and those that it has started."""

    def __init__(self, cores: int) -> None:
        self._cores, self._tree = cores, ProcessTree(os.getpid())
        self._used: dict[int, float] = {}
        self._samples: list[tuple[float, float]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> FreeCores:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def during(self, start: float, end: float) -> float:
        """Mean number of free cores between two times of the monotonic clock."""
        before = max((sample for sample in self._samples if sample[0] <= start), default=self._samples[0])
        after = min((sample for sample in self._samples if sample[0] >= end), default=self._samples[-1])
        seconds = max(_SAMPLE_SECONDS, after[0] - before[0])
        return max(0.1, self._cores - (after[1] - before[1]) / seconds)

    def _watch(self) -> None:
        while not self._stopped.wait(_SAMPLE_SECONDS):
            self._tree.refresh()
            for process in self._tree.living():
                # nothing more is known of one that has ended
                self._used[process] = max(read_cpu_seconds(process), self._used.get(process, 0.0))
            busy, _ = _read_core_seconds()
            self._samples.append((time.monotonic(), busy - sum(self._used.values())))


def _read_core_seconds() -> tuple[float, float]:
    """Seconds in which cores were busy since the start of the machine, and those of all cores."""
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return (sum(fields) - idle) * _TICK_SECONDS, sum(fields) * _TICK_SECONDS

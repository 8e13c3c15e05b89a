"""The machine that results were measured on, and how busy other processes keep it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import threading
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

_PACKAGES = ("windrow", "pyarrow", "numpy", "torch", "ray", "pandas")
_INTERVAL_SECONDS = 1.0
_SAMPLE_SECONDS = 0.2
_QUIET_SHARE = 0.08
TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")


def count_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def read_memory_bytes() -> int:
    """Physical memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def describe_machine() -> dict[str, Any]:
    """Cores, memory, load and versions."""
    return {
        "cores": count_cores(),
        "processor": _read_processor(),
        "memory_bytes": read_memory_bytes(),
        "kernel": platform.release(),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: _read_version(name) for name in _PACKAGES},
    }


def describe_load(machine: dict[str, Any]) -> str:
    """What ``describe_machine`` found, on one line."""
    return f"{machine['cores']} cores, {machine['processor']}, load {machine['load_1min']:.1f} at the start"


def _read_processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _read_version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def busy_share() -> float:
    """Share of the machine's cores in use; call it while this process is idle."""
    busy, total = _read_ticks()
    time.sleep(_INTERVAL_SECONDS)
    busy_now, total_now = _read_ticks()
    return (busy_now - busy) / max(1, total_now - total)


def wait_until_idle(timeout_seconds: float) -> float:
    """Wait, at most ``timeout_seconds``, until the machine is idle; returns the busy share of the last second."""
    until = time.monotonic() + timeout_seconds
    while (share := busy_share()) > _QUIET_SHARE and time.monotonic() < until:
        pass
    return share


class FreeCores:
    """Samples the cores that are left free by all processes except those started inside the context.

    These are recognised by a marker in their environment, which Ray's daemons inherit too.
    """

    def __init__(self, cores: int) -> None:
        self._cores = cores
        self._marker = f"BENCH_SCALE_{uuid.uuid4().hex}"
        self._own: dict[str, bool] = {}
        self._used: dict[str, int] = {}
        self._samples: list[tuple[float, int]] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> FreeCores:
        os.environ[self._marker] = "1"
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del os.environ[self._marker]
        self._stopped.set()
        self._thread.join()

    def during(self, start: float, end: float) -> float:
        """Mean number of free cores between two times of the monotonic clock."""
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
        # a starting process has its parent's environment, or none yet, so a negative result may change
        if not self._own.get(process.name):
            try:
                self._own[process.name] = self._marker.encode() in (process / "environ").read_bytes()
            except OSError:
                return False
        return self._own[process.name]


def read_used(process: Path, before: int = 0) -> int:
    """CPU ticks that a process in ``/proc`` has used; ``before`` if it has ended."""
    try:
        fields = (process / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return before
    return int(fields[11]) + int(fields[12])


def _read_ticks() -> tuple[int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return sum(fields) - idle, sum(fields)

"""The machine that results were measured on, and how busy other processes keep it."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

_PACKAGES = ("windrow", "pyarrow", "numpy", "torch", "ray", "pandas")


def count_cores() -> int:
    return len(os.sched_getaffinity(0))


def read_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def describe_machine() -> dict[str, Any]:
    return {
        "cores": count_cores(),
        "processor": _read_processor(),
        "memory_bytes": read_memory_bytes(),
        "kernel": platform.release(),
        "load_1min": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: _read_version(name) for name in _PACKAGES},
    }


def print_machine() -> dict[str, Any]:
    """Print the processor and its load, and return all that results say of the machine."""
    machine = describe_machine()
    load = f"load {machine['load_1min']:.1f} at the start"
    print(f"{machine['cores']} cores, {machine['processor']}, {load}", flush=True)
    return machine


def _read_processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _read_version(package: str) -> str | None:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return None

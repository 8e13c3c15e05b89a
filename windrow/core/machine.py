"""What this process may use of the machine."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

__all__ = ["available_cores", "free_memory_bytes", "wake_behind_others"]

_CGROUP = Path("/sys/fs/cgroup")


def available_cores() -> int:
    """Cores that this process may use, as affinity and control group allow; at least 1."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    quota = _cgroup_cores()
    return max(1, cores if quota is None else min(cores, quota))


def _cgroup_cores() -> int | None:
    words = _read(_CGROUP / "cpu.max").split()
    if len(words) == 2 and words[0].isdigit() and words[1].isdigit():
        return max(1, round(int(words[0]) / int(words[1])))
    return None


def free_memory_bytes() -> int:
    """Memory that can be had without pushing out what is in use, as the control group allows."""
    free = _meminfo_available()
    limit = _read(_CGROUP / "memory.max").strip()
    used = _read(_CGROUP / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        # pages of files that nobody has used for a while count as used, and are given back when needed
        taken = max(0, int(used) - _idle_file_bytes())
        free = min(free, max(0, int(limit) - taken))
    return free


def wake_behind_others() -> None:
    """Have this thread, for good, take no core from a running one as it wakes up; its share stays as it was.

    Who wakes it then goes on at once, where Linux would often have it stand aside for milliseconds, with
    the interpreter's lock in its hands. Where that is not to be had, nothing changes.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _idle_file_bytes() -> int:
    for line in _read(_CGROUP / "memory.stat").splitlines():
        name, _, count = line.partition(" ")
        if name == "inactive_file" and count.strip().isdigit():
            return int(count)
    return 0


def _meminfo_available() -> int:
    for line in _read(Path("/proc/meminfo")).splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""

"""Cores and memory that this process can use, and the scheduling policy of its threads."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from windrow.core.cgroups import cpuset_cores, find_groups, free_bytes, quota_cores, read_file

__all__ = ["available_cores", "free_memory_bytes", "use_batch_scheduling"]

_ROOT = Path("/")


def available_cores(processes: int = 1, root: Path = _ROOT) -> int:
    """Cores that CPU affinity and control groups leave to each of ``processes`` on this machine; at least 1.

    If the launcher has pinned this process to a subset of the cores, that subset is not divided; a CPU quota
    always is. ``root`` is that of ``/proc`` and the control groups; tests pass another one.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        cores = os.cpu_count() or 1
    all_cores = next(_known(cpuset_cores(group) for group in find_groups("cpuset", root)), None)
    bound = cores < (all_cores or os.cpu_count() or 1)
    shared = cores if bound else cores // processes
    quotas = _known(quota_cores(group) for group in find_groups("cpu", root))
    return max(1, min([shared, *(quota // processes for quota in quotas)]))


def free_memory_bytes(root: Path = _ROOT) -> int:
    """Memory available without swapping, limited by control groups at every level."""
    groups = _known(free_bytes(group) for group in find_groups("memory", root))
    return min([_available_bytes(root), *groups])


def _known(values: Iterable[int | None]) -> Iterator[int]:
    return (value for value in values if value is not None)


def use_batch_scheduling() -> None:
    """Switch this thread permanently to SCHED_BATCH (Linux), so that it does not preempt others as it wakes up.

    Otherwise Linux often suspends the thread that wakes this one for milliseconds, while that thread holds
    the GIL. The CPU share stays the same. If the policy cannot be set, nothing changes.
    """
    if sys.platform == "linux":
        with suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def _available_bytes(root: Path) -> int:
    for line in read_file(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))

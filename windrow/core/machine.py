"""What this process may use of the machine."""

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
    """Cores that this process may use, as affinity and control groups allow; at least 1.

    Parameters
    ----------
    processes
        How many processes of this machine share them. One that its launcher has bound to cores of its own
        has those, undivided.
    root
        Where ``/proc`` and control groups are found; another one in tests.
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
    """Memory that can be had without pushing out what is in use, as control groups at every level allow."""
    groups = _known(free_bytes(group) for group in find_groups("memory", root))
    return min([_available_bytes(root), *groups])


def _known(values: Iterable[int | None]) -> Iterator[int]:
    return (value for value in values if value is not None)


def use_batch_scheduling() -> None:
    """Have this thread, for good, take no core from a running one as it wakes up; its share stays as it was.

    Who wakes it then goes on at once, where Linux would often have it stand aside for milliseconds, with
    the interpreter's lock in its hands. Where that is not to be had, nothing changes.
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

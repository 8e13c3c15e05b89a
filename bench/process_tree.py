"""A process and all its descendants, even those that outlive it.

Ray's processes outlive a killed driver and become children of init. So the tree is
listed repeatedly while its root is alive, and every process seen is remembered.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

__all__ = ["ProcessTree", "list_tree", "read_cpu_seconds"]

_POLL_SECONDS = 0.1
_TICK = 1 / os.sysconf("SC_CLK_TCK")


def list_tree(root: int) -> list[int]:
    """The process ids of a process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _read_stat(int(entry.name))
            if stat is not None:
                children.setdefault(int(stat[1]), []).append(int(entry.name))
    found = [root]
    for process in found:
        found.extend(children.get(process, ()))
    return found


def read_cpu_seconds(process: int) -> float:
    """CPU seconds that a process has used; 0 if it has ended."""
    stat = _read_stat(process)
    return 0.0 if stat is None else (int(stat[11]) + int(stat[12])) * _TICK


class ProcessTree:
    """All processes that were ever seen under a root."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._seen: dict[int, bytes] = {}

    def refresh(self) -> list[int]:
        """List the tree as it is now and remember it."""
        listed = list_tree(self._root)
        self._remember(listed)
        return listed

    def _remember(self, processes: list[int]) -> None:
        starts = {process: _read_start(process) for process in processes}
        self._seen.update({process: start for process, start in starts.items() if start is not None})

    def living(self) -> list[int]:
        """Remembered processes that still run, with their descendants; a reused id counts as another process."""
        for process, start in list(self._seen.items()):
            if _read_start(process) == start:
                self._remember(list_tree(process))
        return [process for process, start in self._seen.items() if _read_start(process) == start]

    def end(self, grace_seconds: float) -> None:
        """Wait for running processes to end on their own, then kill them."""
        kill_at = time.monotonic() + grace_seconds
        while (living := self.living()) and time.monotonic() < kill_at + grace_seconds:
            if time.monotonic() > kill_at:
                _kill(living)
            time.sleep(_POLL_SECONDS)


def _kill(processes: list[int]) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _read_start(process: int) -> bytes | None:
    """Start time of a process in clock ticks; None if it has ended or is a zombie."""
    stat = _read_stat(process)
    return None if stat is None or stat[0] == b"Z" else stat[19]


def _read_stat(process: int) -> list[bytes] | None:
    """The fields of ``/proc/<id>/stat`` that come after the name: state, parent, ..."""
    try:
        return Path(f"/proc/{process}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None

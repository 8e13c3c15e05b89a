"""Memory of a process tree: anonymous and shared pages, each counted once, without file pages.

This is the sum of ``Pss_Anon`` and ``Pss_Shmem`` over the tree, computed from counters that
cost microseconds instead of from ``smaps_rollup``, which visits every page and takes
a quarter of a second if several processes map a full object store. Anonymous pages
are ``RssAnon`` (no process here shares them by forking); shared pages are the blocks
of the shared-memory files that the tree has open.
"""

from __future__ import annotations

import os
import threading
import time

from bench.process_tree import ProcessTree

__all__ = ["MemorySampler", "TreeMemory"]

_MOST_OF_A_CORE = 0.02
_REFRESH_SECONDS = 0.5
_SHARED = ("/dev/shm/", "/memfd:")


class TreeMemory:
    """Measures one tree repeatedly; new processes are included within half a second."""

    def __init__(self, tree: ProcessTree) -> None:
        self._tree = tree
        self._listed = -_REFRESH_SECONDS
        self._processes: list[int] = []
        self._shared: list[str] = []

    def refresh(self) -> None:
        """List processes and shared files again."""
        self._processes = self._tree.refresh()
        self._shared = _find_shared_files(self._processes)
        self._listed = time.monotonic()

    def measure(self) -> int:
        """Current memory of the tree in bytes."""
        if time.monotonic() - self._listed > _REFRESH_SECONDS:
            self.refresh()
        counts = [_read_counts(process) for process in self._processes]
        files = sum(_read_blocks(path) for path in self._shared)
        mapped = max((shared for _, shared in counts), default=0)
        return sum(anonymous for anonymous, _ in counts) + max(files, mapped)


def _find_shared_files(processes: list[int]) -> list[str]:
    """One path to each shared-memory file that a tree has open."""
    found: dict[int, str] = {}
    for process in processes:
        folder = f"/proc/{process}/fd"
        try:
            paths = [f"{folder}/{name}" for name in os.listdir(folder)]
            shared = [path for path in paths if _read_link(path).startswith(_SHARED)]
            found.update({os.stat(path).st_ino: path for path in shared})
        except OSError:
            continue  # the process ended meanwhile
    return list(found.values())


def _read_link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _read_blocks(path: str) -> int:
    try:
        return os.stat(path).st_blocks * 512
    except OSError:
        return 0


def _read_counts(process: int) -> tuple[int, int]:
    """Bytes of anonymous and of shared pages that one process maps."""
    try:
        with open(f"/proc/{process}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return 0, 0
    kib = {
        line.split()[0]: int(line.split()[1])
        for line in lines
        if line.startswith((b"RssAnon:", b"RssShmem:"))
    }
    return kib.get(b"RssAnon:", 0) * 1024, kib.get(b"RssShmem:", 0) * 1024


class MemorySampler:
    """Samples a tree from a thread, using at most 2 % of a core.

    Attributes
    ----------
    samples
        (monotonic seconds, bytes) pairs so far.
    """

    def __init__(self, tree: ProcessTree, interval_seconds: float = 0.05) -> None:
        self.samples: list[tuple[float, int]] = []
        self._memory = TreeMemory(tree)
        self._interval = interval_seconds
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="memory sampler")

    def start(self) -> None:
        """Begin sampling."""
        self._thread.start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def measure(self) -> int:
        """Current memory of the tree in bytes, including processes started since the last sample."""
        self._memory.refresh()
        return self._memory.measure()

    def peak(self, start: float, end: float) -> int | None:
        """Peak of the samples within a time interval; None if there are none."""
        return max((size for when, size in self.samples if start <= when <= end), default=None)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            began = time.thread_time()
            when = time.monotonic()
            self.samples.append((when, self._memory.measure()))
            pause = max(self._interval, (time.thread_time() - began) / _MOST_OF_A_CORE)

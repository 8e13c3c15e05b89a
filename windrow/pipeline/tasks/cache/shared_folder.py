"""A cache folder shared by the processes of one machine: its lease, locks, clean-up and size limit.

Each process that uses the folder holds a shared lock on the lease file. The system releases the lock when
the process ends, even by a crash. The next job removes the folders whose lease is not locked.

Lock order
----------
A thread acquires these in this order, and releases them in reverse:

1. ``DiskCache._lock`` (threads of this process): while the folder is opened.
2. The lease (all processes). Exclusive while a folder is swept or tidied, which acquires no other lock;
   then shared until the process no longer uses the folder. Never acquired while 3 or 4 is held.
3. A block's byte of the file ``reading`` (all processes): while a thread reads the block from its
   source. A thread holds at most one.
4. The file ``room`` (all processes): while space for a block is reserved. No lock is acquired while it is held.

Every wait for 2, 3 and 4 polls and has a timeout. Each lock belongs to an open file that is closed on any
exception, so no lock leaks. A thread that holds 3 or 4 never waits for the same lock again.
"""

from __future__ import annotations

import errno
import os
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from windrow.core.system.files import NONBLOCK, REMOVES_OPEN_FILES
from windrow.pipeline.tasks.cache import system_calls

UNFINISHED = ".tmp"
_LEASE_FILE = "lease"
SPACE_FILE = "room"
_READING_FILE = "reading"
# content of the lease once the job has removed the folder itself
_ENDED = b"ended"
_LOCK_SECONDS = 10.0
# After waiting this long for another process to read a block, a process reads the block itself.
_READING_SECONDS = 60.0
_LONGEST_SLEEP_SECONDS = 0.02


class SharedFolder:
    """A folder in use by this process, which holds its lease; created if missing.

    ``tidy`` is called with the path if no other process uses the folder. Raises an `OSError` if the folder
    cannot be used; a `TimeoutError` if another process holds its lock too long.
    """

    def __init__(self, path: Path, tidy: Callable[[Path], None] = lambda path: None) -> None:
        self.path = path
        self._lease = _take_lease(path, tidy)
        self._finalizer = weakref.finalize(self, close, self._lease)

    @property
    def is_there(self) -> bool:
        """Whether the folder still exists, removed neither by the job nor by others."""
        return _is_there(self._lease, self.path)

    @property
    def has_ended(self) -> bool:
        """Whether the job itself removed the folder."""
        try:
            return system_calls.pread(self._lease, len(_ENDED), 0) == _ENDED
        except OSError:
            return False

    @contextmanager
    def lock_space(self) -> Iterator[int]:
        """Hold the lock for reserving space; yields the descriptor of its file, which can hold the used bytes."""
        path = self.path / SPACE_FILE
        with open_file(path) as descriptor:
            _wait(lambda: system_calls.try_lock(descriptor, exclusive=True), _LOCK_SECONDS, path)
            yield descriptor

    @contextmanager
    def lock_block(self, number: int) -> Iterator[None]:
        """Hold the lock of a block across all processes; after waiting a minute, go on without it."""
        path = self.path / _READING_FILE
        with open_file(path) as descriptor:
            with suppress(TimeoutError):
                _wait(lambda: system_calls.try_lock_byte(descriptor, number), _READING_SECONDS, path)
            yield


def fits(size_bytes: int, used_bytes: int, limit_bytes: int | None, path: Path) -> bool:
    """Whether a file fits below the limit; the default limit is half of the space free without cached files.

    Raises ENOSPC if the file system has less space left than the file needs.
    """
    free = system_calls.disk_usage(path).free
    if size_bytes > free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return used_bytes + size_bytes <= ((free + used_bytes) // 2 if limit_bytes is None else limit_bytes)


def sweep_folders(parent: Path, prefix: str) -> None:
    """Remove the folders with this prefix whose processes have all ended."""
    # errors mean another user's folder, or one that another sweep is removing
    with suppress(OSError):
        for name in system_calls.listdir(parent):
            if name.startswith(prefix):
                removed = False
                with suppress(OSError), open_file(parent / name / _LEASE_FILE) as lease:
                    removed = system_calls.try_lock(lease, exclusive=True)
                    if removed:
                        system_calls.remove_tree(parent / name, ignore_errors=True)
                if removed and not REMOVES_OPEN_FILES:
                    # all but the lease is gone
                    system_calls.remove_tree(parent / name, ignore_errors=True)


def end_folder(path: Path) -> None:
    """Remove a job's folder, and mark its lease so that processes still using it do not report an error."""
    with suppress(OSError), open_file(path / _LEASE_FILE, os.O_RDWR) as lease:
        system_calls.pwrite(lease, _ENDED, 0)
    with suppress(OSError):
        system_calls.remove_tree(path, ignore_errors=True)


def _take_lease(path: Path, tidy: Callable[[Path], None]) -> int:
    """Lock the lease of a folder (shared), while a sweep may be removing the folder concurrently."""
    taken: list[int] = []

    def attempt() -> bool:
        with ExitStack() as stack:
            try:
                system_calls.makedirs(path, mode=0o700, exist_ok=True)
                lease = system_calls.open_file(path / _LEASE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
            except FileNotFoundError:
                return False  # removed concurrently
            stack.callback(close, lease)
            if system_calls.try_lock(lease, exclusive=True) and _is_there(lease, path):
                tidy(path)
            # the exclusive lock is released before the shared one is acquired, so a sweep can intervene
            if not system_calls.try_lock(lease, exclusive=False) or not _is_there(lease, path):
                return False
            stack.pop_all()
            taken.append(lease)
            return True

    _wait(attempt, _LOCK_SECONDS, path / _LEASE_FILE)
    return taken[0]


def _is_there(lease: int, path: Path) -> bool:
    """Whether an open lease is still the lease file of the folder."""
    try:
        return os.path.samestat(system_calls.fstat(lease), system_calls.stat(path / _LEASE_FILE))
    except FileNotFoundError:
        return False


def _wait(attempt: Callable[[], bool], seconds: float, path: Path) -> None:
    """Call ``attempt`` until it succeeds; raises a `TimeoutError` if it has not after this many seconds."""
    until, sleep = time.monotonic() + seconds, 0.001
    while not attempt():
        if time.monotonic() >= until:
            raise TimeoutError(errno.ETIMEDOUT, f"locked by others for {seconds:.0f} s", str(path))
        time.sleep(sleep)
        sleep = min(2 * sleep, _LONGEST_SLEEP_SECONDS)


@contextmanager
def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    """Open a file, and close it on exit. O_NONBLOCK avoids waiting if the path is a pipe."""
    descriptor = system_calls.open_file(path, flags | NONBLOCK, 0o600)
    try:
        yield descriptor
    finally:
        close(descriptor)


def close(descriptor: int) -> None:
    """Close a file; the system releases it and its locks even if it reports an error."""
    with suppress(OSError):
        system_calls.close(descriptor)

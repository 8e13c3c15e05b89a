"""A folder that the processes of one machine share, and its locks.

Each process that uses the folder holds a shared lock on its lease. The system releases the lock when
the process ends, however it ends, and the next run removes folders whose lease nobody holds.

Lock order
----------
A thread takes these in this order, and releases the later before the earlier:

1. ``DiskCache._lock`` (threads of this process): while the folder is opened.
2. The lease (all processes). Exclusive while a folder is swept or tidied, which takes no other lock;
   shared from then on until the process no longer uses the folder. It is never taken while 3 or 4 is held.
3. A block's byte of the file ``reading`` (all processes): while one thread reads the block from its
   source. A thread holds one at a time.
4. The file ``room`` (all processes): while room for a block is reserved. No lock is taken while it is held.

Every wait for 2, 3 and 4 polls and has a bound. Each lock belongs to an open file that is closed on any
exception, so that no process can wait for a lock that it lost track of. 3 and 4 are never waited for
by a thread that holds them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from windrow.pipeline.tasks.cache import system_calls

__all__ = [
    "SPACE_FILE",
    "UNFINISHED",
    "SharedFolder",
    "close",
    "end_folder",
    "fits",
    "open_file",
    "sweep_folders",
]

UNFINISHED = ".tmp"
_LEASE_FILE = "lease"
SPACE_FILE = "room"
_READING_FILE = "reading"
# what the lease holds once the run has removed the folder itself
_ENDED = b"ended"
# Locks of a byte that belong to an open file, not to the process. Without them, as on macOS, two processes
# that need a block at the same moment read it twice.
_SET_LOCK: int | None = getattr(fcntl, "F_OFD_SETLK", None)
# the system's `struct flock`: kind, whence, start, length, process
_FLOCK = "hhqqi"
_LOCK_SECONDS = 10.0
# After a store has not answered for so long, another process asks it too.
_READING_SECONDS = 60.0
_LONGEST_SLEEP_SECONDS = 0.02


class SharedFolder:
    """A folder in use by this process.

    Parameters
    ----------
    path
        Where it is; made if it is not there.
    tidy
        Called with the path while no other process uses the folder.

    Raises
    ------
    OSError
        If the folder cannot be used; a `TimeoutError` if another process keeps it locked.
    """

    def __init__(self, path: Path, tidy: Callable[[Path], None] = lambda path: None) -> None:
        self.path = path
        self._lease = _take_lease(path, tidy)
        self._finalizer = weakref.finalize(self, close, self._lease)

    @property
    def is_there(self) -> bool:
        """Whether the folder has not been removed, by the run or by others."""
        return _is_there(self._lease, self.path)

    @property
    def has_ended(self) -> bool:
        """Whether it was the run that removed the folder."""
        try:
            return system_calls.pread(self._lease, len(_ENDED), 0) == _ENDED
        except OSError:
            return False

    @contextmanager
    def lock_space(self) -> Iterator[int]:
        """Be the only one that reserves room; yields the descriptor of a file for notes about it."""
        with open_file(self.path / SPACE_FILE) as descriptor:
            _wait(lambda: _try_flock(descriptor, fcntl.LOCK_EX), _LOCK_SECONDS, self.path / SPACE_FILE)
            yield descriptor

    @contextmanager
    def lock_block(self, number: int) -> Iterator[None]:
        """Be the only thread of all processes that has this number; after a minute nevertheless."""
        with open_file(self.path / _READING_FILE) as descriptor:
            with suppress(TimeoutError):
                _wait(lambda: _try_byte(descriptor, number), _READING_SECONDS, self.path / _READING_FILE)
            yield


def fits(size_bytes: int, used_bytes: int, limit_bytes: int | None, path: Path) -> bool:
    """Whether a file fits below the limit; without one, files may take half of what is free without them.

    Raises
    ------
    OSError
        ENOSPC where the file system has less than that left.
    """
    status = system_calls.statvfs(path)
    free = status.f_bavail * status.f_frsize
    if size_bytes > free:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    return used_bytes + size_bytes <= ((free + used_bytes) // 2 if limit_bytes is None else limit_bytes)


def sweep_folders(parent: Path, prefix: str) -> None:
    """Remove the folders of that name whose processes are all gone."""
    # others' folders, and those that another sweep is removing, are not ours to touch
    with suppress(OSError):
        for name in system_calls.listdir(parent):
            if name.startswith(prefix):
                with suppress(OSError), open_file(parent / name / _LEASE_FILE) as lease:
                    if _try_flock(lease, fcntl.LOCK_EX):
                        system_calls.remove_tree(parent / name, ignore_errors=True)


def end_folder(path: Path) -> None:
    """Remove a run's folder, and let those that still use it know that this was no accident."""
    with suppress(OSError), open_file(path / _LEASE_FILE, os.O_RDWR) as lease:
        system_calls.pwrite(lease, _ENDED, 0)
    with suppress(OSError):
        system_calls.remove_tree(path, ignore_errors=True)


def _take_lease(path: Path, tidy: Callable[[Path], None]) -> int:
    """Share the lease of a folder, which a sweep may be removing at the same moment."""
    taken: list[int] = []

    def attempt() -> bool:
        with ExitStack() as stack:
            try:
                system_calls.makedirs(path, mode=0o700, exist_ok=True)
                lease = system_calls.open_file(path / _LEASE_FILE, os.O_RDWR | os.O_CREAT, 0o600)
            except FileNotFoundError:
                return False  # removed meanwhile
            stack.callback(close, lease)
            if _try_flock(lease, fcntl.LOCK_EX) and _is_there(lease, path):
                tidy(path)
            # this gives up an exclusive lock before it takes the shared one: others may come between
            if not _try_flock(lease, fcntl.LOCK_SH) or not _is_there(lease, path):
                return False
            stack.pop_all()
            taken.append(lease)
            return True

    _wait(attempt, _LOCK_SECONDS, path / _LEASE_FILE)
    return taken[0]


def _is_there(lease: int, path: Path) -> bool:
    """Whether a lease is still that of the folder."""
    try:
        return os.path.samestat(system_calls.fstat(lease), system_calls.stat(path / _LEASE_FILE))
    except FileNotFoundError:
        return False


def _wait(attempt: Callable[[], bool], seconds: float, path: Path) -> None:
    """Attempt something until it succeeds.

    Raises
    ------
    TimeoutError
        If it does not for that long.
    """
    until, sleep = time.monotonic() + seconds, 0.001
    while not attempt():
        if time.monotonic() >= until:
            raise TimeoutError(errno.ETIMEDOUT, f"locked by others for {seconds:.0f} s", str(path))
        time.sleep(sleep)
        sleep = min(2 * sleep, _LONGEST_SLEEP_SECONDS)


def _try_flock(descriptor: int, kind: int) -> bool:
    try:
        system_calls.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _try_byte(descriptor: int, number: int) -> bool:
    """Lock one byte of an open file; the system releases it when the file is closed, however that is."""
    if _SET_LOCK is None:
        return True
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
    try:
        system_calls.set_lock(descriptor, _SET_LOCK, lock)
    except BlockingIOError:
        return False
    return True


@contextmanager
def open_file(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> Iterator[int]:
    """Open a file, and close it on the way out; a pipe that somebody has put there is not waited for."""
    descriptor = system_calls.open_file(path, flags | os.O_NONBLOCK, 0o600)
    try:
        yield descriptor
    finally:
        close(descriptor)


def close(descriptor: int) -> None:
    """Close a file; the system has released it and its locks even where it reports an error."""
    with suppress(OSError):
        system_calls.close(descriptor)

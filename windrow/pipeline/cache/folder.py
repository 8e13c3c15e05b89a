"""A folder that processes of one machine share, and that goes when the last of them has.

Each process that uses it holds a lock on its lease, which the system lets go when the
process ends, however it ends. What nobody holds is swept by the next run.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["SharedFolder", "sweep_folders"]

_LEASE = "lease"
_TAKEN = "taken"
_READING = "reading"
# the system's `struct flock`: kind, whence, start, length, process
_FLOCK = "hhqqi"
# a store that has not answered for so long is asked once more by somebody else
_PATIENCE_SECONDS, _LONGEST_WAIT_SECONDS = 60.0, 0.02
UNFINISHED = ".tmp"


class SharedFolder:
    """A folder in use by this process.

    Parameters
    ----------
    path
        Where it is; made if it is not there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._finalizer = weakref.finalize(self, os.close, _hold(path))

    def take(self, size_bytes: int, limit_bytes: int | None) -> bool:
        """Take room for a file; False when too little is left.

        Without a limit, files may take half of what would be free without them.
        """
        with _taken_bytes(self.path) as (taken, note):
            free = shutil.disk_usage(self.path).free
            limit = (free + taken) // 2 if limit_bytes is None else min(limit_bytes, taken + free)
            if taken + size_bytes > limit:
                return False
            note(taken + size_bytes)
            return True

    @contextmanager
    def only_one(self, number: int) -> Iterator[None]:
        """Be the only thread of all processes that has this number, or wait for so long that it is hopeless."""
        descriptor = os.open(self.path / _READING, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock_byte(descriptor, number)
            yield
        finally:
            os.close(descriptor)

    def give_back(self, size_bytes: int) -> None:
        """Give back room that was taken."""
        with _taken_bytes(self.path) as (taken, note):
            note(max(0, taken - size_bytes))


@contextmanager
def _taken_bytes(path: Path) -> Iterator[tuple[int, Callable[[int], None]]]:
    """What files take, and a way to note that anew, while no other process or thread does."""
    descriptor = os.open(path / _TAKEN, os.O_RDWR | os.O_CREAT, 0o600)

    def note(taken_bytes: int) -> None:
        # of a fixed width, so that it is replaced whole
        os.pwrite(descriptor, b"%32d" % taken_bytes, 0)

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield int(os.pread(descriptor, 32, 0) or 0), note
    finally:
        os.close(descriptor)


def _lock_byte(descriptor: int, number: int) -> None:
    """Lock one byte of an open file; the system lets go of it when the file is closed, however that is."""
    until, wait = time.monotonic() + _PATIENCE_SECONDS, 0.001
    lock = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
    while time.monotonic() < until:
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
        except BlockingIOError:
            time.sleep(wait)
            wait = min(2 * wait, _LONGEST_WAIT_SECONDS)
        else:
            return


def _tidy(path: Path) -> None:
    """Remove what a process left unfinished, and count what is there."""
    sizes = 0
    for entry in os.scandir(path):
        if entry.name.endswith(UNFINISHED):
            os.unlink(entry.path)
        else:
            sizes += entry.stat().st_size
    with _taken_bytes(path) as (_, note):
        note(sizes)


def sweep_folders(parent: Path, prefix: str) -> None:
    """Remove the folders of that name whose processes are all gone."""
    for path in parent.glob(f"{prefix}*"):
        # others' folders, and those that another sweep is removing, are not ours to touch
        with suppress(OSError):
            lease = os.open(path / _LEASE, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                if _try_lock(lease):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lease)


def _hold(path: Path) -> int:
    """Share the lease of a folder, which a sweep may be removing at the same moment."""
    while True:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileNotFoundError):
            lease = os.open(path / _LEASE, os.O_RDWR | os.O_CREAT, 0o600)
            if _try_lock(lease) and _is_there(lease, path):
                _tidy(path)  # nobody else is here now
            # not one step with what is before it, so that others may have come and gone
            fcntl.flock(lease, fcntl.LOCK_SH)
            if _is_there(lease, path):
                return lease
            os.close(lease)


def _is_there(lease: int, path: Path) -> bool:
    """Whether a lease is still that of the folder."""
    try:
        return os.path.samestat(os.fstat(lease), os.stat(path / _LEASE))
    except FileNotFoundError:
        return False


def _try_lock(lease: int) -> bool:
    """Have a lease for oneself, if nobody else holds it."""
    try:
        fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

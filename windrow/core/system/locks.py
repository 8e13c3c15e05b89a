"""Locks of open files, which the system releases when a process ends: of a whole file, and of its bytes."""

from __future__ import annotations

import errno
import os
import struct
import sys

if sys.platform == "win32":
    import msvcrt

    from windrow.core.system.files import POSITIONS
else:
    import fcntl

# `struct flock` of Linux: type, whence, start, length, pid
_FLOCK = struct.Struct("hhqqi")
# Windows: locked bytes, which others cannot read meanwhile. They lie behind all that is in the file.
_REGION, _SHARES = 2**30, 1024
_SHARE_TRIES = 64


def try_lock(descriptor: int, *, exclusive: bool) -> bool:
    """Lock an open file, shared or not, without waiting; False if others hold it.

    A shared lock replaces an exclusive one of the same descriptor, whose place another process can take in between.
    The system releases locks when the file is closed, even by a crash.
    """
    if sys.platform == "win32":
        return _try_lock_region(descriptor, exclusive=exclusive)
    else:  # noqa: RET505 - mypy checks one of the two for each system
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def try_lock_byte(descriptor: int, number: int) -> bool:
    """Lock one byte of an open file; False if another open file has locked it.

    On macOS, nothing is locked, and the result is True.
    """
    if sys.platform == "win32":
        return _lock_bytes(descriptor, msvcrt.LK_NBLCK, number, 1)
    if sys.platform == "linux":
        # of the open file, not of the process
        lock = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock)
        except BlockingIOError:
            return False
    return True


if sys.platform == "win32":

    def _try_lock_region(descriptor: int, *, exclusive: bool) -> bool:
        """Lock all bytes of the region, or one of them: Python has no shared locks here."""
        _lock_bytes(descriptor, msvcrt.LK_UNLCK, _REGION, _SHARES)
        if exclusive:
            return _lock_bytes(descriptor, msvcrt.LK_NBLCK, _REGION, _SHARES)
        first = int.from_bytes(os.urandom(2), "little")
        places = (_REGION + (first + k) % _SHARES for k in range(_SHARE_TRIES))
        return any(_lock_bytes(descriptor, msvcrt.LK_NBLCK, place, 1) for place in places)

    def _lock_bytes(descriptor: int, mode: int, first: int, count: int) -> bool:
        with POSITIONS[descriptor % len(POSITIONS)]:
            os.lseek(descriptor, first, os.SEEK_SET)
            try:
                msvcrt.locking(descriptor, mode, count)
            except OSError as error:
                # locked by others; or, to be unlocked, not locked
                if error.errno not in (errno.EACCES, errno.EDEADLOCK):
                    raise
                return False
        return True

"""A folder of this process: gone when it is no longer needed, at the latest with the process."""

from __future__ import annotations

import atexit
import fcntl
import os
import shutil
import socket
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["LeasedFolder"]

_PREFIX = "windrow-staged-"
_LEASE = "lease"


class LeasedFolder:
    """A new folder, removed with this object, or with the process once other processes know of it.

    The process holds a lock on a lease in it, which the system lets go however the process
    ends: what a killed process of this machine has left is swept by the next.

    Parameters
    ----------
    parent
        Where to make it; None: the system's folder for temporary files.
    """

    def __init__(self, parent: str | os.PathLike[str] | None) -> None:
        where = Path(tempfile.gettempdir() if parent is None else parent)
        where.mkdir(parents=True, exist_ok=True)
        # names tell machines apart: a lock says nothing on a file system that others share
        prefix = f"{_PREFIX}{socket.gethostname()}-"
        _sweep(where, prefix)
        self.path = tempfile.mkdtemp(prefix=prefix, dir=where)
        lease = os.open(Path(self.path, _LEASE), os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lease, fcntl.LOCK_SH)
        self._finalizer = weakref.finalize(self, _remove, self.path, lease, os.getpid())

    def __reduce__(self) -> tuple[Any, ...]:
        # another process may read there when nobody here does
        remaining = self._finalizer.detach()
        if remaining is not None:
            atexit.register(_remove, *remaining[2])
        return _ElsewhereFolder, (self.path,)


class _ElsewhereFolder:
    """The folder of another process."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _ElsewhereFolder, (self.path,)


def _remove(path: str, lease: int, owner: int) -> None:
    # a forked child has the same objects, and no right to the folder
    if os.getpid() == owner:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lease)


def _sweep(parent: Path, prefix: str) -> None:
    for path in parent.glob(f"{prefix}*"):
        # others' folders, and those that another sweep is removing, are not ours to touch
        with suppress(OSError):
            lease = os.open(path / _LEASE, os.O_RDWR)
            try:
                fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lease)

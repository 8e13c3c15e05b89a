"""LeasedFolder: a temporary folder, deleted with its last user, at process exit, or after a crash by a sweep."""

from __future__ import annotations

import atexit
import os
import socket
import tempfile
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from windrow.core.system.files import open_file, remove_leased_folder
from windrow.core.system.locks import try_lock

_PREFIX = "windrow-staged-"
_LEASE = "lease"


class LeasedFolder:
    """A new folder, deleted with this object or, once this object was pickled, at the end of the process.

    The process locks a lease file in the folder. The operating system releases the lock however the
    process ends, so the next process on this machine deletes folders of killed processes. Without a
    parent it is in the system's temporary folder.
    """

    def __init__(self, parent: str | os.PathLike[str] | None) -> None:
        where = Path(tempfile.gettempdir() if parent is None else parent)
        where.mkdir(parents=True, exist_ok=True)
        # names contain the host, because locks are not reliable across machines on shared file systems
        prefix = f"{_PREFIX}{socket.gethostname()}-"
        sweep_folders(where, prefix, _LEASE)
        while True:
            self.path = tempfile.mkdtemp(prefix=prefix, dir=where)
            lease = take_lease(Path(self.path, _LEASE), exclusive=False)
            if lease is not None:
                break
        self._finalizer = weakref.finalize(self, _remove, self.path, lease, os.getpid())

    def delete(self) -> None:
        self._finalizer()

    def __reduce__(self) -> tuple[Any, ...]:
        # another process can still read the folder after this object is garbage-collected
        remaining = self._finalizer.detach()
        if remaining is not None:
            atexit.register(_remove, *remaining[2])
        return _ForeignFolder, (self.path,)


class _ForeignFolder:
    """The folder of another process."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return _ForeignFolder, (self.path,)


def _remove(path: str, lease: int, owner: int) -> None:
    # a forked child has a copy of this object but does not own the folder
    if os.getpid() == owner:
        remove_leased_folder(path, lease)


def take_lease(path: Path, *, exclusive: bool) -> int | None:
    """Lock the lease file of a new folder; None if another process's sweep came between."""
    lease = open_file(path, os.O_RDWR | os.O_CREAT, 0o600)
    if try_lock(lease, exclusive=exclusive) and path.exists():
        return lease
    os.close(lease)
    return None


def sweep_folders(
    parent: Path, prefix: str, lease_name: str, keeps: Callable[[Path], object] = lambda _: False
) -> None:
    """Delete the folders whose lease file nobody holds locked, except those that ``keeps`` is true for."""
    for path in parent.glob(f"{prefix}*"):
        # skip folders of other users, and folders that another sweep is deleting
        with suppress(OSError):
            lease = open_file(path / lease_name, os.O_RDWR)
            with ExitStack() as stack:
                stack.callback(os.close, lease)
                if try_lock(lease, exclusive=True) and not keeps(path):
                    stack.pop_all()
                    remove_leased_folder(path, lease)

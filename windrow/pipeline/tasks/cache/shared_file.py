"""`Arena`: an unnamed file (O_TMPFILE) to which one process writes blocks, and which others map via ``/proc``.

No other user of the cache folder can open the file, so mappings of it cannot be changed or truncated. Other
processes of the job open it through the file descriptor of its process, below ``/proc``. The system frees
its disk space when the last process that uses it ends, even by a crash.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import threading
import uuid
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from windrow.pipeline.tasks.cache import system_calls
from windrow.pipeline.tasks.cache.shared_folder import UNFINISHED, close

__all__ = ["Arena", "Extent"]

# Linux only; without it opening a folder for writing fails with EISDIR
_TMPFILE: int = getattr(os, "O_TMPFILE", 0)
# the system or file system does not support O_TMPFILE
_UNSUPPORTED_ERRNOS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
# the process has ended, or has closed the file
_ENDED_ERRNOS = (errno.ENOENT, errno.ESRCH, errno.ENXIO)


@dataclass(frozen=True)
class Extent:
    """A range of bytes in the arena of a process on this machine.

    Attributes
    ----------
    process, descriptor
        The process that holds the arena open, and its file descriptor.
    device, inode
        The file's identity, since process ids and descriptors are reused.
    token
        A random identifier of the arena, since inodes are reused too.
    offset, size
        The range in bytes.

    Examples
    --------
    >>> extent = Extent(1, 2, 3, 4, "5", offset=0, size=6)
    >>> extent.format()
    '1:2:3:4:5:0:6:e601db0a'
    >>> Extent.parse(extent.format()) == extent
    True
    >>> Extent.parse("1:2:3:4:5:0:7:e601db0a")
    """

    process: int
    descriptor: int
    device: int
    inode: int
    token: str
    offset: int = 0
    size: int = 0

    def format(self) -> str:
        """Format as the target of a symlink."""
        text = ":".join(map(str, vars(self).values()))
        return f"{text}:{zlib.crc32(text.encode()):08x}"

    @classmethod
    def parse(cls, text: str) -> Extent | None:
        """Parse the output of `format`; None for any other text."""
        text, _, check = text.rpartition(":")
        if check != f"{zlib.crc32(text.encode()):08x}":
            return None
        *numbers, token, offset, size = text.split(":")
        process, descriptor, device, inode = map(int, numbers)
        return cls(process, descriptor, device, inode, token, int(offset), int(size))

    @contextmanager
    def open(self) -> Iterator[int | None]:
        """Open the arena; yields its descriptor, or None if its process has ended."""
        path = f"/proc/{self.process}/fd/{self.descriptor}"
        descriptor = None
        try:
            # stat before open, since opening a device or a pipe can have side effects
            if self._is_arena(system_calls.stat(path)):
                descriptor = system_calls.open_file(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno not in _ENDED_ERRNOS:
                raise
        try:
            is_arena = descriptor is not None and self._is_arena(system_calls.fstat(descriptor))
            yield descriptor if is_arena else None
        finally:
            if descriptor is not None:
                close(descriptor)

    def _is_arena(self, status: os.stat_result) -> bool:
        is_same = (status.st_dev, status.st_ino) == (self.device, self.inode)
        return is_same and stat.S_ISREG(status.st_mode)

    def map(self, descriptor: int) -> pa.Buffer | None:
        """Map the range, given the arena's descriptor; None if the file is too short."""
        if system_calls.fstat(descriptor).st_size < self.offset + self.size:
            return None
        return pa.py_buffer(
            system_calls.map_file(
                descriptor, self.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=self.offset
            )
        )


class Arena:
    """The arena of this process.

    The descriptor is closed when this object is collected, so callers that use it hold a reference
    to the object. Mappings keep the file's data alive beyond that.

    Parameters
    ----------
    folder
        A folder on the file system that stores the arena.
    """

    def __init__(self, folder: Path) -> None:
        self.descriptor = _open_nameless(folder)
        self._finalizer = weakref.finalize(self, close, self.descriptor)
        status = system_calls.fstat(self.descriptor)
        token = uuid.uuid4().hex[:12]
        self.extent = Extent(os.getpid(), self.descriptor, status.st_dev, status.st_ino, token)
        self._lock = threading.Lock()
        self._end = 0

    def reserve(self, size_bytes: int) -> Extent:
        """Extend the file for a block; returns where to write it."""
        with self._lock:
            offset = self._end
            # mmap offsets must be multiples of this
            end = -(-(offset + size_bytes) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            system_calls.ftruncate(self.descriptor, end)
            self._end = end
            return replace(self.extent, offset=offset, size=size_bytes)

    def release(self, extent: Extent) -> None:
        """Free a range that could not be written, if it is the last one of the file."""
        with self._lock, suppress(OSError):
            if extent.offset + extent.size > self._end - mmap.ALLOCATIONGRANULARITY:
                system_calls.ftruncate(self.descriptor, extent.offset)
                self._end = extent.offset


def _open_nameless(folder: Path) -> int:
    try:
        return system_calls.open_file(folder, os.O_RDWR | _TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _UNSUPPORTED_ERRNOS:
            raise
    path = folder / f"{uuid.uuid4().hex}{UNFINISHED}"
    descriptor = system_calls.open_file(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        system_calls.unlink(path)
    except BaseException:
        close(descriptor)
        raise
    return descriptor

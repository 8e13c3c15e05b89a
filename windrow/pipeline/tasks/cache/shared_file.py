"""A file without a name, where one process keeps blocks and lets others of the machine map them.

No user of the cache folder can reach the file, so that no mapping of it can be altered or cut. Other
processes of the run open it through the descriptor of the process that made it, below ``/proc``. The
system frees its room when the last process that uses it ends, however that is.
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

# a flag of Linux; without it a folder is opened, which is an error below
_TMPFILE: int = getattr(os, "O_TMPFILE", 0)
# of systems and file systems that make no files without a name
_UNSUPPORTED_ERRNOS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL)
# the process has ended, or has closed it
_ENDED_ERRNOS = (errno.ENOENT, errno.ESRCH, errno.ENXIO)


@dataclass(frozen=True)
class Extent:
    """Bytes in the arena of some process of this machine.

    Attributes
    ----------
    process, descriptor
        Who holds the arena open, and as what.
    device, inode
        The file, since numbers of processes and descriptors are used again.
    token
        A random name of the arena, since those of files are used again too.
    offset, size
        The bytes.

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
        """As the target of a link."""
        text = ":".join(map(str, vars(self).values()))
        return f"{text}:{zlib.crc32(text.encode()):08x}"

    @classmethod
    def parse(cls, text: str) -> Extent | None:
        """The place that `format` has written; None for any other text."""
        text, _, check = text.rpartition(":")
        if check != f"{zlib.crc32(text.encode()):08x}":
            return None
        *numbers, token, offset, size = text.split(":")
        process, descriptor, device, inode = map(int, numbers)
        return cls(process, descriptor, device, inode, token, int(offset), int(size))

    @contextmanager
    def open(self) -> Iterator[int | None]:
        """The arena's descriptor; None where its process has ended."""
        path = f"/proc/{self.process}/fd/{self.descriptor}"
        descriptor = None
        try:
            # looked at first, since opening what is no plain file may do something
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
        """Map the bytes, given the arena's descriptor; None where it has fewer."""
        if system_calls.fstat(descriptor).st_size < self.offset + self.size:
            return None
        return pa.py_buffer(
            system_calls.map_file(
                descriptor, self.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ, offset=self.offset
            )
        )


class Arena:
    """The file of this process.

    It lives as long as this object and what was mapped of it, so whoever uses the descriptor holds
    the object meanwhile.

    Parameters
    ----------
    folder
        A folder of the file system that is to hold it.
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
        """Make the file longer, for a block that will be written there."""
        with self._lock:
            offset = self._end
            # mappings begin at multiples of this
            end = -(-(offset + size_bytes) // mmap.ALLOCATIONGRANULARITY) * mmap.ALLOCATIONGRANULARITY
            system_calls.ftruncate(self.descriptor, end)
            self._end = end
            return replace(self.extent, offset=offset, size=size_bytes)

    def release(self, extent: Extent) -> None:
        """Free what was reserved and could not be written, where nothing was reserved since."""
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

"""Writes the disk cache of one job: blocks in unnamed files of each process, found through symlinks.

Each process writes blocks to a file of its own, its arena (O_TMPFILE). No other user of the cache folder can
open the file, so mappings of it cannot be changed or truncated. Other processes of the job open it through the
file descriptor of its process, below ``/proc``; on systems without that, each process caches what it needs. The
system frees its disk space when the last process that uses it ends, even by a crash.
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from windrow.core.system.files import NONBLOCK, descriptor_path
from windrow.pipeline.tasks.cache import system_calls
from windrow.pipeline.tasks.cache.block_file import (
    CorruptCachedBlockError,
    block_bytes,
    decode_block,
    write_block,
)
from windrow.pipeline.tasks.cache.shared_folder import UNFINISHED, SharedFolder, close, fits

_ARENA, _BLOCK = ".arena", ".block"
# the process has ended, or has closed the file
_ENDED_ERRNOS = (errno.ENOENT, errno.ESRCH, errno.ENXIO)


class JobStore:
    """Cached blocks that are deleted when the job ends.

    A symlink per block and one per arena hold their locations, with a checksum. Blocks that this process has
    found before need no symlink. ``make_key`` makes a block's key from its number and its arena's token.
    """

    def __init__(self, path: Path, make_key: Callable[[int, str], bytes]) -> None:
        self.folder = SharedFolder(path)
        self._make_key = make_key
        self._lock = threading.Lock()
        self._arena: Arena | None = None
        self._extents: dict[int, Extent] = {}
        self._verified: set[tuple[int, Extent]] = set()

    def contains(self, block: int) -> bool:
        """Whether a block is cached, without reading or verifying it."""
        return block in self._extents or os.path.lexists(self._link(block))

    def find(self, block: int) -> list[pa.Table] | None:
        """Map the tables of a block into memory; None if it is not cached."""
        extent = self._extents.get(block)
        tables = None if extent is None else self._load(block, extent)
        if tables is not None:
            return tables
        # not found before, or its process has ended and another one has cached the block again
        extent = self._read_link(block)
        tables = None if extent is None else self._load(block, extent)
        if extent is not None and tables is not None:
            self._extents[block] = extent
        return tables

    def put(self, block: int, tables: list[pa.Table], limit_bytes: int | None) -> int | None:
        """Write the tables of a block; returns the bytes written, or None if they do not fit."""
        if self.find(block) is not None:
            return 0
        size = block_bytes(tables)
        arena = self._open_arena()
        with self.folder.lock_space():
            if not fits(size, self._used_bytes(arena), limit_bytes, self.folder.path):
                return None
            extent = arena.reserve(size)
        try:
            key = self._make_key(block, extent.token)
            write_block(arena.descriptor, extent.offset, tables, key)
        except BaseException:
            arena.release(extent)
            raise
        self._extents[block] = extent
        self._write_link(self._link(block), extent)
        return size

    def evict(self, block: int) -> None:
        """Remove a corrupt block from the cache."""
        self._extents.pop(block, None)
        with suppress(FileNotFoundError):
            system_calls.unlink(self._link(block))

    def _load(self, block: int, extent: Extent) -> list[pa.Table] | None:
        """Map and decode a block; None if the process of its arena has ended."""
        arena = self._arena
        if arena is not None and extent.token == arena.extent.token:
            content = extent.map(arena.descriptor)
        else:
            with extent.open() as descriptor:
                if descriptor is None:
                    return None
                content = extent.map(descriptor)
        if content is None:
            raise CorruptCachedBlockError("the file has been truncated")
        mapping = block, extent
        key = self._make_key(block, extent.token)
        tables = decode_block(content, key, verify=mapping not in self._verified)
        # no other process can write to an arena, so one verification is enough
        self._verified.add(mapping)
        return tables

    def _open_arena(self) -> Arena:
        with self._lock:
            if self._arena is None:
                arena = Arena(self.folder.path)
                self._write_link(self.folder.path / f"{arena.extent.token}{_ARENA}", arena.extent)
                self._arena = arena
            return self._arena

    def _used_bytes(self, own: Arena) -> int:
        """The size of the arenas of all processes; removes the links of ended processes."""
        used = 0
        for name in system_calls.listdir(self.folder.path):
            if not name.endswith(_ARENA):
                continue
            path = self.folder.path / name
            extent = Extent.parse(system_calls.read_link(path))
            if extent is None or extent.token == own.extent.token:
                continue
            with extent.open() as descriptor:
                if descriptor is not None:
                    used += system_calls.fstat(descriptor).st_size
                    continue
            system_calls.unlink(path)
        return used + system_calls.fstat(own.descriptor).st_size

    def _link(self, block: int) -> Path:
        return self.folder.path / f"{block}{_BLOCK}"

    def _read_link(self, block: int) -> Extent | None:
        try:
            text = system_calls.read_link(self._link(block))
        except FileNotFoundError:
            return None
        extent = Extent.parse(text)
        if extent is None:
            raise CorruptCachedBlockError("the link to it is corrupt")
        return extent

    def _write_link(self, path: Path, extent: Extent) -> None:
        unfinished = path.with_name(f"{uuid.uuid4().hex}{UNFINISHED}")
        system_calls.write_link(extent.format(), unfinished)
        try:
            system_calls.rename(unfinished, path)
        except BaseException:
            with suppress(OSError):
                system_calls.unlink(unfinished)
            raise


@dataclass(frozen=True)
class Extent:
    """A range of bytes in the arena of a process on this machine.

    Examples
    --------
    >>> extent = Extent(1, 2, 3, 4, "5", offset=0, size=6)
    >>> extent.format()
    '1:2:3:4:5:0:6:e601db0a'
    >>> Extent.parse(extent.format()) == extent
    True
    >>> Extent.parse("1:2:3:4:5:0:7:e601db0a")
    """

    # the process that holds the arena open, and its file descriptor
    process: int
    descriptor: int
    # the file's identity, since process ids and descriptors are reused
    device: int
    inode: int
    # a random identifier of the arena, since inodes are reused too
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
        path = descriptor_path(self.process, self.descriptor)
        descriptor = None
        try:
            # stat before open, since opening a device or a pipe can have side effects
            if self._is_arena(system_calls.stat(path)):
                descriptor = system_calls.open_file(path, os.O_RDONLY | NONBLOCK)
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
            system_calls.map_file(descriptor, self.size, access=mmap.ACCESS_READ, offset=self.offset)
        )


class Arena:
    """The arena of this process.

    The descriptor is closed when this object is collected, so callers that use it hold a reference
    to the object. Mappings keep the file's data alive beyond that. The file system of ``folder`` stores it.
    """

    def __init__(self, folder: Path) -> None:
        self.descriptor = system_calls.open_nameless(folder, UNFINISHED)
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

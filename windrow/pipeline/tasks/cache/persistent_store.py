"""The blocks of a cache that outlives its run: a file for each, read into memory."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from windrow.pipeline.tasks.cache import system_calls
from windrow.pipeline.tasks.cache.block_file import block_bytes, read_block, write_block
from windrow.pipeline.tasks.cache.shared_folder import SPACE_FILE, UNFINISHED, SharedFolder, fits, open_file

__all__ = ["PersistentStore"]

_BLOCK = ".arrows"
_SETTLED_NS = 2 * 10**9


class _Version(NamedTuple):
    """What tells a file that was written to from the same file before."""

    inode: int
    size_bytes: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> _Version:
        status = system_calls.fstat(descriptor)
        return cls(status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)

    @property
    def is_settled(self) -> bool:
        """Whether a change from now on would show: times of files advance in steps, at most of a second."""
        return time.time_ns() - max(self.modified_ns, self.changed_ns) > _SETTLED_NS


class PersistentStore:
    """Blocks that stay after the run.

    Their files have names, so that others can write to them and cut them at any time. They are
    therefore read, not mapped, and verified unless the file is as it was when it was verified before.

    Parameters
    ----------
    folder
        Named after the data.
    make_key
        The key of a block, given its number.
    """

    def __init__(self, path: Path, make_key: Callable[[int, str], bytes]) -> None:
        self.folder = SharedFolder(path, _tidy)
        self._make_key = make_key
        self._verified: dict[int, _Version] = {}

    def contains(self, block: int) -> bool:
        """Whether there is a file of a block, whole or not."""
        return os.path.lexists(self._path(block))

    def find(self, block: int) -> list[pa.Table] | None:
        """The tables of a block, read into memory; None where it is not kept.

        Raises
        ------
        CorruptCachedBlockError
            If what is kept is not what was written.
        """
        try:
            with open_file(self._path(block), os.O_RDONLY) as descriptor:
                return self._read(block, descriptor)
        except FileNotFoundError:
            return None

    def _read(self, block: int, descriptor: int) -> list[pa.Table]:
        key, version = self._make_key(block, ""), _Version.of(descriptor)
        if version == self._verified.get(block):
            tables = read_block(descriptor, key, verify=False)
            if version == _Version.of(descriptor):
                return tables
        tables = read_block(descriptor, key)
        if version.is_settled and version == _Version.of(descriptor):
            self._verified[block] = version
        return tables

    def put(self, block: int, tables: list[pa.Table], limit_bytes: int | None) -> int | None:
        """Keep the tables of a block; returns the bytes written, or None where they do not fit."""
        size, path = block_bytes(tables), self._path(block)
        if not self._reserve_space(size, limit_bytes):
            return None
        unfinished = path.with_name(f"{block}-{uuid.uuid4().hex}{UNFINISHED}")
        try:
            with open_file(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
                write_block(descriptor, 0, tables, self._make_key(block, ""))
                # it shall outlive a crash of the machine
                system_calls.fsync(descriptor)
            old = system_calls.lstat(path).st_size if os.path.lexists(path) else 0
            system_calls.rename(unfinished, path)
        except BaseException:
            with suppress(OSError):
                system_calls.unlink(unfinished)
            with suppress(OSError):
                self._release_space(size)
            raise
        if old:
            self._release_space(old)
        return size

    def evict(self, block: int) -> None:
        """Keep a block no longer, since it is corrupt."""
        with suppress(FileNotFoundError):
            size = system_calls.lstat(self._path(block)).st_size
            system_calls.unlink(self._path(block))
            self._release_space(size)

    def _path(self, block: int) -> Path:
        return self.folder.path / f"{block}{_BLOCK}"

    def _reserve_space(self, size_bytes: int, limit_bytes: int | None) -> bool:
        with self.folder.lock_space() as usage_file:
            used = self._read_used(usage_file)
            if not fits(size_bytes, used, limit_bytes, self.folder.path):
                return False
            _write_used(usage_file, used + size_bytes)
            return True

    def _release_space(self, size_bytes: int) -> None:
        with self.folder.lock_space() as usage_file:
            _write_used(usage_file, max(0, self._read_used(usage_file) - size_bytes))

    def _read_used(self, usage_file: int) -> int:
        """What files take, and what is reserved for them; counted anew where no note says so."""
        text = system_calls.pread(usage_file, 32, 0)
        if text.strip().isdigit():
            return int(text)
        return sum(
            system_calls.lstat(self.folder.path / name).st_size
            for name in system_calls.listdir(self.folder.path)
            if name.endswith((_BLOCK, UNFINISHED))
        )


def _write_used(usage_file: int, used_bytes: int) -> None:
    # of a fixed width, so that it is replaced whole
    system_calls.pwrite(usage_file, b"%32d" % used_bytes, 0)


def _tidy(path: Path) -> None:
    """Remove what a killed process left unfinished, and the note of what files take."""
    for name in system_calls.listdir(path):
        if name.endswith((UNFINISHED, SPACE_FILE)):
            with suppress(FileNotFoundError):
                system_calls.unlink(path / name)

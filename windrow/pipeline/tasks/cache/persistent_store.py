"""Writes the persistent disk cache (``keep_cache=True``): one named file per block, read into memory."""

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

_BLOCK = ".arrows"
_SETTLED_NS = 2 * 10**9


class _Version(NamedTuple):
    """The status of a file, which changes when the file is written to."""

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
        """Whether any later change would change the timestamps, whose granularity is at most a second."""
        return time.time_ns() - max(self.modified_ns, self.changed_ns) > _SETTLED_NS


class PersistentStore:
    """Cached blocks that outlive the job.

    The files have names, so other processes can write to them or truncate them at any time: in a
    mapping, truncation raises SIGBUS. So they are read, not mapped, and verified unless their status
    is the same as at an earlier verification. The folder is named after the contents of the data.
    """

    def __init__(self, path: Path, make_key: Callable[[int, str], bytes]) -> None:
        self.folder = SharedFolder(path, _tidy)
        self._make_key = make_key
        self._verified: dict[int, _Version] = {}

    def contains(self, block: int) -> bool:
        """Whether the file of a block exists, valid or not."""
        return os.path.lexists(self._path(block))

    def find(self, block: int) -> list[pa.Table] | None:
        """Read the tables of a block into memory; None if it is not cached."""
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
        """Write the tables of a block; returns the bytes written, or None if they do not fit."""
        size, path = block_bytes(tables), self._path(block)
        if not self._reserve_space(size, limit_bytes):
            return None
        unfinished = path.with_name(f"{block}-{uuid.uuid4().hex}{UNFINISHED}")
        try:
            with open_file(unfinished, os.O_RDWR | os.O_CREAT | os.O_EXCL) as descriptor:
                write_block(descriptor, 0, tables, self._make_key(block, ""))
                # durable, so that it survives a crash of the machine
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
        """Remove a corrupt block from the cache."""
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
        """Read the bytes of all files and reservations; counted again if there is no record of them."""
        text = system_calls.pread(usage_file, 32, 0)
        if text.strip().isdigit():
            return int(text)
        return sum(
            system_calls.lstat(self.folder.path / name).st_size
            for name in system_calls.listdir(self.folder.path)
            if name.endswith((_BLOCK, UNFINISHED))
        )


def _write_used(usage_file: int, used_bytes: int) -> None:
    # fixed width, so that a write replaces the whole record
    system_calls.pwrite(usage_file, b"%32d" % used_bytes, 0)


def _tidy(path: Path) -> None:
    """Remove unfinished files of killed processes, and the record of used bytes, which counts them."""
    for name in system_calls.listdir(path):
        if name.endswith((UNFINISHED, SPACE_FILE)):
            with suppress(FileNotFoundError):
                system_calls.unlink(path / name)

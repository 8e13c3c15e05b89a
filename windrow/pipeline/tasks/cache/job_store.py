"""The disk cache of one job: blocks in unnamed files of each process, found through symlinks in the job's folder."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

from windrow.pipeline.tasks.cache import system_calls
from windrow.pipeline.tasks.cache.block_file import (
    CorruptCachedBlockError,
    block_bytes,
    decode_block,
    write_block,
)
from windrow.pipeline.tasks.cache.shared_file import Arena, Extent
from windrow.pipeline.tasks.cache.shared_folder import UNFINISHED, SharedFolder, fits

__all__ = ["JobStore"]

_ARENA, _BLOCK = ".arena", ".block"


class JobStore:
    """Cached blocks that are deleted when the job ends.

    Each process writes to its own arena. A symlink per block and one per arena hold their locations,
    with a checksum. Blocks that this process has found before need no symlink.

    Parameters
    ----------
    path
        The job's folder.
    make_key
        Makes the key of a block from its number and the token of its arena.
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
        """Map the tables of a block into memory; None if it is not cached.

        Raises
        ------
        CorruptCachedBlockError
            If the bytes are not those that were written.
        """
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
        tables = decode_block(
            content, self._make_key(block, extent.token), verify=mapping not in self._verified
        )
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
            extent = Extent.parse(system_calls.readlink(path))
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
            text = system_calls.readlink(self._link(block))
        except FileNotFoundError:
            return None
        extent = Extent.parse(text)
        if extent is None:
            raise CorruptCachedBlockError("the link to it is corrupt")
        return extent

    def _write_link(self, path: Path, extent: Extent) -> None:
        unfinished = path.with_name(f"{uuid.uuid4().hex}{UNFINISHED}")
        system_calls.symlink(extent.format(), unfinished)
        try:
            system_calls.rename(unfinished, path)
        except BaseException:
            with suppress(OSError):
                system_calls.unlink(unfinished)
            raise

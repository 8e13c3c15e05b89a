"""Local files that stay mapped into memory from one block and epoch to the next, as long as they are not replaced.

The pages of a file that is mapped once more cost a page fault for each 64 KiB, and as much again when it is unmapped:
together up to a tenth of the time of an epoch whose files the system holds in memory.
"""

from __future__ import annotations

import os
from typing import Any
from weakref import WeakSet

import pyarrow as pa

from windrow.core.system.files import REMOVES_OPEN_FILES, open_file
from windrow.io.storage.file_versions import Version, read_local_version, version_from_stat

# Of all files that stay mapped in a process. Nothing is unmapped to make room: epochs read files in turns, so that each
# would be unmapped before it is read again.
_MAX_BYTES, _MAX_FILES = 2**30, 1_024


class MappedFiles:
    """Opens local files; those that stay mapped are unmapped with this object. Pickled, it is empty.

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder, "data")
    ...     _ = path.write_bytes(b"abc")
    ...     file, version = MappedFiles().open(str(path))
    ...     (file.read(), version.size_bytes)
    (b'abc', 3)
    """

    def __init__(self) -> None:
        # by path; changed by single operations alone, since several threads open files
        self._found: dict[str, tuple[Version, pa.Buffer]] = {}
        _ALL.add(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return MappedFiles, ()

    def open(self, path: str) -> tuple[pa.NativeFile, Version]:
        """Open a file for random access without copies; returns the version that was at this path before.

        So a file that is replaced meanwhile has another version when it is looked at again.
        """
        kept = self._found.get(path)
        if kept is None:
            return self._map(path)
        version, data = kept
        # a network file system checks whether a file was replaced when it is opened
        descriptor = open_file(path, os.O_RDONLY)
        try:
            now = version_from_stat(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        if now == version:
            return pa.BufferReader(data), version
        self._found.pop(path, None)
        return self._map(path)

    def _map(self, path: str) -> tuple[pa.NativeFile, Version]:
        before = read_local_version(path)
        if not before.size_bytes:
            return pa.BufferReader(b""), before
        file = pa.memory_map(path)
        stays = REMOVES_OPEN_FILES and _has_room(before.size_bytes) and read_local_version(path) == before
        if not stays:
            return file, before
        with file:
            data = file.read_buffer()
        self._found[path] = (before, data)
        return pa.BufferReader(data), before


def _has_room(size_bytes: int) -> bool:
    """Whether one more file may stay mapped; threads that ask at once can each be the last one."""
    sizes = [version.size_bytes for files in list(_ALL) for version, _ in list(files._found.values())]
    return len(sizes) < _MAX_FILES and sum(sizes) + size_bytes <= _MAX_BYTES


_ALL: WeakSet[MappedFiles] = WeakSet()

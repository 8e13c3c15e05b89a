"""A file of a block, opened, and made sure to be and to stay the one that was listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.io.filesystems import Files
from windrow.io.fragments import digest_ends
from windrow.io.opening import RowGroups, changed
from windrow.io.remote import RemoteFile, join_ranges

__all__ = ["OpenFile", "open_file", "open_path"]


@dataclass(frozen=True, eq=False)
class OpenFile:
    """A file, open for reading at random positions.

    Attributes
    ----------
    name
        Its path as the user knows it.
    path
        Its path on a disk of this machine; None in a store.
    size_bytes
        Its size.
    file
        What Arrow reads: a ``pyarrow.NativeFile``.
    """

    name: str
    path: str | None
    size_bytes: int
    file: Any
    _remote: RemoteFile | None

    def read_range(self, start: int, stop: int) -> pa.Buffer:
        """The bytes of a range, all of them; with no copy from a local disk."""
        if self._remote is not None:
            return pa.py_buffer(self._remote.read_range(start, stop)) if stop > start else pa.py_buffer(b"")
        self.file.seek(start)
        return self.file.read_buffer(stop - start)

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read ranges of a file in a store ahead, several at once; ``file`` then finds them in memory."""
        if self._remote is not None:
            self._remote.fetch(join_ranges(ranges, self.size_bytes))


@contextmanager
def open_path(files: Files, path: str, size_bytes: int) -> Iterator[OpenFile]:
    """Open a file of a size that is known, for a look at it."""
    name = files.name(path)
    if files.local:
        with files.open(path) as local:
            yield OpenFile(name, files.path(path), size_bytes, local, None)
    else:
        remote = files.open_remote(path, size_bytes)
        with pa.PythonFile(remote, mode="r") as file:
            yield OpenFile(name, None, size_bytes, file, remote)


@contextmanager
def open_file(files: Files, groups: RowGroups, origin: str) -> Iterator[OpenFile]:
    """Open the file of some row groups; once it has been read, make sure that it was what was listed.

    Raises
    ------
    SourceError
        If it is gone, cannot be read, or is not what was listed.
    """
    listed = groups.stamp if files.comparable else 0
    with files.mapped_errors(origin):
        stamp = listed or files.look(groups.path).stamp
        with open_path(files, groups.path, groups.size_bytes) as file:
            if not listed and digest_ends(file.read_range, groups.size_bytes) != groups.footer_hash:
                raise changed(origin, groups, files.look(groups.path), "its ends are others")
            try:
                yield file
            except Exception:
                # what cannot be decoded may be another file by now
                _compare(files, groups, origin, stamp)
                raise
        _compare(files, groups, origin, stamp)


def _compare(files: Files, groups: RowGroups, origin: str, stamp: int) -> None:
    now = files.look(groups.path)
    if now.stamp != stamp:
        raise changed(origin, groups, now)

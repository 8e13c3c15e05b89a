"""A file of a block, opened, and made sure to be and to stay the one that was listed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.io.catalog.fragments import digest_ends
from windrow.io.storage.filesystems import Files
from windrow.io.storage.range_reads import RemoteFile, join_ranges
from windrow.io.storage.retries import GaveUpError, Retries
from windrow.io.storage.verified_files import RowGroups, changed

__all__ = ["OpenFile", "corrupt", "listed_stamp", "open_file", "open_path", "unchanged"]

_ONCE = Retries(seconds=0)


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
    version
        What tells this version of it from others; 0 where nobody has made sure of one.
    """

    name: str
    path: str | None
    size_bytes: int
    file: Any
    _remote: RemoteFile | None
    version: int = 0

    def read_range(self, start: int, stop: int) -> pa.Buffer:
        """The bytes of a range, all of them; with no copy from a file that is mapped, or was fetched."""
        self.file.seek(start)
        data = self.file.read_buffer(stop - start)
        if data.size != stop - start:
            raise pa.ArrowInvalid(f"it ends before byte {stop:,}")
        return data

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Read ranges of a file in a store ahead, several at once; they are found in memory then."""
        if self._remote is not None:
            self._remote.fetch(join_ranges(ranges, self.size_bytes))

    @property
    def failed(self) -> bool:
        """Whether its store did not give a range."""
        return self._remote is not None and self._remote.failed


@contextmanager
def open_path(files: Files, path: str, size_bytes: int, *, mapped: bool = True) -> Iterator[OpenFile]:
    """Open a file of a size that is known, for a look at it.

    With ``mapped=False`` what is read from a local disk is a copy, and not the file's own memory.
    """
    name = files.name(path)
    if files.local:
        with files.open(path) if mapped else pa.OSFile(files.path(path)) as local:
            yield OpenFile(name, files.path(path), size_bytes, local, None)
    else:
        remote = files.open_remote(path, size_bytes)
        with pa.PythonFile(remote, mode="r") as file:
            yield OpenFile(name, None, size_bytes, file, remote)


@contextmanager
def open_file(
    files: Files, groups: RowGroups, origin: str, *, mapped: bool = False, filters: bool = False
) -> Iterator[OpenFile]:
    """Open the file of some row groups; once it has been read, make sure that it was what was listed.

    What is used while it is open was of the file that was listed, even where it is ``mapped``.
    With ``filters``, Arrow may say of healthy values too that they are invalid.

    Raises
    ------
    CorruptBlockError
        If it is what was listed, and cannot be decoded.
    SourceError
        If it is gone, cannot be had, or is not what was listed.
    """
    with (
        unchanged(files, groups, origin) as stamp,
        open_path(files, groups.path, groups.size_bytes, mapped=mapped) as opened,
    ):
        file = replace(opened, version=stamp)
        # some formats look at no file, and leave nothing to compare
        compared = any(groups.footer_hash) and not listed_stamp(files, groups)
        if compared and digest_ends(file.read_range, groups.size_bytes) != groups.footer_hash:
            raise changed(origin, groups, files.look(groups.path), "its ends are others")
        try:
            yield file
        except Exception as error:
            if _is_corruption(error, file, filters):
                raise corrupt(files, origin, error) from files.cause(error)
            raise


@contextmanager
def unchanged(files: Files, groups: RowGroups, origin: str) -> Iterator[int]:
    """Make sure that what is read meanwhile is of the file that was listed, as far as its store tells.

    Yields the stamp of that version.
    """
    with files.mapped_errors(origin):
        stamp = listed_stamp(files, groups) or _first_look(files, groups, origin)
        try:
            yield stamp
        except GaveUpError:
            raise
        except Exception:
            # what cannot be decoded may be another file by now
            _compare(replace(files, retries=_ONCE), groups, origin, stamp)
            raise
        _compare(files, groups, origin, stamp)


def corrupt(files: Files, name: str, error: BaseException) -> CorruptBlockError:
    """The error for a file that was had, and is not what it should be."""
    fix = (
        "it is corrupt: restore the file, write it anew, leave it out, or go on without its block with "
        "options(on_error='skip')"
    )
    return CorruptBlockError(str(files.error(f"{name}: cannot be read", error, fix)))


def _is_corruption(error: Exception, file: OpenFile, filters: bool) -> bool:
    """Whether the bytes were had; errors of stores look like those of Arrow's decoders."""
    if file.failed or isinstance(error, (SourceError, GaveUpError)):
        return False
    if type(error) is pa.ArrowInvalid:
        return not filters
    return type(error) is OSError and error.errno is None


def listed_stamp(files: Files, groups: RowGroups) -> int:
    """The stamp that listing noted, where it can be compared here; else 0."""
    return groups.stamp if files.comparable else 0


def _first_look(files: Files, groups: RowGroups, origin: str) -> int:
    now = files.look(groups.path)
    if now.size_bytes != groups.size_bytes:
        raise changed(origin, groups, now)
    return now.stamp


def _compare(files: Files, groups: RowGroups, origin: str, stamp: int) -> None:
    now = files.look(groups.path)
    if now.stamp != stamp:
        raise changed(origin, groups, now)

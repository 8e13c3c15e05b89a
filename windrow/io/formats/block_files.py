"""Opens block files for formats other than Parquet, verified as `parquet.verified_files` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.io.catalog.manifest import digest_ends
from windrow.io.storage.error_causes import shows_corruption
from windrow.io.storage.file_versions import RowGroups, changed
from windrow.io.storage.filesystems import Files
from windrow.io.storage.footer_cache import FooterCache
from windrow.io.storage.range_reads import RemoteFile, join_ranges
from windrow.io.storage.retries import GaveUpError, Retries

T = TypeVar("T")

_ONCE = Retries(seconds=0)


@dataclass(frozen=True, eq=False)
class OpenFile:
    """A file open for random access.

    ``name`` is its path as the user wrote it; ``path`` that on the local disk, None for remote files.
    Arrow reads from ``file``, a ``pyarrow.NativeFile``. ``version`` is the stamp of the verified file
    version; 0 where none was verified.
    """

    name: str
    path: str | None
    size_bytes: int
    file: Any
    _remote: RemoteFile | None
    version: int = 0

    def read_range(self, start: int, stop: int) -> pa.Buffer:
        """The bytes of a range, never fewer; zero-copy if the file is memory-mapped or the range was fetched."""
        self.file.seek(start)
        data = self.file.read_buffer(stop - start)
        if data.size != stop - start:
            raise pa.ArrowInvalid(f"it ends before byte {stop:,}")
        return data

    def fetch(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Prefetch ranges of a remote file with concurrent requests; later reads find them in memory."""
        if self._remote is not None:
            self._remote.fetch(join_ranges(ranges, self.size_bytes))

    def remembered(self, cache: FooterCache, read: Callable[[OpenFile], T]) -> T:
        """What ``read`` returns for this version of the file, once in a process if a version was verified."""
        if not self.version:
            return read(self)
        key = f"{self.name}\n{self.size_bytes}\n{self.version}".encode()
        found: T = cache.get(key, lambda: read(self))
        return found

    @property
    def failed(self) -> bool:
        """Whether a read from object storage failed."""
        return self._remote is not None and self._remote.failed


@contextmanager
def open_path(files: Files, path: str, size_bytes: int, *, mapped: bool = True) -> Iterator[OpenFile]:
    """Open a file of known size, without verifying its version.

    With ``mapped=False``, reads from local disk copy instead of referencing the mapped file.
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
    """Open the file of some row groups; verify on exit that it was the listed version throughout.

    Data used inside the ``with`` block therefore comes from the listed file, even when ``mapped``.
    ``filters`` states that the caller evaluates a filter: Arrow can then raise ``ArrowInvalid`` for
    intact data too, so that such an error is not taken for corruption. Otherwise a CorruptBlockError is
    raised where the listed version cannot be decoded.
    """
    with (
        check_unchanged(files, groups, origin, filters=filters) as stamp,
        open_path(files, groups.path, groups.size_bytes, mapped=mapped) as opened,
    ):
        file = replace(opened, version=stamp)
        # formats that inspect no file record no digest
        compared = any(groups.footer_hash) and not listed_stamp(files, groups)
        if compared and digest_ends(file.read_range, groups.size_bytes) != groups.footer_hash:
            raise changed(origin, groups, files.look(groups.path), "its first or last bytes differ")
        try:
            yield file
        except Exception as error:
            # storage errors look like errors of Arrow's decoders
            was_read = not (file.failed or isinstance(error, (SourceError, GaveUpError)))
            if was_read and shows_corruption(error, filters=filters):
                raise make_corrupt_error(files, origin, error) from files.cause(error)
            raise


@contextmanager
def check_unchanged(files: Files, groups: RowGroups, origin: str, *, filters: bool = False) -> Iterator[int]:
    """Verify that the file stays the listed version inside the ``with`` block, as far as its store reports versions.

    Yields the stamp of that version.
    """
    with files.mapped_errors(origin, filters=filters):
        stamp = listed_stamp(files, groups) or _current_stamp(files, groups, origin)
        try:
            yield stamp
        except GaveUpError:
            raise
        except Exception:
            # a failure to decode can mean that the file has been replaced: report that instead
            _check_stamp(replace(files, retries=_ONCE), groups, origin, stamp)
            raise
        _check_stamp(files, groups, origin, stamp)


def make_corrupt_error(files: Files, name: str, error: BaseException) -> CorruptBlockError:
    """Make the error for a file that was read completely but cannot be decoded."""
    fix = (
        "it is corrupt: restore the file, write it again, exclude it, or skip its block with "
        "options(on_error='skip')"
    )
    return CorruptBlockError(str(files.error(f"{name}: cannot be read", error, fix)))


def listed_stamp(files: Files, groups: RowGroups) -> int:
    """The stamp recorded by the listing where it is comparable here, else 0."""
    return groups.stamp if files.comparable else 0


def _current_stamp(files: Files, groups: RowGroups, origin: str) -> int:
    now = files.look(groups.path)
    if now.size_bytes != groups.size_bytes:
        raise changed(origin, groups, now)
    return now.stamp


def _check_stamp(files: Files, groups: RowGroups, origin: str, stamp: int) -> None:
    now = files.look(groups.path)
    if now.stamp != stamp:
        raise changed(origin, groups, now)

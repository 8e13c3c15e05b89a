"""Opening the file of a block, and making sure that it is and stays the file that was listed.

A file is looked at when its footer is read, and again after each block; both must tell the
stamp that listing noted. Between two equal looks the file was one version, so whatever was read
meanwhile is of that version: a file that is replaced or deleted under a running epoch is an
error, and none of its rows are delivered. That takes one look for each block, and nothing more.

A manifest that was saved holds no stamps, and neither are those of a local file compared on
another machine. There the first look in each process is what later ones are compared with, and
a file that was replaced before it is known by its size and its footer's digest alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.io.parquet.chunk_decoder import StoredFooter
from windrow.io.parquet.footer_cache import FooterCache
from windrow.io.parquet.footers import read_footer
from windrow.io.storage.file_versions import Version
from windrow.io.storage.filesystems import Files
from windrow.io.storage.range_reads import RemoteFile, join_ranges, read_ranges
from windrow.io.storage.retries import GaveUpError, Retries

__all__ = ["BlockFile", "RowGroups", "changed", "open_block"]

# Blocks of a window are read in stored order by several tasks at once, each in a file of its own.
# A footer of very many row groups has megabytes, and takes three times as much when parsed.
_KNOWN = FooterCache(max_footers=64, max_bytes=16 * 2**20)

_ONCE = Retries(seconds=0)


@dataclass(frozen=True)
class RowGroups:
    """The locator of a block: row groups ``start`` to ``stop`` of one file as it was listed.

    ``stamp`` is what its store told of its version then; 0 where that is not known. It tells
    when a file was written, not what is in it, so blocks are equal without it.
    """

    path: str
    size_bytes: int
    footer_hash: bytes
    start: int
    stop: int
    stamp: int = field(default=0, compare=False)


@dataclass(frozen=True, eq=False)
class _KnownFile:
    """A file whose footer has been read: the footer, the file's stamp then, and what reads it."""

    footer: StoredFooter
    stamp: int
    filesystem: Any
    read_range: Any

    @property
    def serialized_size(self) -> int:
        return self.footer.serialized_size


@dataclass(frozen=True, eq=False)
class BlockFile:
    """The open file of a block.

    Attributes
    ----------
    file
        What Arrow reads.
    remote
        The same where it is in a store.
    """

    files: Files
    groups: RowGroups
    origin: str
    known: _KnownFile
    file: Any
    remote: RemoteFile | None

    @property
    def footer(self) -> StoredFooter:
        """Its footer, as it was listed."""
        return self.known.footer

    def fetch(self, groups: Iterable[int], names: Sequence[str]) -> None:
        """Begin to read columns of row groups of a file in a store, and to look at it when they have come."""
        if self.remote is not None:
            joined = join_ranges(self.footer.ranges(groups, names), self.groups.size_bytes)
            self.remote.fetch(joined, then=partial(self.files.look, self.groups.path))

    def check(self) -> None:
        """Make sure that all that was read so far is of the file that was listed."""
        looked = self.remote.after_all() if self.remote is not None else None
        self._compare(self.files.look(self.groups.path) if looked is None else looked)

    def _compare(self, now: Version) -> None:
        if now.stamp != self.known.stamp:
            raise changed(self.origin, self.groups, now)

    @contextmanager
    def mapped_errors(self, *, filters: bool = False) -> Iterator[None]:
        """Turn what goes wrong while reading, and perhaps filtering, into a SourceError that names the block."""
        with self.files.mapped_errors(self.origin):
            try:
                yield
            except (SourceError, GaveUpError):
                raise
            except Exception as error:
                # what cannot be decoded may be another file by now
                self._compare(replace(self.files, retries=_ONCE).look(self.groups.path))
                if self._is_corruption(error, filters):
                    raise self._corrupt(error) from self.files.cause(error)
                raise

    def _is_corruption(self, error: Exception, filters: bool) -> bool:
        """Whether the bytes were had, and are not what they should be.

        Arrow's decoders say so with an `OSError` that has no number, since no call of the system
        failed, or that something is invalid, as filters say of healthy values too. Errors of
        stores look alike, and are known by where they come from.
        """
        if self.remote is not None and self.remote.failed:
            return False
        if type(error) is pa.ArrowInvalid:
            return not filters
        return type(error) is OSError and error.errno is None

    def _corrupt(self, error: Exception) -> SourceError:
        fix = (
            "it is corrupt: restore the file, write it anew, or go on without this block with "
            "options(on_error='skip')"
        )
        mapped = self.files.error(f"{self.origin}: cannot be read", error, fix)
        return CorruptBlockError(str(mapped))


@contextmanager
def open_block(files: Files, groups: RowGroups, origin: str) -> Iterator[BlockFile]:
    """Open the file of a block.

    Raises
    ------
    SourceError
        If it is gone, cannot be read, or is not what was listed.
    """
    with files.mapped_errors(origin):
        known = _know(files, groups, origin)
        local = files.open(groups.path) if files.local else None
        remote = None if files.local else RemoteFile(known.read_range, groups.size_bytes, files.retries)
    with local if local is not None else pa.PythonFile(remote, mode="r") as file:
        block = BlockFile(files, groups, origin, known, file, remote)
        if files.local:
            with files.mapped_errors(origin):
                block.check()
        yield block


def _know(files: Files, groups: RowGroups, origin: str) -> _KnownFile:
    read = partial(_read_footer, files, groups, origin)
    # what was looked at first for a manifest is nothing to one that is opened later
    version = groups.stamp or files.opening
    key = f"{files.path(groups.path)}\n{version}\n".encode() + groups.footer_hash
    known: _KnownFile = _KNOWN.get(key, read)
    # the same name may stand for two files in two stores
    return known if known.filesystem == files.filesystem else read()


def _read_footer(files: Files, groups: RowGroups, origin: str) -> _KnownFile:
    footer = read_footer(files, groups.path, origin)
    now = Version(footer.size_bytes, footer.stamp)
    if footer.digest != groups.footer_hash or footer.size_bytes != groups.size_bytes:
        raise changed(origin, groups, now, "another footer")
    if groups.stamp and files.comparable and groups.stamp != footer.stamp:
        raise changed(origin, groups, now)
    read_range = None if files.local else read_ranges(files.filesystem, files.path(groups.path))
    return _KnownFile(StoredFooter(footer.metadata), footer.stamp, files.filesystem, read_range)


def changed(origin: str, groups: RowGroups, now: Version, how: str = "written anew since") -> SourceError:
    """The error for a file that is another by now."""
    if groups.size_bytes != now.size_bytes:
        how = f"{groups.size_bytes} bytes then, {now.size_bytes} now"
    return SourceError(
        f"{origin}: the file has changed since it was listed ({how}); list the dataset again "
        f"and make its manifest anew, or restore the file"
    )

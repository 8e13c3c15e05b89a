"""Opens the file of a block and verifies, before and after reading, that it is the version that was listed.

The file's version is checked when its footer is read, and again after each block; both checks must give the
stamp recorded by the listing. The bytes read between two equal checks belong to that version. So a file that
is replaced or deleted during an epoch raises an error, and none of its rows are delivered. The cost is one
metadata request (or stat) per block.

Saved manifests contain no stamps, and stamps of local files are not compared across machines. In these cases
each process compares with its own first check, and only the size and the footer digest detect a file that was
replaced before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.core.system.processes import call_in_forked_children
from windrow.io.parquet.footers import Footer, parse_footer, read_footer
from windrow.io.parquet.stored_chunks import StoredFooter
from windrow.io.storage.error_causes import shows_corruption
from windrow.io.storage.file_versions import RowGroups, Version, changed
from windrow.io.storage.filesystems import Files
from windrow.io.storage.footer_cache import FooterCache
from windrow.io.storage.range_reads import RemoteFile, join_ranges, read_ranges
from windrow.io.storage.retries import GaveUpError, Retries

# Several tasks read the blocks of a window concurrently in stored order, each from its own file.
# A footer with very many row groups takes megabytes, and three times as much when parsed.
# Footers of small files are cached for the next epoch too: parsing one costs more than reading the file's rows.
_FOOTER_CACHE = FooterCache(max_footers=2**16, max_bytes=32 * 2**20)

# a thread that looks for pages holds their lock, and a forked process does not have it
call_in_forked_children(_FOOTER_CACHE.forget)

_ONCE = Retries(seconds=0)


@dataclass(frozen=True, eq=False)
class _KnownFile:
    """A file whose footer has been read: the footer, the file's stamp at that time, and its range reader."""

    footer: StoredFooter
    stamp: int
    filesystem: Any
    read_range: Any

    @property
    def serialized_size(self) -> int:
        return self.footer.serialized_size


@dataclass(frozen=True, eq=False)
class BlockFile:
    """The open file of a block: ``file`` is what Arrow reads, ``remote`` the range reader behind it (None if local)."""

    files: Files
    groups: RowGroups
    origin: str
    known: _KnownFile
    file: Any
    remote: RemoteFile | None

    def __enter__(self) -> BlockFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; once more does nothing."""
        self.file.close()

    @property
    def footer(self) -> StoredFooter:
        return self.known.footer

    @property
    def group_bytes(self) -> list[int]:
        """The encoded bytes of the block's row groups, as the footer states them."""
        return self.footer.group_bytes[self.groups.start : self.groups.stop]

    def locate(self, groups: Sequence[int], row: int) -> str:
        """Name the row group of a row, of those of some row groups in their order."""
        sizes = [self.footer.metadata.row_group(group).num_rows for group in groups]
        at = int(np.searchsorted(np.cumsum(sizes), row, side="right"))
        return f"{self.files.name(self.groups.path)}, row group {groups[at]}"

    def fetch(self, groups: Iterable[int], paths: Sequence[str]) -> None:
        """Prefetch leaves of row groups of a remote file, and check its version when they have arrived."""
        self.fetch_ranges(self.footer.ranges(groups, paths))

    def fetch_ranges(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Prefetch ranges of a remote file, and check its version when they have arrived."""
        if self.remote is not None:
            joined = join_ranges(ranges, self.groups.size_bytes)
            self.remote.fetch(joined, then=partial(self.files.look, self.groups.path))

    def read_range(self, start: int, stop: int) -> pa.Buffer:
        """Read a range of the file, shorter where the file ends."""
        if self.remote is not None:
            stop = min(stop, self.groups.size_bytes)
            return pa.py_buffer(self.remote.read_at(start, stop) if start < stop else b"")
        self.file.seek(start)
        return self.file.read_buffer(stop - start)

    def check(self) -> None:
        """Verify that all bytes read so far belong to the version that was listed."""
        version = self.remote.fetch_result() if self.remote is not None else None
        self._compare(self.files.look(self.groups.path) if version is None else version)

    def _compare(self, now: Version) -> None:
        if now.stamp != self.known.stamp:
            raise changed(self.origin, self.groups, now)

    @contextmanager
    def mapped_errors(self, *, filters: bool = False) -> Iterator[None]:
        """Convert errors of reading (and filtering, with ``filters``) to a SourceError that names the block."""
        with self.files.mapped_errors(self.origin, filters=filters):
            try:
                yield
            except (SourceError, GaveUpError):
                raise
            except Exception as error:
                # if decoding failed, the file may have been replaced
                self._compare(replace(self.files, retries=_ONCE).look(self.groups.path))
                was_read = self.remote is None or not self.remote.failed
                if was_read and shows_corruption(error, filters=filters):
                    raise self._make_corrupt_error(error) from self.files.cause(error)
                raise

    def _make_corrupt_error(self, error: Exception) -> SourceError:
        fix = "it is corrupt: restore the file, rewrite it, or skip this block with options(on_error='skip')"
        mapped = self.files.error(f"{self.origin}: cannot be read", error, fix)
        return CorruptBlockError(str(mapped))


def open_block(files: Files, groups: RowGroups, origin: str) -> BlockFile:
    """Open the file of a block; a `SourceError` if it is not the version that was listed.

    A context, which closes the file.
    """
    with files.mapped_errors(origin):
        known = _get_known_file(files, groups, origin)
        if not files.local:
            remote = RemoteFile(known.read_range, groups.size_bytes, files.retries)
            return BlockFile(files, groups, origin, known, pa.PythonFile(remote, mode="r"), remote)
        file, version = files.open_version(groups.path)
    block = BlockFile(files, groups, origin, known, file, None)
    if version.stamp != known.stamp:
        block.close()
        raise changed(origin, groups, version)
    return block


def open_bytes(files: Files, groups: RowGroups, origin: str, data: pa.Buffer) -> BlockFile:
    """The file of a block, all of whose bytes are in memory; a `SourceError` if it is not the listed version."""
    with files.mapped_errors(origin):
        is_listed = bool(groups.stamp) and files.comparable

        def parse() -> Footer:
            stamp = groups.stamp if is_listed else files.look(groups.path).stamp
            version = Version(data.size, stamp)
            return parse_footer(lambda start, stop: data.slice(start, stop - start), version, origin)

        known = _get_known_file(files, groups, origin, parse)
        block = BlockFile(files, groups, origin, known, pa.BufferReader(data), None)
        if not is_listed:
            block.check()
        return block


def open_parquet(block: BlockFile, **options: Any) -> Any:
    """Open the file of a block for Arrow; the footer is parsed already."""
    import pyarrow.parquet as pq

    # pre_buffer=False: remote ranges are prefetched into memory already, or read one by one
    return pq.ParquetFile(
        block.file,
        metadata=block.footer.metadata,
        pre_buffer=False,
        page_checksum_verification=True,
        **options,
    )


def remember_footer(files: Files, path: str, footer: Footer) -> None:
    """Keep a footer that planning has parsed for the tasks of this process."""
    known = _make_known_file(files, path, footer)
    _FOOTER_CACHE.get(_footer_key(files, path, footer.version.stamp, footer.digest), lambda: known)


def _get_known_file(
    files: Files, groups: RowGroups, origin: str, read: Callable[[], Footer] | None = None
) -> _KnownFile:
    parse = partial(_read_footer, files, groups, origin, read)
    key = _footer_key(files, groups.path, groups.stamp, groups.footer_hash)
    known: _KnownFile = _FOOTER_CACHE.get(key, parse)
    if known.filesystem == files.filesystem:
        return known
    # Another client of Arrow for the same version, by its stamp and footer. What is read is compared with that stamp.
    return replace(
        known, filesystem=files.filesystem, read_range=read_ranges(files.filesystem, files.path(groups.path))
    )


def _footer_key(files: Files, path: str, stamp: int, digest: bytes) -> bytes:
    # without comparable stamps, versions are compared only within one opening of the dataset
    version = stamp if stamp and files.comparable else files.opening
    # an entry keeps its client's connection to the file, and an ETag is the same for all clients
    kind, token = type(files.filesystem), getattr(files.filesystem, "_fs_token", "")
    client = f"{kind.__module__}.{kind.__qualname__} {token}"
    return f"{files.path(path)}\n{version}\n{client}\n".encode() + digest


def _make_known_file(files: Files, path: str, footer: Footer) -> _KnownFile:
    read_range = None if files.local else read_ranges(files.filesystem, files.path(path))
    return _KnownFile(StoredFooter(footer.metadata), footer.version.stamp, files.filesystem, read_range)


def _read_footer(
    files: Files, groups: RowGroups, origin: str, read: Callable[[], Footer] | None
) -> _KnownFile:
    footer = read_footer(files, groups.path, origin) if read is None else read()
    now = footer.version
    if footer.digest != groups.footer_hash or now.size_bytes != groups.size_bytes:
        raise changed(origin, groups, now, "different footer")
    if groups.stamp and files.comparable and groups.stamp != now.stamp:
        raise changed(origin, groups, now)
    return _make_known_file(files, groups.path, footer)

"""Formats whose files hold row groups, stated in the file or estimated from its first rows; and their block reader."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from windrow.core.arrow_support import empty_table
from windrow.core.errors import SourceError
from windrow.core.phase_clock import counting, current_clock
from windrow.core.source import BlockAddress, BlockPart
from windrow.io.catalog.file_format import FileReading, join_tables
from windrow.io.catalog.hive_partitions import conform
from windrow.io.catalog.manifest import END_BYTES, Fragment, FragmentFacts, digest_ends
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.io.formats.block_files import OpenFile, open_file, open_path
from windrow.io.formats.file_encodings import decompress, find_codec
from windrow.io.storage.file_versions import RowGroups
from windrow.io.storage.filesystems import Files

# The columns of a part should fit the CPU cache; smaller parts cost more Python per row.
PART_BYTES = 8 * 2**20
# files of at least this size are read as parts of their own
_LARGE_FILE_BYTES = 2**20
# small remote files that are read concurrently
_READ_THREADS = 8

T = TypeVar("T")
HEAD_BYTES = 256 * 1024
# the decompressed head is several times as large
_COMPRESSED_HEAD_BYTES = 64 * 1024
_GROWTH = 4


class ChoiceError(ValueError):
    """The columns that were chosen do not suit a file that is sound; the text continues its name, with the fix."""


class RowGroupFormat:
    """A `windrow.io.catalog.file_format.Format` whose files are decoded row group by row group.

    Subclasses are frozen, picklable values with the user's options. They define ``name``, ``options``,
    `summarise` and `tables`.
    """

    rows_known = True
    joins_files = False
    cut_sizes = None
    # what corrupt files make `summarise` raise
    corruption: tuple[type[Exception], ...] = ()
    # prefetched at the beginning of a file, for `summarise`
    head_bytes = END_BYTES

    def look(self, files: Files, path: str) -> Fragment:
        """Inspect a file: its version, a digest of its two ends, and what `summarise` finds."""
        version = files.look(path)
        size = version.size_bytes
        with open_path(files, path, size) as file:
            file.fetch([(0, min(self.head_bytes, size)), (max(size - END_BYTES, 0), size)])
            digest = digest_ends(file.read_range, size)
            try:
                facts = self.summarise(file)
            except self.corruption as error:
                # a plain ValueError comes from this package and continues the sentence after the file's name
                why = str(error) if type(error) is ValueError else f"is truncated or corrupt ({error})"
                fix = "restore it, write it again, or exclude it"
                if isinstance(error, ChoiceError):
                    raise SourceError(f"{file.name} {error}") from files.cause(error)
                if isinstance(error, NotImplementedError):
                    why, fix = (
                        f"holds what cannot be read here ({error})",
                        "write it in another way, or exclude it",
                    )
                raise SourceError(f"{file.name} {why}; {fix}") from files.cause(error)
        return Fragment(version, digest, facts)

    def reader(self, reading: FileReading) -> RowGroupReader:
        return RowGroupReader(**vars(reading), format=self.for_columns(reading.schema, reading.stored))

    def for_columns(self, schema: pa.Schema, stored: pa.Schema) -> RowGroupFormat:
        """The same format, prepared to read some of the stored columns."""
        return self

    def summarise(self, file: OpenFile) -> FragmentFacts:
        """Find the columns, row groups and sizes of a file, from as little of it as possible."""
        raise NotImplementedError

    def can_map(self, schema: pa.Schema) -> bool:
        """Whether parts can be views of a memory-mapped file, valid while it is open; most formats copy anyway."""
        return True

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read row groups ``start`` to ``stop`` as one table; parameters as of `tables`."""
        tables = list(self.tables(file, start, stop, schema))
        return pa.concat_tables(tables) if tables else empty_table(schema)

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read row groups as tables of about one part each, single-threaded, rows in stored order.

        ``schema`` holds the needed columns, with the types unified over all files. The tables' types
        can be narrower, since the caller casts, and additional columns are ignored.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class RowGroupReader(FileReading):
    """Reads blocks of a `RowGroupFormat`."""

    format: RowGroupFormat

    def read(self, address: BlockAddress) -> pa.Table:
        return join_tables(self._read_all(address.locator, address))

    @property
    def maps_files(self) -> bool:
        return self.files.local and self.format.can_map(pa.schema(self.stored_of(self.needed_columns())))

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block part by part: large files in the parts of their format, small files several to a part."""
        for part in split_into_parts(address.locator):
            if len(part) == 1:
                yield from self._read_parts(part[0], address)
            else:
                yield join_tables(self._read_all(part, address))

    def _read_all(self, locator: Sequence[RowGroups], address: BlockAddress) -> Iterable[pa.Table]:
        """Read some files of a block; remote files concurrently, since each costs requests."""

        def read(groups: RowGroups) -> pa.Table:
            return self._read(groups, self.origin_of(groups, address))

        if self.files.local or len(locator) == 1:
            return map(read, locator)
        clock, lanes = current_clock(), min(_READ_THREADS, len(locator))

        def read_beside(groups: RowGroups) -> pa.Table:
            with counting(clock, lanes):
                return read(groups)

        with ThreadPoolExecutor(lanes, "windrow-files") as threads:
            return list(threads.map(read_beside, locator))

    def _read(self, groups: RowGroups, origin: str) -> pa.Table:
        needed = self.needed_columns()
        with open_file(self.files, groups, origin, filters=self.filter is not None) as file:
            table = self.format.read(file, groups.start, groups.stop, pa.schema(self.stored_of(needed)))
            return self._finish(table, needed, groups.path, origin)

    def _read_parts(self, groups: RowGroups, address: BlockAddress) -> Iterator[BlockPart]:
        """Yield parts while the file is open; the file is verified again after the last part is consumed."""
        needed = self.needed_columns()
        stored = pa.schema(self.stored_of(needed))
        mapped, filters = self.format.can_map(stored), self.filter is not None
        origin = self.origin_of(groups, address)
        with open_file(self.files, groups, origin, mapped=mapped, filters=filters) as file:
            for table in self.format.tables(file, groups.start, groups.stop, stored):
                yield self._finish(table, needed, groups.path, origin)

    def _finish(self, table: pa.Table, needed: pa.Schema, path: str, origin: str) -> pa.Table:
        def locate(row: int) -> str:
            return origin

        return self.keep_rows(conform(table, needed, self.partitions, path, locate), locate)


def group_by_bytes(items: Iterable[T], count_bytes: Callable[[T], int]) -> Iterator[list[T]]:
    """Group adjacent items; a group ends with the item that fills a part."""
    group: list[T] = []
    group_bytes = 0
    for item in items:
        group.append(item)
        group_bytes += count_bytes(item)
        if group_bytes >= PART_BYTES:
            yield group
            group, group_bytes = [], 0
    if group:
        yield group


@contextmanager
def corruption_is_invalid(corruption: tuple[type[Exception], ...]) -> Iterator[None]:
    """Raise what corrupt files cause as ``ArrowInvalid``, which `open_file` recognises."""
    try:
        yield
    except NotImplementedError as error:
        raise pa.ArrowNotImplementedError(str(error)) from error
    except corruption as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise pa.ArrowInvalid(f"{kind}{error}") from error


def split_into_parts(locator: Sequence[RowGroups]) -> Iterator[list[RowGroups]]:
    """Split a block's files into parts: each large file alone, small files together."""
    part: list[RowGroups] = []
    part_bytes = 0
    for groups in locator:
        is_large = groups.size_bytes >= _LARGE_FILE_BYTES
        if part and (is_large or part_bytes + groups.size_bytes > PART_BYTES):
            yield part
            part, part_bytes = [], 0
        if is_large:
            yield [groups]
        else:
            part.append(groups)
            part_bytes += groups.size_bytes
    if part:
        yield part


@dataclass(frozen=True, eq=False)
class Head:
    """The first bytes of a file, decompressed: all of them if ``whole``.

    ``content_bytes`` is the decompressed size of the file; an estimate unless ``whole``.
    """

    data: pa.Buffer
    whole: bool
    content_bytes: int


class SampledFormat(RowGroupFormat):
    """A format whose files state neither rows nor types."""

    rows_known = False
    head_bytes = HEAD_BYTES

    def heads(self, file: OpenFile) -> Iterator[Head]:
        """Yield ever longer heads of a file; the last one is the whole file."""
        raise NotImplementedError

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        """Estimate what a file holds from the rows in its head; none if it has no whole row."""
        raise NotImplementedError

    def summarise(self, file: OpenFile) -> FragmentFacts:
        """Describe the file by its shortest head that has rows."""
        for head in self.heads(file):
            facts = self.describe(file, head)
            if facts.rows or head.whole:
                return facts
        raise AssertionError("the last head is the whole file")


class RecordFormat(SampledFormat):
    """A format of records that only a pass over the whole file finds: each file is a row group."""

    compression: str | None

    def heads(self, file: OpenFile) -> Iterator[Head]:
        return read_heads(file, find_codec(self.compression, file.name))

    def read_content(self, file: OpenFile) -> pa.Buffer:
        """Read and decompress a whole file."""
        file.fetch([(0, file.size_bytes)])
        return decompress(find_codec(self.compression, file.name), file.read_range(0, file.size_bytes))


def read_heads(file: OpenFile, codec: str | None) -> Iterator[Head]:
    """Yield ever longer heads of a file; the last one is the whole file."""
    stored = HEAD_BYTES if codec is None else _COMPRESSED_HEAD_BYTES
    while stored < file.size_bytes:
        data = decompress(codec, file.read_range(0, stored), whole=False)
        yield Head(data, False, max(file.size_bytes * data.size // stored, 1))
        stored *= _GROWTH
    data = decompress(codec, file.read_range(0, file.size_bytes))
    yield Head(data, True, data.size)


def estimate_facts(sample: pa.Table, sample_bytes: int, group_bytes: Sequence[int]) -> FragmentFacts:
    """Extrapolate the rows and bytes of row groups from the first rows of a file.

    ``sample_bytes`` are the bytes that these rows occupy in the file, and ``group_bytes``, (row
    groups,), the uncompressed bytes of each row group. A file without rows has no row groups.
    """
    groups = group_bytes if sample.num_rows else []
    shares = [size / max(sample_bytes, 1) for size in groups]
    variable = {
        field.name: [max(round(column.nbytes * share), 1) for share in shares]
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if fixed_bits(field.type) is None
    }
    return FragmentFacts(
        schema=sample.schema,
        rows=[max(round(sample.num_rows * share), 1) for share in shares],
        encoded_bytes=list(groups),
        variable={name: (sizes, sizes) for name, sizes in variable.items()},
        nulls=dict.fromkeys(sample.schema.names),
    )

"""The block reader of formats that decode row groups to Arrow tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import pyarrow as pa

from windrow.core.source import BlockAddress, BlockPart
from windrow.io.catalog.filters import filter_columns, kept_places
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.schema_conversion import conform
from windrow.io.formats.block_files import OpenFile, open_file
from windrow.io.storage.filesystems import Files
from windrow.io.storage.verified_files import RowGroups

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["PART_BYTES", "PartedFormat", "TableFormat", "TableReader", "keep_rows", "needed_columns"]

# The columns of a part should fit the CPU cache; smaller parts cost more Python per row.
PART_BYTES = 8 * 2**20
# files of at least this size are read as parts of their own
_LARGE_FILE_BYTES = 2**20
# small remote files that are read concurrently
_READ_THREADS = 8


class TableFormat(Protocol):
    """A format that reads row groups of a file as one table."""

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read row groups ``start`` to ``stop``, single-threaded, rows in stored order.

        Parameters
        ----------
        schema
            The needed columns, with the types unified over all files. The file's types can be
            narrower: the caller casts. Additional columns are ignored.
        """
        ...


@runtime_checkable
class PartedFormat(TableFormat, Protocol):
    """A format that can read row groups as a sequence of tables, each about one part in size."""

    def can_map(self, schema: pa.Schema) -> bool:
        """Whether columns can be views of a memory-mapped file; such parts are valid only while it is open."""
        ...

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read the same rows as `read`, one part at a time."""
        ...


@dataclass(frozen=True)
class TableReader:
    """Reads blocks of a ``TableFormat``; see ``windrow.io.formats.format.FileFormat.reader``."""

    format: TableFormat
    files: Files
    schema: pa.Schema
    stored: pa.Schema
    partitions: Partitions
    filter: pc.Expression | None

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, single-threaded, rows in stored order.

        Raises
        ------
        CorruptBlockError
            If the file cannot be decoded or does not fit the schema.
        SourceError
            If a file is missing, unreadable, or has changed since it was listed.
        """
        return _concat(self._read_all(address.locator, address))

    @property
    def maps_files(self) -> bool:
        """Whether parts can be views of memory-mapped files."""
        needed = needed_columns(self.schema, self.stored, self.partitions, self.filter)
        return (
            self.files.local
            and isinstance(self.format, PartedFormat)
            and self.format.can_map(self._stored_columns(needed))
        )

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block part by part: large files in the parts of their format, small files several to a part."""
        for part in _split_into_parts(address.locator):
            if len(part) == 1 and isinstance(self.format, PartedFormat):
                yield from self._read_parts(self.format, part[0], address)
            else:
                yield _concat(self._read_all(part, address))

    def _read_all(self, locator: Sequence[RowGroups], address: BlockAddress) -> Iterable[pa.Table]:
        """Read some files of a block; remote files concurrently, since each costs requests."""

        def read(groups: RowGroups) -> pa.Table:
            return self._read(groups, _error_origin(self.files, groups, address))

        if self.files.local or len(locator) == 1:
            return map(read, locator)
        with ThreadPoolExecutor(min(_READ_THREADS, len(locator)), "windrow-files") as threads:
            return list(threads.map(read, locator))

    def _read(self, groups: RowGroups, origin: str) -> pa.Table:
        needed = needed_columns(self.schema, self.stored, self.partitions, self.filter)
        with open_file(self.files, groups, origin, filters=self.filter is not None) as file:
            table = self.format.read(file, groups.start, groups.stop, self._stored_columns(needed))
            return self._finish(table, needed, groups.path)

    def _read_parts(
        self, format: PartedFormat, groups: RowGroups, address: BlockAddress
    ) -> Iterator[BlockPart]:
        """Yield parts while the file is open; the file is verified again after the last part is consumed."""
        needed = needed_columns(self.schema, self.stored, self.partitions, self.filter)
        stored = self._stored_columns(needed)
        origin, filters = _error_origin(self.files, groups, address), self.filter is not None
        with open_file(self.files, groups, origin, mapped=format.can_map(stored), filters=filters) as file:
            for table in format.tables(file, groups.start, groups.stop, stored):
                yield self._finish(table, needed, groups.path)

    def _finish(self, table: pa.Table, needed: pa.Schema, path: str) -> pa.Table:
        return keep_rows(conform(table, needed, self.partitions, path), self.filter, self.schema)

    def _stored_columns(self, needed: pa.Schema) -> pa.Schema:
        return pa.schema([field for field in needed if field.name not in self.partitions.schema.names])


def needed_columns(
    schema: pa.Schema, stored: pa.Schema, partitions: Partitions, row_filter: pc.Expression | None
) -> pa.Schema:
    """The columns of a block plus those that only the filter needs."""
    if row_filter is None:
        return schema
    all_columns = pa.schema([*stored, *partitions.schema])
    needed = filter_columns(row_filter, all_columns)
    names = all_columns.names if needed is None else [*schema.names, *needed]
    return pa.schema([all_columns.field(name) for name in dict.fromkeys(names)])


def keep_rows(table: pa.Table, row_filter: pc.Expression | None, schema: pa.Schema) -> pa.Table:
    """Select the columns of ``schema`` from the rows that pass the filter."""
    if row_filter is not None:
        table = table.take(pa.array(kept_places(row_filter, table)))
    return table.select(schema.names)


def _error_origin(files: Files, groups: RowGroups, address: BlockAddress) -> str:
    """What errors name: the block, or the single file where a block has several."""
    return address.origin if len(address.locator) == 1 else files.name(groups.path)


def _split_into_parts(locator: Sequence[RowGroups]) -> Iterator[list[RowGroups]]:
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


def _concat(tables: Iterable[pa.Table]) -> pa.Table:
    all_tables = list(tables)
    return all_tables[0] if len(all_tables) == 1 else pa.concat_tables(all_tables)

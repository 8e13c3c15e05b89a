"""A snapshot of a table of Parquet files, as a source: blocks have deletes, renames and constants applied."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windrow.core.chosen_rows import take_rows
from windrow.core.errors import PlanError
from windrow.core.source import BlockAddress, BlockPart, SourceIdentity
from windrow.core.text_types import text_array
from windrow.io.catalog.column_selection import select_columns
from windrow.io.catalog.discovery import build_manifest
from windrow.io.catalog.file_format import FileReading, Format, join_addresses, join_tables
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.filters import check_filter, filter_columns, kept_places, with_filter_columns
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.manifest import HASH_BYTES, Fragment, Manifest, VariableBytes, narrowed
from windrow.io.catalog.safe_casts import cast_table
from windrow.io.catalog.value_sizes import fixed_bits
from windrow.io.parquet.block_reader import ParquetFormat, ParquetReader
from windrow.io.storage.filesystems import Files
from windrow.io.tables.column_mapping import TableColumns, plain_schema
from windrow.io.tables.data_files import FittedFile, LoggedFile, TableFiles, TableRowGroups, fit_file

if TYPE_CHECKING:
    import pyarrow.compute as pc


@dataclass(frozen=True)
class ConstantColumns(Partitions):
    """Columns that have one value per file; ``everywhere`` holds the values for all paths, if they are equal."""

    by_path: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    everywhere: tuple[Any, ...] | None = None

    def values(self, path: str) -> tuple[Any, ...]:
        return self.by_path[path] if self.everywhere is None else self.everywhere

    def table(self, paths: Sequence[str]) -> pa.Table:
        return self.to_table([self.values(path) for path in paths])


@dataclass(frozen=True)
class TableFilesReader:
    """Reads blocks of a table's files.

    A file that stores the table's columns under their names, without deleted rows, is read like any
    other Parquet file; columns that it lacks are constants, like partition columns. For other files,
    the live rows are taken after decoding. ``table_schema`` has all columns of the table, which the filter
    can see; ``needed`` are the columns that it needs.
    """

    files: TableFiles
    schema: pa.Schema
    table_schema: pa.Schema
    filter: pc.Expression | None
    needed: frozenset[str]

    def read(self, address: BlockAddress) -> pa.Table:
        return join_tables(self._read(*alike) for alike in self._split(address))

    def _read(self, groups: TableRowGroups, address: BlockAddress) -> pa.Table:
        if self._is_plain(groups):
            return self._reader(groups, self.table_schema, self.schema, self.filter).read(address)
        return self._read_live(groups, address)

    def _split(self, address: BlockAddress) -> Iterator[tuple[TableRowGroups, BlockAddress]]:
        """Split a block into adjacent files that one reader can read: those that are plain, with equal constants."""
        files: list[TableRowGroups] = []
        for groups in address.locator:
            is_alike = (
                files
                and self._is_plain(groups)
                and self._is_plain(files[-1])
                and groups.constants == files[-1].constants
            )
            if files and not is_alike:
                yield files[0], self._address_of(files, address)
                files = []
            files.append(groups)
        yield files[0], self._address_of(files, address)

    def _address_of(self, files: Sequence[TableRowGroups], address: BlockAddress) -> BlockAddress:
        if len(files) == len(address.locator):
            return address
        return replace(address, locator=tuple(files), origin=files[0].locate(self.files.name(files[0].path)))

    @property
    def joins_blocks(self) -> bool:
        return self.files.local and self.filter is None

    def join_blocks(self, addresses: Sequence[BlockAddress]) -> BlockAddress | None:
        """The address of one block with the rows of these, in their order."""
        return join_addresses(self.files, addresses)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block part by part; as a single part if rows have to be dropped."""
        for groups, some in self._split(address):
            yield from self._parts(groups, some)

    def _parts(self, groups: TableRowGroups, address: BlockAddress) -> Iterator[BlockPart]:
        if self._is_plain(groups):
            yield from self._reader(groups, self.table_schema, self.schema, self.filter).parts(address)
        elif groups.deleted or self.filter is not None:
            yield self._read_live(groups, address)
        else:
            for part in self._physical_reader(groups, self.schema).parts(address):
                yield _RenamedPart(part, self.schema)

    def _is_plain(self, groups: TableRowGroups) -> bool:
        return groups.plain and self.needed.isdisjoint(groups.cast)

    def _physical_reader(self, groups: TableRowGroups, selected: pa.Schema) -> ParquetReader:
        """A reader of columns under their physical names."""
        renamed = pa.schema([self._rename(groups, column) for column in self.table_schema])
        chosen = pa.schema([self._rename(groups, column) for column in selected])
        return self._reader(groups, renamed, chosen, None)

    def _reader(
        self,
        groups: TableRowGroups,
        table_schema: pa.Schema,
        selected: pa.Schema,
        filter: pc.Expression | None,
    ) -> ParquetReader:
        pairs = list(zip(self.table_schema.names, table_schema, strict=True))
        values = dict(groups.constants)
        constant = pa.schema([column for name, column in pairs if name in values])
        stored = pa.schema([column for name, column in pairs if name not in values])
        constants = tuple(values[name] for name, _ in pairs if name in values)
        return ParquetReader(
            self.files, selected, stored, ConstantColumns(constant, everywhere=constants), filter
        )

    def _rename(self, groups: TableRowGroups, column: pa.Field[Any]) -> pa.Field[Any]:
        if column.name in dict(groups.constants):
            # avoid a clash with a physical column of the same name
            return column.with_name(f"{column.name}\0constant")
        return column.with_name(dict(groups.names).get(column.name, column.name))

    def _read_live(self, groups: TableRowGroups, address: BlockAddress) -> pa.Table:
        selected = with_filter_columns(
            self.schema, self.table_schema, [name for name in self.table_schema.names if name in self.needed]
        )
        stored = self._physical_reader(groups, selected).read(address)
        table = pa.Table.from_arrays(stored.columns, schema=selected)
        with self.files.mapped_errors(address.origin, filters=self.filter is not None):
            if groups.deleted:
                table = take_rows(table, groups.live_rows())
            if self.filter is not None:
                table = take_rows(table, kept_places(self.filter, table))
            return cast_table(table, self.schema, lambda row: address.origin)


@dataclass(frozen=True, eq=False)
class _RenamedPart:
    """A part with the table's column names; all else is as in the part ``stored``."""

    stored: BlockPart
    schema: pa.Schema

    @property
    def num_rows(self) -> int:
        return self.stored.num_rows

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stored, name)

    def select(self, columns: list[int]) -> pa.Table:
        table = self.stored.select(columns)
        schema = pa.schema([self.schema.field(column) for column in columns])
        return pa.Table.from_arrays(table.columns, schema=schema)


@dataclass(frozen=True)
class Snapshot:
    """A table at one commit: the format, the table's own id, the commit's id, and its name in messages."""

    kind: str
    table: str
    version: str
    label: str

    def stamp(self, fingerprint: str, schema: pa.Schema) -> str:
        """A digest of the table, the commit, the columns and the files."""
        columns = "\n".join(f"{column.name}: {column.type}" for column in schema)
        parts = (self.kind, self.table, self.version, columns, fingerprint)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@dataclass(frozen=True)
class SnapshotFormat:
    """The Parquet files of a table; a `windrow.io.catalog.file_format.Format`."""

    options = ""
    rows_known = True
    joins_files = True
    # deleted rows are not among those that are divided
    cut_sizes = None

    name: str
    table_schema: pa.Schema

    def look(self, files: Files, path: str) -> Fragment:
        return ParquetFormat().look(files, path)

    def reader(self, reading: FileReading) -> TableFilesReader:
        """A reader of blocks whose locators are `TableRowGroups`."""
        files, filter = reading.files, reading.filter
        assert isinstance(files, TableFiles), "open_snapshot() passes them"
        needed = [] if filter is None else filter_columns(filter, self.table_schema)
        names = frozenset(self.table_schema.names if needed is None else needed)
        return TableFilesReader(files, reading.schema, self.table_schema, filter, names)


@dataclass(frozen=True)
class _FittingFormat(SnapshotFormat):
    """Inspects files and records how each fits the table; used only while opening a snapshot."""

    columns: TableColumns
    logged: Mapping[str, LoggedFile]
    fitted: dict[str, FittedFile]

    def look(self, files: Files, path: str) -> Fragment:
        fragment = super().look(files, path)
        facts, self.fitted[path] = fit_file(fragment.facts, self.logged[path], self.columns, files.name(path))
        return replace(fragment, facts=facts)


@dataclass(frozen=True, eq=False, repr=False)
class TableSource(FileSource):
    """The Parquet files of a table's snapshot; a ``windrow.core.source.Source``.

    Deleted rows are not part of it, and have no row ids.
    """

    snapshot: Snapshot
    # how to read each file, by path
    fitted: Mapping[str, FittedFile]
    # files that the filter excludes by their statistics
    pruned_files: int

    @property
    def fingerprint(self) -> str:
        return self.snapshot.stamp(self.manifest.fingerprint, self.manifest.schema)

    def identity(self, files: int | None = None) -> SourceIdentity:
        """What the row order depends on; another commit is another identity, even with equal data."""
        known = super().identity(files)
        return replace(known, fingerprint=self.snapshot.stamp(known.fingerprint, self.manifest.schema))

    def describe(self) -> str:
        pruned = f", {self.pruned_files:,} files left out by the filter" if self.pruned_files else ""
        return f"{self.snapshot.label}{pruned}; {super().describe()}"

    @property
    def schema_changes(self) -> tuple[str, ...]:
        selected = frozenset(self.schema.names)
        cast = Counter(name for file in self.fitted.values() for name in file.cast if name in selected)
        return tuple(
            f"{name}: another type in {files:,} of {len(self.fitted):,} files, read as {self.schema.field(name).type}"
            for name, files in cast.items()
        )

    @property
    def reads(self) -> tuple[str, ...]:
        """The table's directory, which no write can replace, even if the filter excludes all files."""
        return (self.files.url,) if self.files.url.strip("/") else ()

    def save_manifest(self, path: str | os.PathLike[str]) -> None:
        """Always raise: the table's log is its manifest."""
        raise PlanError(
            f"{self!r} has no manifest to save: the table keeps it; pass version= or snapshot_id= to read it again"
        )

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        return tuple(map(self._fit, super().addresses(blocks)))

    def _fit(self, address: BlockAddress) -> BlockAddress:
        located = tuple(self.fitted[groups.path].locate(groups) for groups in address.locator)
        return replace(address, locator=located)


def open_snapshot(
    files: TableFiles,
    snapshot: Snapshot,
    logged: Sequence[LoggedFile],
    columns: TableColumns,
    *,
    select: Sequence[str] | None,
    filter: pc.Expression | None,
    target_block_bytes: int | None,
    pruned_files: int = 0,
) -> TableSource:
    """Inspect the files of a snapshot, in the order of their names."""
    table_schema = plain_schema(columns.schema)
    schema = select_columns(table_schema, select)
    if filter is not None:
        check_filter(filter, table_schema)
    format = SnapshotFormat(f"{snapshot.kind} table", table_schema)
    known = {file.path: file for file in logged}
    fitting = _FittingFormat(format.name, table_schema, columns, known, {})
    manifest = _build_manifest(files, sorted(known), fitting, columns)
    names = columns.partitions.names
    log_values = {path: tuple(file.constants.get(name) for name in names) for path, file in known.items()}
    return TableSource(
        files,
        manifest,
        schema,
        columns.stored,
        None,
        ConstantColumns(columns.partitions, by_path=log_values),
        filter,
        target_block_bytes,
        format,
        snapshot,
        fitting.fitted,
        pruned_files,
    )


def _build_manifest(
    files: TableFiles, paths: Sequence[str], fitting: Format, columns: TableColumns
) -> Manifest:
    if paths:
        return build_manifest(files, paths, fitting)
    none = np.zeros(0, np.int64)
    nothing = VariableBytes(narrowed(none), narrowed(none))
    return Manifest(
        root=files.url,
        schema=columns.stored,
        paths=text_array([]),
        file_bytes=none,
        footer_hashes=np.zeros((0, HASH_BYTES), np.uint8),
        row_group_ends=none,
        rows=narrowed(none),
        encoded_bytes=narrowed(none),
        variable={column.name: nothing for column in columns.stored if fixed_bits(column.type) is None},
        null_counts=dict.fromkeys(columns.stored.names, 0),
        format=fitting.name,
    )

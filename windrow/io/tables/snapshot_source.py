"""A snapshot of a table of Parquet files, as a source."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.source import BlockAddress, SourceIdentity
from windrow.core.text_types import text_array
from windrow.io.catalog.column_selection import select_columns
from windrow.io.catalog.discovery import build_manifest
from windrow.io.catalog.file_source import FileSource
from windrow.io.catalog.filters import check_filter, filter_columns
from windrow.io.catalog.fragments import HASH_BYTES, Fragment
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.manifest import Manifest, VariableBytes, narrowed
from windrow.io.catalog.value_widths import fixed_bits
from windrow.io.formats.format import Format
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.storage.filesystems import Files
from windrow.io.tables.column_mapping import TableColumns, plain_schema
from windrow.io.tables.data_files import FittedFile, LoggedFile, TableFiles, fit_file
from windrow.io.tables.snapshot_reader import ConstantColumns, TableFilesReader

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["Snapshot", "TableSource", "open_snapshot"]


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
    """The Parquet files of a table; a `windrow.io.formats.format.Format`."""

    options = ""
    rows_known = True
    joins_files = True
    # deleted rows are not among those that are divided
    cut_sizes = None

    name: str
    table_schema: pa.Schema

    def look(self, files: Files, path: str) -> Fragment:
        """Inspect a file as it is stored."""
        return ParquetFormat().look(files, path)

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> TableFilesReader:
        """A reader of blocks whose locators are `TableRowGroups`."""
        assert isinstance(files, TableFiles), "open_snapshot() passes them"
        needed = [] if row_filter is None else filter_columns(row_filter, self.table_schema)
        names = frozenset(self.table_schema.names if needed is None else needed)
        return TableFilesReader(files, schema, self.table_schema, row_filter, names)


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

    def __reduce__(self) -> tuple[Any, ...]:
        columns = (self.schema, self.stored, self.given, self.partitions)
        fields = (self.files, self.manifest, *columns, self.filter)
        more = (self.target_block_bytes, self.format, self.snapshot, self.fitted, self.pruned_files)
        return TableSource, (*fields, *more)

    @property
    def fingerprint(self) -> str:
        """A digest of the table, the commit, the columns and the files."""
        return self.snapshot.stamp(self.manifest.fingerprint, self.manifest.schema)

    def identity(self, files: int | None = None) -> SourceIdentity:
        """What the row order depends on; another commit is another identity, even with equal data."""
        known = super().identity(files)
        return replace(known, fingerprint=self.snapshot.stamp(known.fingerprint, self.manifest.schema))

    def describe(self) -> str:
        """One line for ``explain()``: commit, fragments, row groups, columns."""
        pruned = f", {self.pruned_files:,} files left out by the filter" if self.pruned_files else ""
        return f"{self.snapshot.label}{pruned}; {super().describe()}"

    @property
    def schema_changes(self) -> tuple[str, ...]:
        """How files differ from the table's columns; see `windrow.core.source.schema_changes`."""
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

    def _address(self, block: int) -> BlockAddress:
        address = super()._address(block)
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

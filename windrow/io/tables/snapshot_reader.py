"""The block reader of Delta and Iceberg tables: Parquet blocks with deleted rows, renames and constants applied."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.frame_of_reference import Packing
from windrow.core.source import BlockAddress, BlockPart, ScatteredColumn, can_scatter, column_bounds
from windrow.io.catalog.filters import kept_places, with_filter_columns
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.safe_casts import cast_table
from windrow.io.parquet.block_reader import ParquetReader
from windrow.io.tables.data_files import TableFiles, TableRowGroups

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["ConstantColumns", "TableFilesReader"]


@dataclass(frozen=True)
class ConstantColumns(Partitions):
    """Columns that have one value per file; ``everywhere`` holds the values for all paths, if they are equal."""

    by_path: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    everywhere: tuple[Any, ...] | None = None

    def values(self, path: str) -> tuple[Any, ...]:
        """The value of each column in a file."""
        return self.by_path[path] if self.everywhere is None else self.everywhere

    def table(self, paths: Sequence[str]) -> pa.Table:
        """(paths,) a row of values for each path."""
        rows = [self.values(path) for path in paths]
        columns = [
            pa.array([row[place] for row in rows], column.type) for place, column in enumerate(self.schema)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


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
        """Read one block, single-threaded, rows in stored order."""
        tables = [self._read(*alike) for alike in self._split(address)]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

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
        return replace(address, locator=tuple(files), origin=self.files.name(files[0].path))

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
                table = table.take(pa.array(groups.live_rows()))
            if self.filter is not None:
                table = table.take(pa.array(kept_places(self.filter, table)))
            return cast_table(table, self.schema, lambda row: address.origin)


@dataclass(frozen=True, eq=False)
class _RenamedPart:
    """A part with the table's column names."""

    part: BlockPart
    schema: pa.Schema

    @property
    def num_rows(self) -> int:
        return self.part.num_rows

    def select(self, columns: list[int]) -> pa.Table:
        table = self.part.select(columns)
        schema = pa.schema([self.schema.field(column) for column in columns])
        return pa.Table.from_arrays(table.columns, schema=schema)

    def bounds(self, column: int) -> tuple[int, int] | None:
        return column_bounds(self.part, column)

    def scatter_values(
        self,
        columns: Sequence[int],
        packings: Sequence[Packing],
        targets: NDArray[np.uint32],
        outs: Sequence[NDArray[np.uint8]],
        pool: BufferPool,
    ) -> Sequence[ScatteredColumn | None]:
        if not can_scatter(self.part):
            return [None] * len(columns)
        return self.part.scatter_values(columns, packings, targets, outs, pool)

    def decode_nested(self, column: int, pool: BufferPool) -> pa.Array | None:
        if not can_scatter(self.part):
            return None
        return self.part.decode_nested(column, pool)

    def scatter_text(
        self, column: int, targets: NDArray[np.uint32], cuts: Sequence[slice], pool: BufferPool
    ) -> list[pa.Array] | None:
        return self.part.scatter_text(column, targets, cuts, pool) if can_scatter(self.part) else None

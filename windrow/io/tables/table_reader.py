"""Reads blocks of a table's Parquet files: as they are where that is right, else put right."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.frame_of_reference import Packing
from windrow.core.source import BlockAddress, BlockPart, can_scatter, column_bounds
from windrow.io.catalog.filters import kept_places
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.parquet.block_reader import ParquetReader
from windrow.io.tables.data_files import TableFiles
from windrow.io.tables.logged_files import TableRowGroups

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["EstimatedColumns", "TableFilesReader"]


@dataclass(frozen=True)
class EstimatedColumns(Partitions):
    """Columns that a log tells, by path; those of `everywhere` are the same for every path."""

    by_path: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    everywhere: tuple[Any, ...] | None = None

    def values(self, path: str) -> tuple[Any, ...]:
        """The value of each column in a file."""
        return self.by_path[path] if self.everywhere is None else self.everywhere

    def table(self, paths: Sequence[str]) -> pa.Table:
        """(paths,) rows of values."""
        rows = [self.values(path) for path in paths]
        columns = [
            pa.array([row[place] for row in rows], column.type) for place, column in enumerate(self.schema)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema)


@dataclass(frozen=True)
class TableFilesReader:
    """Reads blocks of a table's files.

    A file that has the table's columns under their names, and all of its rows, is read like any
    Parquet file; columns that it lacks have one value everywhere, as partitions have. From others
    the rows that are not deleted are taken once they are read.

    Attributes
    ----------
    files
        Where the files are.
    schema
        The schema of every block.
    everything
        All columns of the table, which the filter sees.
    filter
        Keeps rows for which it is true; None keeps all.
    needed
        The columns that the filter needs.
    """

    files: TableFiles
    schema: pa.Schema
    everything: pa.Schema
    filter: pc.Expression | None
    needed: frozenset[str]

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block, single-threaded, rows in stored order.

        Raises
        ------
        CorruptBlockError
            If what is stored cannot be decoded, or does not fit the schema.
        SourceError
            If the file is gone, cannot be had, or has changed since it was looked at.
        """
        (groups,) = address.locator
        if self._is_plain(groups):
            return self._reader(groups, self.everything, self.schema, self.filter).read(address)
        return self._read_live(groups, address)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block part by part, where its rows are read as they are stored."""
        (groups,) = address.locator
        if self._is_plain(groups):
            yield from self._reader(groups, self.everything, self.schema, self.filter).parts(address)
        elif groups.deleted or self.filter is not None:
            yield self._read_live(groups, address)
        else:
            for part in self._physical_reader(groups, self.schema).parts(address):
                yield _RenamedPart(part, self.schema)

    def _is_plain(self, groups: TableRowGroups) -> bool:
        return groups.plain and self.needed.isdisjoint(groups.cast)

    def _physical_reader(self, groups: TableRowGroups, wanted: pa.Schema) -> ParquetReader:
        """A reader of the same columns under the names that the file has for them."""
        renamed = pa.schema([self._rename(groups, column) for column in self.everything])
        chosen = pa.schema([self._rename(groups, column) for column in wanted])
        return self._reader(groups, renamed, chosen, None)

    def _reader(
        self, groups: TableRowGroups, everything: pa.Schema, wanted: pa.Schema, filter: pc.Expression | None
    ) -> ParquetReader:
        pairs = list(zip(self.everything.names, everything, strict=True))
        values = dict(groups.constants)
        told = pa.schema([column for name, column in pairs if name in values])
        stored = pa.schema([column for name, column in pairs if name not in values])
        constants = tuple(values[name] for name, _ in pairs if name in values)
        return ParquetReader(self.files, wanted, stored, EstimatedColumns(told, everywhere=constants), filter)

    def _rename(self, groups: TableRowGroups, column: pa.Field[Any]) -> pa.Field[Any]:
        if column.name in dict(groups.constants):
            # the file may have another column of this name
            return column.with_name(f"{column.name}\0told")
        return column.with_name(dict(groups.names).get(column.name, column.name))

    def _read_live(self, groups: TableRowGroups, address: BlockAddress) -> pa.Table:
        wanted = self._wanted()
        stored = self._physical_reader(groups, wanted).read(address)
        table = pa.Table.from_arrays(stored.columns, schema=wanted)
        with self.files.mapped_errors(address.origin):
            if groups.deleted:
                table = table.take(pa.array(groups.live_rows()))
            if self.filter is not None:
                table = table.take(pa.array(kept_places(self.filter, table)))
        return table.select(self.schema.names)

    def _wanted(self) -> pa.Schema:
        """The columns of a block, and those that the filter needs besides."""
        more = [column for column in self.everything if column.name in self.needed - set(self.schema.names)]
        return pa.schema([*self.schema, *more])


@dataclass(frozen=True, eq=False)
class _RenamedPart:
    """Rows under the table's names."""

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

    def scatter_words(
        self,
        columns: Sequence[int],
        packings: Sequence[Packing],
        targets: NDArray[np.uint32],
        outs: Sequence[NDArray[np.uint8]],
    ) -> Sequence[bool]:
        if not can_scatter(self.part):
            return [False] * len(columns)
        return self.part.scatter_words(columns, packings, targets, outs)

    def scatter_text(
        self, column: int, targets: NDArray[np.uint32], cuts: Sequence[slice], pool: BufferPool
    ) -> list[pa.Array] | None:
        return self.part.scatter_text(column, targets, cuts, pool) if can_scatter(self.part) else None

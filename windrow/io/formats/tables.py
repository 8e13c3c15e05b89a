"""A reader of blocks for formats that read a file's row groups as a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

from windrow.core.source import BlockAddress, BlockPart
from windrow.io.conforming import conform
from windrow.io.filesystems import Files
from windrow.io.filters import evaluate_filter, filter_columns
from windrow.io.formats.opening import OpenFile, open_file
from windrow.io.opening import RowGroups
from windrow.io.partitions import Partitions

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["TableFormat", "TableReader"]


class TableFormat(Protocol):
    """A format that reads row groups of a file as a table."""

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read row groups ``start`` to ``stop``, single-threaded, rows in stored order.

        Parameters
        ----------
        schema
            The columns that are needed, with the types that all files have together; those
            of this file may be narrower, and are cast later. More columns than these do no harm.
        """
        ...


@dataclass(frozen=True)
class TableReader:
    """Reads blocks of files of a ``TableFormat``; see ``windrow.io.formats.format.Format.reader``."""

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
        SourceError
            If a file is gone, changed since it was listed, damaged, or does not fit the schema.
        """
        tables = [self._read(groups, address.origin) for groups in address.locator]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block file by file."""
        for groups in address.locator:
            yield self._read(groups, address.origin)

    def _read(self, groups: RowGroups, origin: str) -> pa.Table:
        wanted = self._wanted()
        stored = pa.schema([field for field in wanted if field.name not in self.partitions.schema.names])
        with open_file(self.files, groups, origin) as file:
            table = self.format.read(file, groups.start, groups.stop, stored)
            table = conform(table, wanted, self.partitions, groups.path)
            if self.filter is not None:
                keeps = evaluate_filter(self.filter, table).fill_null(False).to_numpy()
                table = table.take(pa.array(np.flatnonzero(keeps)))
        return table.select(self.schema.names)

    def _wanted(self) -> pa.Schema:
        """The columns of a block, and those that the filter needs besides."""
        if self.filter is None:
            return self.schema
        everything = pa.schema([*self.stored, *self.partitions.schema])
        needed = filter_columns(self.filter, everything)
        names = everything.names if needed is None else [*self.schema.names, *needed]
        return pa.schema([everything.field(name) for name in dict.fromkeys(names)])

"""In-memory sources for tests of pipelines: one that can be read, and one that fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from windrow.core.source import BlockAddress, BlockTable, SourceIdentity


@dataclass
class TableReader:
    """Reads tables from memory and records which; with ``refuses``, fails instead."""

    tables: tuple[pa.Table, ...]
    refuses: bool = False
    reads: list[int] = field(default_factory=list)

    def read(self, address: BlockAddress) -> pa.Table:
        if self.refuses:
            raise AssertionError(f"{address.origin} is read")
        self.reads.append(address.locator)
        return self.tables[address.locator]

    def parts(self, address: BlockAddress) -> Iterator[pa.Table]:
        yield self.read(address)


@dataclass(eq=False)
class TableSource:
    """A source with one block per table."""

    reader: TableReader
    rows_known: bool = True
    bytes_exact: bool = True

    @property
    def schema(self) -> pa.Schema:
        return self.reader.tables[0].schema

    @property
    def blocks(self) -> BlockTable:
        sizes = np.array([table.nbytes for table in self.reader.tables], dtype=np.int64)
        rows = np.array([table.num_rows for table in self.reader.tables], dtype=np.int64)
        return BlockTable(rows, sizes, sizes, self.rows_known, self.bytes_exact)

    @property
    def fingerprint(self) -> str:
        return "tables"

    def identity(self, files: int | None = None) -> SourceIdentity:
        return SourceIdentity("tables", "x", 1, int(self.blocks.rows.sum()), 1, "")

    @property
    def contents(self) -> str:
        return "tables"

    @property
    def null_counts(self) -> Mapping[str, int | None]:
        return dict.fromkeys(self.schema.names)

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        return tuple(BlockAddress(f"table {block}", block) for block in blocks)

    def describe(self) -> str:
        return f"{len(self.reader.tables)} tables"

    def __repr__(self) -> str:
        return f"TableSource({self.describe()})"


def make_source(*sizes: int, refuses: bool = False, rows_known: bool = True) -> TableSource:
    """Make one block per given number of rows; column x holds the row ids."""
    ends = np.cumsum([0, *sizes])
    tables = [pa.table({"x": np.arange(ends[i], ends[i + 1])}) for i in range(len(sizes))]
    return TableSource(TableReader(tuple(tables), refuses), rows_known)

"""A source with an added row id column: each row's rank in stored order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError
from windrow.core.frame_of_reference import Packing
from windrow.core.source import (
    BlockAddress,
    BlockPart,
    BlockReader,
    BlockTable,
    RemoteReader,
    RowOrigin,
    SourceIdentity,
    TracingSource,
    can_scatter,
    column_bounds,
    maps_files,
)
from windrow.io.catalog.row_ids import read_kept_rows

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["RowIdReader", "RowIdSource", "SupportsRowIds"]

_BYTES = 8


class SupportsRowIds(TracingSource, Protocol):
    """A source whose rows have row ids."""

    @property
    def row_filter(self) -> pc.Expression | None:
        """The filter that the reader applies to rows (dropped rows have row ids too); None keeps all."""
        ...

    @property
    def whole_reader(self) -> BlockReader:
        """A reader of all rows and columns, for callers that apply the filter themselves."""
        ...

    @property
    def first_row_ids(self) -> NDArray[np.int64]:
        """(blocks,) the row id of the first stored row of each."""
        ...


@dataclass(frozen=True)
class RowIdReader:
    """Reads blocks and adds row ids; a block's locator is (the inner locator, its first row's id).

    Attributes
    ----------
    inner
        The source's reader without a row filter; else one of all rows and columns.
    schema
        The schema of every block, row ids last.
    filter
        Keeps rows for which it is true; None keeps all.
    """

    inner: BlockReader
    schema: pa.Schema
    filter: pc.Expression | None

    @property
    def is_remote(self) -> bool:
        """Whether the inner reader waits for object storage."""
        return isinstance(self.inner, RemoteReader) and self.inner.is_remote

    @property
    def maps_files(self) -> bool:
        """Whether the inner reader's parts are views of memory-mapped files."""
        return maps_files(self.inner)

    def read(self, address: BlockAddress) -> pa.Table:
        """Read one block."""
        locator, first = address.locator
        within = replace(address, locator=locator)
        if self.filter is None:
            table = self.inner.read(within)
            return table.append_column(self.schema[-1], _row_id_array(first, table.num_rows))
        table, kept = read_kept_rows(self.inner, self.filter, within)
        table = table.select(self.schema.names[:-1]).take(pa.array(kept)).combine_chunks()
        return table.append_column(self.schema[-1], pa.array(kept + first)).cast(self.schema)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block part by part."""
        if self.filter is not None:
            yield self.read(address)
            return
        locator, first = address.locator
        for part in self.inner.parts(replace(address, locator=locator)):
            yield _RowIdPart(part, self.schema, first)
            first += part.num_rows


@dataclass(frozen=True, eq=False)
class _RowIdPart:
    """A part with row ids."""

    part: BlockPart
    schema: pa.Schema
    first: int

    @property
    def num_rows(self) -> int:
        return self.part.num_rows

    def select(self, columns: list[int]) -> pa.Table:
        last = len(self.schema) - 1
        table = self.part.select([column for column in columns if column != last])
        found = [
            _row_id_array(self.first, self.num_rows)
            if column == last
            else table.column(self.schema.names[column])
            for column in columns
        ]
        return pa.Table.from_arrays(
            found, schema=pa.schema([self.schema.field(column) for column in columns])
        )

    def bounds(self, column: int) -> tuple[int, int] | None:
        if column < len(self.schema) - 1:
            return column_bounds(self.part, column)
        return self.first, self.first + max(0, self.num_rows - 1)

    def scatter_values(
        self,
        columns: Sequence[int],
        packings: Sequence[Packing],
        targets: NDArray[np.uint32],
        outs: Sequence[NDArray[np.uint8]],
    ) -> Sequence[bool]:
        if not can_scatter(self.part):
            return [False] * len(columns)
        row_id_column = len(self.schema) - 1
        if row_id_column not in columns:
            return self.part.scatter_values(columns, packings, targets, outs)
        at = columns.index(row_id_column)
        stored, stored_packings, stored_outs = (
            [*each[:at], *each[at + 1 :]] for each in (columns, packings, outs)
        )
        done = self.part.scatter_values(stored, stored_packings, targets, stored_outs)
        return [*done[:at], False, *done[at:]]

    def scatter_text(
        self, column: int, targets: NDArray[np.uint32], cuts: Sequence[slice], pool: BufferPool
    ) -> list[pa.Array] | None:
        if column == len(self.schema) - 1 or not can_scatter(self.part):
            return None
        return self.part.scatter_text(column, targets, cuts, pool)


def _row_id_array(first: int, rows: int) -> pa.Array:
    return pa.array(np.arange(first, first + rows, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class RowIdSource:
    """A source with a column of row ids.

    Attributes
    ----------
    stored
        The source without row ids.
    name
        The name of the column.
    """

    stored: SupportsRowIds
    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise PlanError(f"row_id_column={self.name!r} must be the name of a column")
        if self.name in self.stored.schema.names:
            raise PlanError(f"row_id_column={self.name!r} is a column of the data: give another name")

    def __repr__(self) -> str:
        return repr(self.stored)

    @property
    def schema(self) -> pa.Schema:
        """The source's schema, row ids last."""
        return self.stored.schema.append(pa.field(self.name, pa.int64()))

    @property
    def blocks(self) -> BlockTable:
        """All blocks; row ids count as memory, but do not change window boundaries."""
        blocks = self.stored.blocks
        row_id_bytes = _BYTES * blocks.rows
        packed = None if blocks.packed_bytes is None else blocks.packed_bytes + row_id_bytes
        return replace(blocks, memory_bytes=blocks.memory_bytes + row_id_bytes, packed_bytes=packed)

    @property
    def reader(self) -> RowIdReader:
        """The reader for this source's blocks."""
        row_filter = self.stored.row_filter
        inner = self.stored.reader if row_filter is None else self.stored.whole_reader
        return RowIdReader(inner, self.schema, row_filter)

    @property
    def fingerprint(self) -> str:
        """A digest of the data."""
        return self.stored.fingerprint

    def identity(self, files: int | None = None) -> SourceIdentity:
        """What the row order depends on."""
        return self.stored.identity(files)

    @property
    def contents(self) -> str:
        """A digest of the content of each block."""
        return f"{self.stored.contents} {self.name}"

    @property
    def null_counts(self) -> Mapping[str, int | None]:
        """Nulls by column."""
        return {**self.stored.null_counts, self.name: 0}

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        """The addresses of some blocks."""
        firsts = self.stored.first_row_ids
        found = zip(blocks, self.stored.addresses(blocks), strict=True)
        return tuple(
            replace(address, locator=(address.locator, int(firsts[block]))) for block, address in found
        )

    def describe(self) -> str:
        """One line for ``explain()``."""
        return self.stored.describe()

    def count_blocks(self) -> NDArray[np.int64]:
        """(blocks,) the rows that each block delivers."""
        return self.stored.count_blocks()

    def row_numbers(self, block: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(rows,) the row ids of rows that a block delivers."""
        return self.stored.row_numbers(block, rows)

    def row_lineage(self, numbers: NDArray[np.int64]) -> list[RowOrigin]:
        """Where the rows of some row ids are stored."""
        return self.stored.row_lineage(numbers)

    def with_row_id(self, name: str) -> RowIdSource:
        """The same source with the row id column under another name."""
        return RowIdSource(self.stored, name)

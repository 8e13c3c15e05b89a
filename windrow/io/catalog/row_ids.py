"""Row ids: a row's rank among all stored rows of all files, its origin, and a source with a column of row ids."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.chosen_rows import take_rows
from windrow.core.column_memory import ColumnMemory
from windrow.core.errors import PlanError
from windrow.core.machine import available_cores
from windrow.core.source import (
    BlockAddress,
    BlockPart,
    BlockReader,
    BlockTable,
    RowOrigin,
    Scattered,
    SourceIdentity,
    TracingSource,
    can_scatter,
    column_bounds,
    is_remote,
    maps_files,
    prepare_source,
    schema_changes,
    with_stages,
)
from windrow.io.catalog.filters import kept_places
from windrow.io.catalog.manifest import Manifest

if TYPE_CHECKING:
    import pyarrow.compute as pc

Ints = NDArray[np.int64]
T = TypeVar("T")

_ROW_ID_BYTES = 8


def find_origins(manifest: Manifest, numbers: Ints, name: Callable[[str], str]) -> list[RowOrigin]:
    """Where the rows of some row ids are stored; ``name`` converts a relative path to the URL in messages."""
    starts, group_ends = manifest.row_starts, manifest.row_group_ends
    # an empty row group starts at the same row as the next one; side="right" skips it
    groups = np.searchsorted(starts, numbers, side="right") - 1
    fragments = np.searchsorted(group_ends, groups, side="right")
    firsts = np.append(0, group_ends)[fragments]
    names = {fragment: name(manifest.path(fragment)) for fragment in np.unique(fragments).tolist()}
    found = (fragments, groups - firsts, numbers - starts[groups])
    return [
        RowOrigin(names[fragment], group, row)
        for fragment, group, row in zip(*(array.tolist() for array in found), strict=True)
    ]


def read_kept_rows(
    everything: BlockReader, row_filter: pc.Expression, address: BlockAddress
) -> tuple[pa.Table, Ints]:
    """Read a block's rows before a filter, and the indices of those that it keeps."""
    table = everything.read(address)
    return table, kept_places(row_filter, table)


def count_rows(read: Callable[[BlockAddress], pa.Table], addresses: Sequence[BlockAddress]) -> Ints:
    """(blocks,) the rows of each, by reading them in threads."""
    return np.array(in_threads(lambda address: read(address).num_rows, addresses), np.int64)


def in_threads(call: Callable[[BlockAddress], T], addresses: Sequence[BlockAddress]) -> list[T]:
    """What a call returns for each block."""
    threads = ThreadPoolExecutor(available_cores(), thread_name_prefix="windrow-count")
    try:
        return list(threads.map(call, addresses))
    finally:
        threads.shutdown(cancel_futures=True)


class _SupportsRowIds(TracingSource, Protocol):
    """A source whose rows have row ids."""

    @property
    def row_filter(self) -> pc.Expression | None:
        """The filter that the reader applies to rows (dropped rows have row ids too); None keeps all."""

    @property
    def whole_reader(self) -> BlockReader:
        """A reader of all rows and columns, for callers that apply the filter themselves."""

    @property
    def first_row_ids(self) -> NDArray[np.int64]:
        """(blocks,) the row id of the first stored row of each."""


@dataclass(frozen=True)
class _RowIdReader:
    """Reads blocks and adds row ids; a block's locator is (the inner locator, its first row's id).

    ``inner`` is the source's reader if there is no row filter, else one of all rows and columns.
    """

    inner: BlockReader
    schema: pa.Schema
    filter: pc.Expression | None

    @property
    def is_remote(self) -> bool:
        return is_remote(self.inner)

    @property
    def maps_files(self) -> bool:
        return maps_files(self.inner)

    def with_stages(self, replace_stages: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> _RowIdReader:
        return replace(self, inner=with_stages(self.inner, replace_stages))

    def read(self, address: BlockAddress) -> pa.Table:
        locator, first = address.locator
        within = replace(address, locator=locator)
        if self.filter is None:
            table = self.inner.read(within)
            return table.append_column(self.schema[-1], _row_id_array(first, table.num_rows))
        table, kept = read_kept_rows(self.inner, self.filter, within)
        table = take_rows(table.select(self.schema.names[:-1]), kept).combine_chunks()
        return table.append_column(self.schema[-1], pa.array(kept + first)).cast(self.schema)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
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

    def bounds(self, columns: Sequence[int]) -> NDArray[np.int64]:
        stored = [column for column in columns if column < len(self.schema) - 1]
        found = np.full((len(columns), 2), (self.first, self.first + max(0, self.num_rows - 1)), np.int64)
        found[np.array(columns) < len(self.schema) - 1] = column_bounds(self.part, stored)
        return found

    def scatter_values(
        self,
        columns: Sequence[int],
        packings: NDArray[np.int64],
        targets: NDArray[np.uint32],
        outs: ColumnMemory,
        pool: BufferPool,
    ) -> Scattered:
        if not can_scatter(self.part):
            return Scattered.none(len(columns))
        (stored,) = np.nonzero(np.array(columns) != len(self.schema) - 1)
        numbers = [columns[at] for at in stored.tolist()]
        found = self.part.scatter_values(numbers, packings[stored], targets, outs.select(stored), pool)
        done = np.zeros(len(columns), np.bool_)
        done[stored] = found.done
        return Scattered(done, {int(stored[at]): valid for at, valid in found.valid.items()})

    def decode_nested(self, column: int, pool: BufferPool) -> pa.Array | None:
        if column == len(self.schema) - 1 or not can_scatter(self.part):
            return None
        return self.part.decode_nested(column, pool)

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
    """A source with a last column of row ids; all else is as in the source ``stored``."""

    stored: _SupportsRowIds
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
        return self.stored.schema.append(pa.field(self.name, pa.int64()))

    @property
    def blocks(self) -> BlockTable:
        """All blocks; row ids count as memory, but do not change window boundaries."""
        blocks = self.stored.blocks
        row_id_bytes = _ROW_ID_BYTES * blocks.rows
        packed = None if blocks.packed_bytes is None else blocks.packed_bytes + row_id_bytes
        return replace(blocks, memory_bytes=blocks.memory_bytes + row_id_bytes, packed_bytes=packed)

    @property
    def reader(self) -> _RowIdReader:
        row_filter = self.stored.row_filter
        inner = self.stored.reader if row_filter is None else self.stored.whole_reader
        return _RowIdReader(inner, self.schema, row_filter)

    @property
    def fingerprint(self) -> str:
        return self.stored.fingerprint

    def identity(self, files: int | None = None) -> SourceIdentity:
        return self.stored.identity(files)

    @property
    def contents(self) -> str:
        return f"{self.stored.contents} {self.name}"

    @property
    def null_counts(self) -> Mapping[str, int | None]:
        return {**self.stored.null_counts, self.name: 0}

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        firsts = self.stored.first_row_ids
        found = zip(blocks, self.stored.addresses(blocks), strict=True)
        return tuple(
            replace(address, locator=(address.locator, int(firsts[block]))) for block, address in found
        )

    def describe(self) -> str:
        return self.stored.describe()

    @property
    def schema_changes(self) -> tuple[str, ...]:
        return schema_changes(self.stored)

    def prepare(self) -> None:
        prepare_source(self.stored)

    def count_blocks(self) -> NDArray[np.int64]:
        return self.stored.count_blocks()

    def row_numbers(self, block: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.stored.row_numbers(block, rows)

    def row_lineage(self, numbers: NDArray[np.int64]) -> list[RowOrigin]:
        return self.stored.row_lineage(numbers)

    def with_row_id(self, name: str) -> RowIdSource:
        return RowIdSource(self.stored, name)

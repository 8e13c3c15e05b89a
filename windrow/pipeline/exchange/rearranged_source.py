"""`RearrangedSource`: other sources' rows in other blocks, read from their blocks when they are needed."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.arrow_support import empty_table
from windrow.core.cached_properties import cached_property
from windrow.core.source import (
    BlockAddress,
    BlockPart,
    BlockTable,
    is_remote,
    join_blocks,
    joins_blocks,
    maps_files,
)
from windrow.io.catalog.manifest import digest_parts
from windrow.io.catalog.safe_casts import cast_table
from windrow.io.catalog.schemas import unify_schemas
from windrow.pipeline.exchange.derived_source import DerivedSource, ParentReader
from windrow.pipeline.exchange.layouts import Layout, Segment, SideBySide, Sides, WindowLayout

_SUFFIX = "_1"


@dataclass(frozen=True)
class _Rows:
    """Where rows of a block of a parent are stored."""

    parent: int
    address: BlockAddress
    start: int
    stop: int | None


@dataclass(frozen=True)
class RearrangedReader:
    """Reads blocks; a locator is a tuple of sides, each a tuple of `_Rows`."""

    readers: tuple[ParentReader, ...]
    schema: pa.Schema
    # (sides,) the columns of each side, by their places in `schema`
    columns: tuple[slice, ...]

    @cached_property
    def is_remote(self) -> bool:
        """Whether a parent's reader is."""
        return any(is_remote(parent.reader) for parent in self.readers)

    @cached_property
    def maps_files(self) -> bool:
        """Whether a parent's reader does."""
        return any(maps_files(parent.reader) for parent in self.readers)

    def with_stages(self, replace_stages: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> RearrangedReader:
        """The same reader with others for its parents' transforms."""
        return replace(self, readers=tuple(parent.with_stages(replace_stages) for parent in self.readers))

    def read(self, address: BlockAddress) -> pa.Table:
        """Read the rows of a block's segments and put them together."""
        sides = []
        for segments, place in zip(address.locator, self.columns, strict=True):
            schema = pa.schema([self.schema.field(at) for at in range(len(self.schema))[place]])
            tables = [self._read_rows(rows, schema) for rows in segments]
            sides.append(pa.concat_tables(tables) if tables else empty_table(schema))
        if len(sides) == 1:
            return sides[0]
        return pa.table([column for side in sides for column in side.columns], schema=self.schema)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Yield the parts of the parent's block where it is read as it is, else the block as one part."""
        rows = self._whole_block(address)
        if rows is None:
            yield self.read(address)
        else:
            yield from self.readers[rows.parent].reader.parts(rows.address)

    @cached_property
    def joins_blocks(self) -> bool:
        """Whether a parent's reader does, for those of its blocks that are read as they are."""
        return any(joins_blocks(parent.reader) for parent in self.readers if not parent.maps)

    def join_blocks(self, addresses: Sequence[BlockAddress]) -> BlockAddress | None:
        """The address of one block with the rows of these; None unless all are blocks of one parent as they are."""
        found = [rows for rows in map(self._whole_block, addresses) if rows is not None]
        if len(found) < len(addresses) or len({rows.parent for rows in found}) > 1:
            return None
        joined = join_blocks(self.readers[found[0].parent].reader, [rows.address for rows in found])
        if joined is None:
            return None
        return replace(addresses[0], origin=joined.origin, locator=((replace(found[0], address=joined),),))

    def _whole_block(self, address: BlockAddress) -> _Rows | None:
        """The block of a parent, if this one has all of its rows and nothing else, as they are read."""
        if len(address.locator) != 1 or len(address.locator[0]) != 1:
            return None
        rows: _Rows = address.locator[0][0]
        parent = self.readers[rows.parent]
        is_whole = rows.start == 0 and rows.stop is None and not parent.maps
        return rows if is_whole and parent.schema.equals(self.schema) else None

    def _read_rows(self, rows: _Rows, schema: pa.Schema) -> pa.Table:
        table = self.readers[rows.parent].read(rows.address)
        stop = table.num_rows if rows.stop is None else rows.stop
        table = table.slice(rows.start, stop - rows.start)
        if len(self.columns) == 1:
            # parents of a union can have other column orders and narrower types
            return cast_table(table, schema, lambda row: f"{rows.address.origin}, row {rows.start + row}")
        return table.rename_columns(schema.names)


@dataclass(frozen=True, eq=False, repr=False)
class RearrangedSource(DerivedSource):
    """A source of other sources' rows, as a layout arranges them."""

    layout: Layout
    # what else its rows depend on, in digests
    variant: str = ""

    @cached_property
    def schema(self) -> pa.Schema:
        schemas = [parent.schema for parent in self.parents]
        if len(self._columns_of(schemas)) == 1:
            return combine_schemas(schemas, self.call)
        names = list(schemas[0].names)
        for name in schemas[1].names:
            while name in names:
                name += _SUFFIX
            names.append(name)
        fields = [field for schema in schemas for field in schema]
        return pa.schema([field.with_name(name) for field, name in zip(fields, names, strict=True)])

    @cached_property
    def segments(self) -> list[Sides]:
        """The sides of every block; rows are counted once, where that is necessary."""
        return self.layout.blocks(self.parents) if self._windows is None else list(chain(*self._windows))

    @cached_property
    def _windows(self) -> list[list[Sides]] | None:
        """The same by window, if the layout states windows."""
        return list(self.layout.windows(self.parents)) if isinstance(self.layout, WindowLayout) else None

    @cached_property
    def blocks(self) -> BlockTable:
        inner = [parent.source.blocks for parent in self.parents]
        count = len(self.segments)
        rows, sizes, memory = (np.zeros(count, np.int64) for _ in range(3))
        for at, sides in enumerate(self.segments):
            for side, segments in enumerate(sides):
                for segment in segments:
                    table, block = inner[segment.parent], segment.block
                    taken, share = _share_of(segment, table)
                    rows[at] += taken if side == 0 else 0
                    sizes[at] += math.ceil(int(table.decoded_bytes[block]) * share)
                    memory[at] += math.ceil(int(table.memory_bytes[block]) * share)
        plain = not any(parent.maps for parent in self.parents)
        starts = None if self._windows is None else np.cumsum([0, *map(len, self._windows)], dtype=np.int64)
        return BlockTable(
            rows,
            sizes,
            memory,
            rows_known=self.layout.counts_rows or all(parent.rows_known for parent in self.parents),
            bytes_exact=plain and all(table.bytes_exact for table in inner),
            rows_bounded=all(parent.rows_bounded for parent in self.parents),
            window_starts=starts,
        )

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the parents' data and of the operation, and of windows, if the layout states them."""
        digest, table = self.derivation_digest, self.blocks
        if self.variant:
            digest = digest_parts([digest.encode(), self.variant.encode()])
        if table.window_starts is None:
            return digest
        return digest_parts([digest.encode(), table.window_starts.tobytes(), table.rows.tobytes()])

    @property
    def reader(self) -> RearrangedReader:
        columns = self._columns_of([parent.schema for parent in self.parents])
        return RearrangedReader(tuple(parent.reader for parent in self.parents), self.schema, columns)

    def addresses(self, blocks: Sequence[int]) -> tuple[BlockAddress, ...]:
        numbers = [int(block) for block in blocks]
        own = [self.segments[number] for number in numbers]
        # of many parents, a few blocks have rows of one or two
        wanted = defaultdict[int, list[int]](list)
        for segment in chain.from_iterable(chain.from_iterable(own)):
            wanted[segment.parent].append(segment.block)
        found = {
            parent: iter(self.parents[parent].source.addresses(places)) for parent, places in wanted.items()
        }
        return tuple(self._address(number, sides, found) for number, sides in zip(numbers, own, strict=True))

    def describe(self) -> str:
        inner = "; ".join(parent.source.describe() for parent in self.parents)
        return f"{self.call} of {inner}"

    def _columns_of(self, schemas: Sequence[pa.Schema]) -> tuple[slice, ...]:
        if not isinstance(self.layout, SideBySide):
            return (slice(0, None),)
        return slice(0, len(schemas[0])), slice(len(schemas[0]), None)

    def _address(self, number: int, own: Sides, found: Mapping[int, Iterator[BlockAddress]]) -> BlockAddress:
        """The address of a block; ``found`` are the addresses of its parents' blocks, by parent."""
        sides = []
        for segments in own:
            rows = []
            for number_of, block, start, stop in segments:
                parent = self.parents[number_of]
                is_whole = start == 0 and parent.rows_known and stop == parent.source.blocks.rows[block]
                rows.append(_Rows(number_of, next(found[number_of]), start, None if is_whole else stop))
            sides.append(tuple(rows))
        inner = [rows.address.origin for rows in sides[0][:2]]
        origin = inner[0] if len(inner) == 1 else f"{self.call}, block {number}"
        return BlockAddress(origin, tuple(sides), number)


def _share_of(segment: Segment, table: BlockTable) -> tuple[int, Fraction]:
    """Return the rows of a segment, and its share of its block; at most all, where counts are estimates."""
    stored = int(table.rows[segment.block])
    if segment.stop is None:
        return stored, Fraction(1)
    taken = segment.stop - segment.start
    return taken, Fraction(min(taken, stored), max(stored, 1))


def combine_schemas(schemas: Sequence[pa.Schema], call: str) -> pa.Schema:
    """Return the schema that holds the rows of all parents, or raise a SourceError that names the column."""
    named = [(f"{call}, dataset {number}", schema) for number, schema in enumerate(schemas)]
    return unify_schemas(named)

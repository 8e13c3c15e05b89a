"""The Parquet format and its block reader: reads one block on one thread, with exactly the source's schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.frame_of_reference import Packing, join_ranges
from windrow.core.phase_clock import timed
from windrow.core.source import BlockAddress, BlockPart, ScatteredColumn
from windrow.io.catalog.filters import can_prune, filter_columns, kept_places
from windrow.io.catalog.fragments import Fragment
from windrow.io.catalog.hive_partitions import Partitions, conform
from windrow.io.parquet import chunk_decoder, decoder_library
from windrow.io.parquet.footers import read_footer, summarise
from windrow.io.parquet.nested_decoder import decode_nested
from windrow.io.parquet.row_ranges import RowRange, open_ranges
from windrow.io.parquet.stored_chunks import Chunk
from windrow.io.storage.filesystems import Files
from windrow.io.storage.verified_files import BlockFile, RowGroups, open_block

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["ParquetFormat", "ParquetReader"]

# A part's columns should fit the CPU cache; smaller parts cost more Python time per row.
_PART_BYTES = 8 * 2**20


@dataclass(frozen=True)
class ParquetFormat:
    """The Parquet format: footers state rows and sizes, statistics prune row groups, columns are read selectively."""

    name: str = "Parquet"
    options: str = ""
    rows_known: bool = True
    joins_files: bool = False

    def look(self, files: Files, path: str) -> Fragment:
        """Read a file's footer, usually with one read."""
        name = files.name(path)
        footer = read_footer(files, path, name)
        return Fragment(footer.version, footer.digest, summarise(footer.metadata, footer.texts, name))

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> ParquetReader:
        return ParquetReader(files, schema, stored, partitions, row_filter)


@dataclass(frozen=True)
class ParquetReader:
    """Reads blocks of Parquet files: selected columns of files and partitions, and rows for which ``filter`` is true.

    ``stored`` is the unified schema of all columns of the files; filters see it with the partition columns.
    """

    files: Files
    schema: pa.Schema
    stored: pa.Schema
    partitions: Partitions
    filter: pc.Expression | None

    @cached_property
    def stored_fields(self) -> list[tuple[str, pa.DataType] | None]:
        """Name and type of each column that is stored, None for those of partitions."""
        partitions = self.partitions.schema.names
        return [None if field.name in partitions else (field.name, field.type) for field in self.schema]

    @property
    def decodes_columns(self) -> bool:
        """Whether parts are views of local files, whose columns are decoded on access."""
        return self.filter is None and self.files.local

    @property
    def is_remote(self) -> bool:
        return not self.files.local

    def read(self, address: BlockAddress) -> pa.Table:
        (groups,) = address.locator
        filters = self.filter is not None
        with open_block(self.files, groups, address.origin) as block, block.mapped_errors(filters=filters):
            if self.filter is None:
                table = self._read(block, self.schema)
            elif can_prune(self.filter, self._full_schema()):
                table = self._scan_pruned(block)
            else:
                table = self._filter_all_rows(block)
            block.check()
            return table

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block in parts of a few row groups; each column is decoded on access.

        For a remote file all ranges are requested up front, and parts are decoded as they arrive.
        """
        if self.filter is not None:
            yield self.read(address)
            return
        (groups,) = address.locator
        names = self._stored_names(self.schema)
        with open_block(self.files, groups, address.origin) as block:
            with block.mapped_errors():
                ranges = open_ranges(block, names, _PART_BYTES) if groups.is_cut else []
                if not groups.is_cut:
                    block.fetch(range(groups.start, groups.stop), names)
                stored = self._parquet(block)
            for rows in ranges:
                yield _StoredPart(self, stored, block, (rows.group,), rows)
            for numbers in _join_groups(stored.metadata, groups) if not groups.is_cut else ():
                yield _StoredPart(self, stored, block, numbers)
            with block.mapped_errors():
                block.check()

    def _parquet(self, block: BlockFile) -> Any:
        import pyarrow.parquet as pq

        # pre_buffer=False: remote ranges are prefetched into memory already, or read one by one
        return pq.ParquetFile(
            block.file, metadata=block.footer.metadata, pre_buffer=False, page_checksum_verification=True
        )

    def _filter_all_rows(self, block: BlockFile) -> pa.Table:
        """Apply the filter to all rows of a block, without pruning by statistics."""
        full_schema = self._full_schema()
        needed = filter_columns(self.filter, full_schema)
        names = full_schema.names if needed is None else [*self.schema.names, *needed]
        table = self._read(block, pa.schema([full_schema.field(name) for name in dict.fromkeys(names)]))
        return table.select(self.schema.names).take(pa.array(kept_places(self.filter, table)))

    def _full_schema(self) -> pa.Schema:
        """All columns of files and partitions, which a filter can reference."""
        return pa.schema([*self.stored, *self.partitions.schema])

    def _read(self, block: BlockFile, schema: pa.Schema) -> pa.Table:
        groups, names = block.groups, self._stored_names(schema)
        if groups.is_cut:
            tables = [rows.read(names) for rows in open_ranges(block, names)]
            return conform(tables[0], schema, self.partitions, groups.path) if tables else schema.empty_table()
        numbers = range(groups.start, groups.stop)
        block.fetch(numbers, names)
        # a name with dots can also match a nested field, so this can read more columns, never fewer
        stored = self._parquet(block)
        table = _read_groups(stored, numbers, names)
        return conform(table, schema, self.partitions, groups.path)

    def _scan_pruned(self, block: BlockFile) -> pa.Table:
        import pyarrow.compute as pc
        import pyarrow.dataset as ds

        groups, schema = block.groups, self._full_schema()
        fragment = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(
                pre_buffer=False, page_checksum_verification=True
            )
        ).make_fragment(block.file, partition_expression=self.partitions.expression(groups.path))
        # not make_fragment(row_groups=), which converts the indices to a set and reads in its order
        fragment = fragment.subset(row_group_ids=list(range(groups.start, groups.stop)))
        if groups.is_cut:
            has_rows = fragment.subset(self.filter, schema=schema).row_groups
            return self._filter_all_rows(block) if has_rows else self.schema.empty_table()
        if block.remote is not None:
            needed = filter_columns(self.filter, schema)
            names = self.stored.names if needed is None else [*self._stored_names(self.schema), *needed]
            # row groups pruned by their statistics are not requested
            kept = [group.id for group in fragment.subset(self.filter, schema=schema).row_groups]
            block.fetch(kept, names)
        table = fragment.to_table(
            schema=schema,
            columns={name: pc.field(name) for name in self._stored_names(self.schema)},
            filter=self.filter,
            use_threads=False,
        )
        return conform(table, self.schema, self.partitions, groups.path)

    def _stored_names(self, schema: pa.Schema) -> list[str]:
        partitions = set(self.partitions.schema.names)
        return [name for name in schema.names if name not in partitions]


@dataclass(frozen=True, eq=False)
class _StoredPart:
    """A few row groups of an open file, or ``rows`` of one; decodes columns on access, which is measured as decoding."""

    reader: ParquetReader
    stored: Any
    block: BlockFile
    numbers: tuple[int, ...]
    rows: RowRange | None = None

    @cached_property
    def num_rows(self) -> int:
        if self.rows is not None:
            return self.rows.num_rows
        return _count_rows(self.stored, self.numbers)

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    @timed("decode")
    def select(self, columns: list[int]) -> pa.Table:
        schema = pa.schema([self.schema.field(number) for number in columns])
        with self.block.mapped_errors():
            names = self.reader._stored_names(schema)
            if self.rows is not None:
                table = self.rows.read(names)
            else:
                table = _read_groups(self.stored, self.numbers, names)
            return conform(table, schema, self.reader.partitions, self.block.groups.path)

    @timed("decode")
    def scatter_values(
        self,
        columns: Sequence[int],
        packings: Sequence[Packing],
        targets: NDArray[np.uint32],
        outs: Sequence[NDArray[np.uint8]],
        pool: BufferPool,
    ) -> Sequence[ScatteredColumn | None]:
        with self.block.mapped_errors():
            chunks = [self._find_chunks(column, len(targets)) for column in columns]
        if not any(chunks):
            return [None] * len(columns)
        with self.block.mapped_errors():
            return chunk_decoder.decode(self.block.file, chunks, packings, targets, outs, pool)

    def bounds(self, column: int) -> tuple[int, int] | None:
        stored = self.reader.stored_fields[column]
        if stored is None:
            return None
        # statistics of an empty row group are meaningless
        filled = [number for number in self.numbers if self.stored.metadata.row_group(number).num_rows]
        return join_ranges(self.block.footer.bounds(number, *stored) for number in filled)

    @timed("decode")
    def scatter_text(
        self, column: int, targets: NDArray[np.uint32], cuts: Sequence[slice], pool: BufferPool
    ) -> list[pa.Array] | None:
        with self.block.mapped_errors():
            chunks = self._find_chunks(column, len(targets))
        if not chunks:
            return None
        with self.block.mapped_errors():
            kind = self.schema.field(column).type
            try:
                return chunk_decoder.decode_text(self.block.file, chunks, kind, targets, cuts, pool)
            except MemoryError:
                # the stated size can be corrupt: Arrow reads the chunk instead, and reports the rows if it is
                return None

    @timed("decode")
    def decode_nested(self, column: int, pool: BufferPool) -> pa.Array | None:
        stored = self.reader.stored_fields[column]
        if decoder_library.LIBRARY is None or stored is None:
            return None
        with self.block.mapped_errors():
            if self.rows is not None:
                found = [self.rows.nested(*stored)]
            else:
                found = [self.block.footer.nested(number, *stored) for number in self.numbers]
        leaves = [group for group in found if group is not None]
        if not leaves or len(leaves) < len(found):
            return None
        with self.block.mapped_errors():
            try:
                return decode_nested(self.block.file, leaves, stored[1], pool)
            except MemoryError:
                # as in `scatter_text`
                return None

    def _find_chunks(self, column: int, rows: int) -> Sequence[Chunk]:
        """The chunks of a column; none if the C decoder does not support one, or they do not hold ``rows`` rows."""
        # a chunk has the rows of its row group
        return self._chunks[column] if rows == self.num_rows else ()

    @cached_property
    def _chunks(self) -> list[tuple[Chunk, ...]]:
        """By column, its chunk in each row group; none if the C decoder does not support one."""
        fields = self.reader.stored_fields
        if decoder_library.LIBRARY is None:
            return [()] * len(fields)
        if self.rows is not None:
            groups = [self.rows.chunks(fields)]
        else:
            groups = [self.block.footer.chunks(number, fields) for number in self.numbers]
        return [
            () if None in chunks else cast("tuple[Chunk, ...]", chunks)
            for chunks in zip(*groups, strict=True)
        ]


def _count_rows(stored: Any, numbers: Iterable[int]) -> int:
    return sum(stored.metadata.row_group(number).num_rows for number in numbers)


def _read_groups(stored: Any, numbers: Sequence[int], names: list[str]) -> pa.Table:
    """Read columns of row groups, and check the row count: Arrow can silently read fewer rows from corrupt pages."""
    table = stored.read_row_groups(list(numbers), columns=names, use_threads=False)
    expected = _count_rows(stored, numbers)
    if table.num_rows != expected or any(len(column) != expected for column in table.columns):
        raise pa.ArrowInvalid(f"pages hold {table.num_rows} rows where the footer states {expected}")
    return table


def _join_groups(metadata: Any, groups: RowGroups) -> Iterator[tuple[int, ...]]:
    """Join adjacent row groups into parts of at least `_PART_BYTES`, except the last."""
    joined: list[int] = []
    joined_bytes = 0
    for number in range(groups.start, groups.stop):
        joined.append(number)
        joined_bytes += metadata.row_group(number).total_byte_size
        if joined_bytes >= _PART_BYTES:
            yield tuple(joined)
            joined, joined_bytes = [], 0
    if joined:
        yield tuple(joined)

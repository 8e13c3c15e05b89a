"""The Parquet format and its block reader: reads one block on one thread, with exactly the source's schema."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.buffer_pool import BufferPool
from windrow.core.cached_properties import cached_property
from windrow.core.column_memory import ColumnMemory
from windrow.core.frame_of_reference import bounds_table, join_bounds
from windrow.core.phase_clock import timed
from windrow.core.source import BlockAddress, BlockPart, Scattered
from windrow.io.catalog.blocks import CutSizes
from windrow.io.catalog.file_format import FileReading, join_addresses, join_tables
from windrow.io.catalog.filters import can_prune, filter_columns, with_filter_columns
from windrow.io.catalog.hive_partitions import conform
from windrow.io.catalog.manifest import Fragment
from windrow.io.catalog.value_sizes import child_types
from windrow.io.formats.row_group_format import PART_BYTES, group_by_bytes, split_into_parts
from windrow.io.parquet import chunk_decoder, decoder_library
from windrow.io.parquet.chunk_decoder import decode_nested
from windrow.io.parquet.chunks import Chunk
from windrow.io.parquet.footers import read_footer, summarise
from windrow.io.parquet.row_ranges import open_ranges
from windrow.io.parquet.stored_rows import LocalFiles, StoredRows, read_small_files
from windrow.io.parquet.verified_files import BlockFile, open_block, remember_footer
from windrow.io.storage.file_versions import RowGroups
from windrow.io.storage.filesystems import Files


@dataclass(frozen=True)
class ParquetFormat:
    """The Parquet format: footers state rows and sizes, statistics prune row groups, columns are read selectively."""

    name: str = "Parquet"
    options: str = ""
    rows_known: bool = True
    joins_files: bool = True
    cut_sizes: CutSizes | None = CutSizes()

    def look(self, files: Files, path: str) -> Fragment:
        """Read a file's footer, usually with one read."""
        name = files.name(path)
        footer = read_footer(files, path, name)
        remember_footer(files, path, footer)
        return Fragment(footer.version, footer.digest, summarise(footer.metadata, footer.texts, name))

    def reader(self, reading: FileReading) -> ParquetReader:
        return ParquetReader(**vars(reading))


@dataclass(frozen=True)
class ParquetReader(FileReading):
    """Reads blocks of Parquet files: selected columns of files and partitions, and rows that the filter keeps."""

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

    @property
    def joins_blocks(self) -> bool:
        """Whether rows come as they are stored, and blocks need not be requested ahead one by one."""
        return self.files.local and self.filter is None

    def join_blocks(self, addresses: Sequence[BlockAddress]) -> BlockAddress | None:
        """The address of one block with the rows of these, in their order."""
        return join_addresses(self.files, addresses)

    def read(self, address: BlockAddress) -> pa.Table:
        return join_tables(self._read_files(some, address) for some in split_into_parts(address.locator))

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        """Read one block in parts of a few row groups, also of several files; each column is decoded on access.

        For a remote file all ranges are requested up front, and parts are decoded as they arrive.
        """
        if self.filter is not None:
            yield self.read(address)
            return
        with LocalFiles(self.files) as local:
            for some in split_into_parts(address.locator):
                origin = self.origin_of(some[0], address)
                if len(some) == 1 and self.files.local and not some[0].is_cut:
                    for part in local.add(some[0], origin):
                        yield _StoredPart(self, *part)
                    continue
                for part in local.finish():
                    yield _StoredPart(self, *part)
                if len(some) > 1:
                    yield self._open_small_files(some)
                else:
                    yield from self._file_parts(some[0], origin)
            for part in local.finish():
                yield _StoredPart(self, *part)

    def _file_parts(self, groups: RowGroups, origin: str) -> Iterator[BlockPart]:
        with open_block(self.files, groups, origin) as block:
            with block.mapped_errors():
                sized = zip(range(groups.start, groups.stop), block.group_bytes, strict=True)
                parts = [[number for number, _ in part] for part in group_by_bytes(sized, itemgetter(1))]
                members = self._open(block, self.schema, parts, PART_BYTES)
            for member in members:
                yield _StoredPart(self, block.file, (member,))
            with block.mapped_errors():
                block.check()

    def _open(
        self,
        block: BlockFile,
        schema: pa.Schema,
        parts: Sequence[Sequence[int]],
        piece_bytes: int | None = None,
    ) -> list[StoredRows]:
        """Request the columns of a block's rows: some row groups a part, or those of a piece of one.

        A piece is divided into parts of about ``piece_bytes``; it is one part without.
        """
        if block.groups.is_cut:
            ranges = open_ranges(block, [field.name for field in self.stored_of(schema)], piece_bytes)
            return [StoredRows(block, (rows.group,), rows=rows) for rows in ranges]
        if block.remote is not None:
            # of columns that the file lacks, nothing
            paths = block.footer.leaf_paths(self.stored_of(schema))
            block.fetch([number for part in parts for number in part], paths)
        return [StoredRows(block, tuple(part)) for part in parts]

    def _open_small_files(self, some: Sequence[RowGroups]) -> _StoredPart:
        data, blocks = read_small_files(self.files, some)
        members = [
            StoredRows(block, tuple(range(block.groups.start, block.groups.stop)), start)
            for block, start in blocks
        ]
        return _StoredPart(self, pa.BufferReader(data), tuple(members))

    def _read_files(self, some: Sequence[RowGroups], address: BlockAddress) -> pa.Table:
        filters = self.filter is not None
        if len(some) > 1:
            part = self._open_small_files(some)
            tables = [self._read_member(member) for member in part.members] if filters else []
            return pa.concat_tables(tables) if filters else part.select(list(range(len(self.schema))))
        origin = self.origin_of(some[0], address)
        with open_block(self.files, some[0], origin) as block, block.mapped_errors(filters=filters):
            table = self._filter_rows(block) if filters else self._read_rows(block)
            block.check()
            return table

    def _read_member(self, member: StoredRows) -> pa.Table:
        with member.block.mapped_errors(filters=True):
            return self._filter_rows(member.block)

    def _filter_rows(self, block: BlockFile) -> pa.Table:
        """Read the row groups that the statistics do not rule out one by one, and keep the rows that match."""
        needed = filter_columns(self.filter, self.all_columns)
        schema = with_filter_columns(self.schema, self.all_columns, needed)
        numbers = self._prune_row_groups(block, needed)
        found = [empty_table(self.schema)]
        for member in self._open(block, schema, [(number,) for number in numbers]) if numbers else ():
            table = self._read_columns(member, schema)
            found.append(self.keep_rows(table, member.locate))
        return pa.concat_tables(found)

    def _prune_row_groups(self, block: BlockFile, needed: Sequence[str] | None) -> list[int]:
        """The row groups of a block that can have rows for which the filter is true."""
        import pyarrow.dataset as ds

        groups, schema = block.groups, self.all_columns
        numbers = list(range(groups.start, groups.stop))
        partitions = self.partitions.schema.names
        # statistics are of the values as stored, so they say nothing of those of another type
        same = needed is not None and all(
            name in partitions or block.footer.stored_type(name) == schema.field(name).type for name in needed
        )
        if not same or not can_prune(self.filter, schema):
            return numbers
        format = ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(pre_buffer=False)
        )
        fragment = format.make_fragment(
            pa.BufferReader(block.footer.as_file),
            partition_expression=self.partitions.expression(groups.path),
        )
        # not make_fragment(row_groups=), which converts the indices to a set and reads in its order
        fragment = fragment.subset(row_group_ids=numbers)
        return [group.id for group in fragment.subset(self.filter, schema=schema).row_groups]

    def _read_rows(self, block: BlockFile) -> pa.Table:
        members = self._open(block, self.schema, [range(block.groups.start, block.groups.stop)])
        return self._read_columns(members[0], self.schema) if members else empty_table(self.schema)

    def _read_columns(self, member: StoredRows, schema: pa.Schema) -> pa.Table:
        """Read columns and cast them to ``schema``; those that the file lacks are null."""
        footer, stored = member.block.footer, self.stored_of(schema)
        # Arrow reads old timestamps as nanoseconds unless told otherwise, and those of other centuries wrongly
        coarse = [field for field in stored if _is_coarser(field.type) and footer.has_int96(field.name)]
        table = member.read([field for field in stored if field not in coarse])
        if coarse:
            read = member.read(coarse, coerce_int96_timestamp_unit="us")
            for field in coarse:
                table = table.append_column(field.name, read.column(field.name))
        return conform(table, schema, self.partitions, member.block.groups.path, member.locate)


@dataclass(frozen=True, eq=False)
class _StoredPart:
    """Row groups of one or more files, in their order; each column is decoded on access, without buffering."""

    reader: ParquetReader
    file: Any  # what holds the chunks of all members
    members: tuple[StoredRows, ...]

    @cached_property
    def num_rows(self) -> int:
        return sum(member.num_rows for member in self.members)

    @property
    def schema(self) -> pa.Schema:
        return self.reader.schema

    @timed("decode")
    def select(self, columns: list[int]) -> pa.Table:
        schema = pa.schema([self.schema.field(number) for number in columns])
        if len(self.members) == 1:
            return self._select(self.members[0], schema)
        # the columns of partitions have one value a file
        stored = pa.schema(self.reader.stored_of(schema))
        found = {}
        if len(stored):
            found = _columns(pa.concat_tables([self._select(member, stored) for member in self.members]))
        if len(stored) < len(schema):
            paths = [member.block.groups.path for member in self.members]
            rows = np.repeat(np.arange(len(paths)), [member.num_rows for member in self.members])
            found |= _columns(self.reader.partitions.table(paths).take(pa.array(rows)))
        return pa.Table.from_arrays([found[name] for name in schema.names], schema=schema)

    def _select(self, member: StoredRows, schema: pa.Schema) -> pa.Table:
        with member.block.mapped_errors():
            return self.reader._read_columns(member, schema)

    @timed("decode")
    def scatter_values(
        self,
        columns: Sequence[int],
        packings: NDArray[np.int64],
        targets: NDArray[np.uint32],
        outs: ColumnMemory,
        pool: BufferPool,
    ) -> Scattered:
        # chunks have the rows of their row groups
        if decoder_library.LIBRARY is None or len(targets) != self.num_rows:
            return Scattered.none(len(columns))
        with self._mapped_errors():
            if not len(self._chunk_tables):
                return Scattered.none(len(columns))
            chunks = np.moveaxis(self._chunk_tables[:, columns], 0, 1)
            return chunk_decoder.decode(self.file, chunks, packings, targets, outs, pool)

    def bounds(self, columns: Sequence[int]) -> NDArray[np.int64]:
        fields = self.reader.stored_fields
        tables = [table for member in self.members for table in member.bounds(fields)]
        return join_bounds(tables)[columns] if tables else bounds_table([None] * len(columns))

    @timed("decode")
    def scatter_text(
        self, column: int, targets: NDArray[np.uint32], cuts: Sequence[slice], pool: BufferPool
    ) -> list[pa.Array] | None:
        with self._mapped_errors():
            chunks = self._find_chunks(column, len(targets))
        if not chunks:
            return None
        with self._mapped_errors():
            kind = self.schema.field(column).type
            try:
                return chunk_decoder.decode_text(self.file, chunks, kind, targets, cuts, pool)
            except MemoryError:
                # the stated size can be corrupt: Arrow reads the chunk instead, and reports the rows if it is
                return None

    @timed("decode")
    def decode_nested(self, column: int, pool: BufferPool) -> pa.Array | None:
        stored = self.reader.stored_fields[column]
        if decoder_library.LIBRARY is None or stored is None:
            return None
        leaves = []
        with self._mapped_errors():
            for member in self.members:
                for found in member.nested(*stored):
                    if found is None:
                        return None
                    leaves.append(found)
            if not leaves:
                return None
            try:
                return decode_nested(self.file, leaves, stored[1], pool)
            except MemoryError:
                # as in `scatter_text`
                return None

    def _mapped_errors(self) -> AbstractContextManager[None]:
        """Map the errors of reading a file; of several, joined files do, and bytes that are in memory cause none."""
        return self.members[0].block.mapped_errors() if len(self.members) == 1 else nullcontext()

    @cached_property
    def _chunk_tables(self) -> NDArray[np.int64]:
        """(row groups, columns, ...) the chunks of all columns, in tables as of `chunk_table`."""
        fields = self.reader.stored_fields
        return np.array([table for member in self.members for table in member.chunk_tables(fields)], np.int64)

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
        of_groups = [chunks for member in self.members for chunks in member.chunks(fields)]
        return [
            tuple(chunk for chunk in of_column if chunk is not None) if all(of_column) else ()
            for of_column in zip(*of_groups, strict=True)
        ] or [()] * len(fields)


def _columns(table: pa.Table) -> dict[str, pa.ChunkedArray[Any]]:
    return dict(zip(table.column_names, table.columns, strict=True))


def _is_coarser(kind: Any) -> bool:
    """Whether a type holds timestamps in another unit than nanoseconds."""
    if pt.is_timestamp(kind):
        return bool(kind.unit != "ns")
    return any(map(_is_coarser, child_types(kind)))

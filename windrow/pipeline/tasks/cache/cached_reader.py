"""Reads the blocks of a task: from what is kept, else from the source."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from windrow.core.source import BlockAddress, BlockPart, BlockReader, maps_files
from windrow.pipeline.tasks.cache.cache_report import CacheReport
from windrow.pipeline.tasks.cache.column_ranges import Ranges, note_ranges, take_ranges
from windrow.pipeline.tasks.cache.disk_cache import DiskCache
from windrow.pipeline.tasks.cache.recording import record_parts
from windrow.pipeline.tasks.read_ahead import BlocksAhead
from windrow.pipeline.tasks.read_only import sealed

__all__ = ["CachingReader", "Tables"]

# the parts of a block, each a table whose columns are contiguous
Tables = list[pa.Table]


def _seal(table: pa.Table) -> pa.Table:
    return pa.Table.from_arrays([sealed(column) for column in table.columns], schema=table.schema)


@dataclass(frozen=True, eq=False)
class _KeptPart:
    """A table whose schema is shared with others, and what is known of its words."""

    table: pa.Table
    schema: pa.Schema
    ranges: Ranges

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    def select(self, columns: list[int]) -> pa.Table:
        return self.table.select(columns)

    def bounds(self, column: int) -> tuple[int, int] | None:
        return self.ranges.get(column)


def _is_worth_asking_for(
    disk: DiskCache | None, blocks: Sequence[int], found: Mapping[int, Tables], at: int
) -> bool:
    """Whether a block will be read here: not from what is kept, nor where others may be about to keep it."""
    return at not in found and (disk is None or not (disk.has_room or disk.has(blocks[at])))


class CachingReader:
    """The blocks of one task.

    Parameters
    ----------
    reader
        The source's.
    disk
        Where blocks are kept on disk, or None.
    blocks, addresses
        The task's blocks: their numbers, and where they are stored.
    found
        Blocks that are kept in memory, by their place in ``blocks``.
    keeps
        The places of those to be kept in memory.
    """

    def __init__(
        self,
        reader: BlockReader,
        disk: DiskCache | None,
        blocks: Sequence[int],
        addresses: Sequence[BlockAddress],
        *,
        found: Mapping[int, Tables],
        keeps: Sequence[int],
    ) -> None:
        # no method of this object: the two would keep each other, and all blocks, until a collection
        is_wanted = partial(_is_worth_asking_for, disk, blocks, found)
        self._ahead = BlocksAhead(reader, addresses, is_wanted)
        self._maps = bool(keeps) and maps_files(reader)
        self._disk = disk
        self._blocks = blocks
        self._found = found
        self._keeps = {at: list[pa.Table]() for at in keeps}
        self._hits = self._misses = self._disk_bytes = 0
        self._schema: pa.Schema | None = None

    @property
    def kept(self) -> list[Tables]:
        """The tables of each block that is to be kept."""
        return list(self._keeps.values())

    def report(self) -> CacheReport:
        """What has been found and kept, and what went wrong in this process since the last report."""
        faults = CacheReport() if self._disk is None else self._disk.take_report()
        return replace(
            faults,
            hits=self._hits,
            misses=self._misses,
            kept_bytes=tuple(sum(table.nbytes for table in tables) for tables in self.kept),
            disk_bytes=self._disk_bytes,
        )

    def read(self, at: int) -> pa.Table:
        """A block as one table."""
        with self._look_up(at) as tables:
            # what is kept of a block without rows has lost its schema
            if tables:
                metadata = take_ranges(tables[0].schema)[0].metadata
                return pa.concat_tables([table.replace_schema_metadata(metadata) for table in tables])
            table = self._ahead.read(at)
            if self._is_wanted(at):
                # transforms see what later epochs will see
                table = _seal(table.combine_chunks())
                self._keep(at, [table])
            return table

    def parts(self, at: int) -> Iterator[BlockPart]:
        """A block part by part, as `BlockReader.parts` has it."""
        if self._maps and at in self._keeps:
            # what is kept must not be a view of a file that may be written to in place
            yield self.read(at)
            return
        with self._look_up(at) as tables:
            if tables is not None:
                for table in tables:
                    schema, ranges = take_ranges(table.schema)
                    schema = self._share_schema(schema)
                    yield _KeptPart(table.replace_schema_metadata(schema.metadata), schema, ranges)
                return
            parts = self._ahead.parts(at)
            if not self._is_wanted(at):
                yield from parts
                return
            tables = []
            yield from record_parts(parts, tables)
            self._keep(at, tables)

    def _share_schema(self, schema: pa.Schema) -> pa.Schema:
        """The same object for equal schemas, as a reader has it: outputs then are as large as its own.

        In Ray's store they take the place of earlier ones, and a byte more would not fit.
        """
        if self._schema is None or not self._schema.equals(schema, check_metadata=True):
            self._schema = schema
        return self._schema

    @contextmanager
    def _look_up(self, at: int) -> Iterator[Tables | None]:
        """What is kept of a block; None where it is to be read, meanwhile by nobody else."""
        tables = self._find(at)
        with ExitStack() as alone:
            if tables is None and self._disk is not None and self._disk.has_room:
                alone.enter_context(self._disk.reading(self._blocks[at]))
                tables = self._find(at)
                if tables is not None:
                    alone.close()
            self._hits += tables is not None
            self._misses += tables is None
            yield tables

    def _find(self, at: int) -> Tables | None:
        tables = self._found.get(at)
        if tables is None and self._disk is not None:
            tables = self._disk.find(self._blocks[at])
        return tables

    def _is_wanted(self, at: int) -> bool:
        return at in self._keeps or (self._disk is not None and self._disk.has_room)

    def _keep(self, at: int, tables: Tables) -> None:
        tables = note_ranges(tables)
        if at in self._keeps:
            self._keeps[at] = tables
        if self._disk is not None:
            self._disk_bytes += self._disk.keep(self._blocks[at], tables)

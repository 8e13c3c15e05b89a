"""Reads the blocks of a task: cached blocks first, others from the source, the next ones while one is decoded."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.frame_of_reference import bounds_table, is_packable
from windrow.core.phase_clock import PhaseClock, counting, current_clock, phase, timed
from windrow.core.source import (
    BlockAddress,
    BlockPart,
    BlockReader,
    column_bounds,
    is_remote,
    join_blocks,
    maps_files,
)
from windrow.io.storage.retries import call_ahead
from windrow.pipeline.tasks.cache.disk_cache import CacheReport, DiskCache
from windrow.pipeline.tasks.held_arrays import as_immutable
from windrow.shuffle.kernels.arrow_columns import join
from windrow.shuffle.kernels.bit_packing import find_ranges

# The blocks of a task are small where it has several: together hardly larger than one block can be.
_READ_AHEAD_BLOCKS = 4
# where the schema metadata of a cached table holds column statistics
_RANGES_KEY = b"windrow:ranges"
# the parts of a block, each a table whose columns are contiguous
Tables = list[pa.Table]
Ranges = Mapping[int, tuple[int, int]]


class ReadAhead:
    """Reads the blocks of a task in order, and starts reading the next ones meanwhile if the reader is remote.

    ``will_be_read`` says whether the task will read a block, given its index in ``addresses``.
    """

    def __init__(
        self, reader: BlockReader, addresses: Sequence[BlockAddress], will_be_read: Callable[[int], bool]
    ) -> None:
        self._reader = reader
        self._addresses = addresses
        self._will_be_read = will_be_read
        self._is_remote = is_remote(reader)
        self._started: dict[int, Future[Any]] = {}

    def read(self, at: int) -> pa.Table:
        """Read a block as one table; a second call reads it again."""
        if at not in self._started:
            self._start_next(at)
            return self._reader.read(self._addresses[at])
        tables = [part.select(list(range(len(part.schema)))) for part in self.parts(at)]
        return pa.concat_tables(tables) if tables else self._reader.read(self._addresses[at])

    def parts(self, at: int) -> Iterator[BlockPart]:
        """Read a block part by part, as `BlockReader.parts` does."""
        started = self._started.pop(at, None)
        self._start_next(at)
        if started is None:
            yield from self._reader.parts(self._addresses[at])
            return
        with phase("storage"):
            first, rest = started.result()
        if first is not None:
            yield first
            del first
            yield from rest

    def _start_next(self, at: int) -> None:
        """Start reading the blocks after block ``at``."""
        if not self._is_remote:
            return
        for later in range(at + 1, min(at + 1 + _READ_AHEAD_BLOCKS, len(self._addresses))):
            if later not in self._started and self._will_be_read(later):
                call = partial(_first_part, self._reader, self._addresses[later], current_clock())
                (self._started[later],) = call_ahead([call], 1, "windrow-ahead")


def _first_part(
    reader: BlockReader, address: BlockAddress, clock: PhaseClock | None
) -> tuple[BlockPart | None, Iterator[BlockPart]]:
    """Get the first part of a block, which requests all bytes of the block."""
    with counting(clock):
        parts = reader.parts(address)
        return next(parts, None), parts


@dataclass(frozen=True, eq=False)
class _CachedPart:
    """A cached table with its column statistics, and a schema object shared by all parts."""

    table: pa.Table
    schema: pa.Schema
    ranges: Ranges

    @property
    def num_rows(self) -> int:
        return int(self.table.num_rows)

    def select(self, columns: list[int]) -> pa.Table:
        return self.table.select(columns)

    def bounds(self, columns: Sequence[int]) -> NDArray[np.int64]:
        return bounds_table([self.ranges.get(column) for column in columns])


def _will_be_read(
    disk: DiskCache | None, blocks: Sequence[int], found: Mapping[int, Tables], at: int
) -> bool:
    """Whether to read a block ahead: it is not cached, and no other process can be about to cache it."""
    return at not in found and (disk is None or not (disk.accepts_blocks or disk.contains(blocks[at])))


class CachingReader:
    """Reads the blocks of one task, given their numbers and addresses.

    ``found`` holds the blocks cached in memory, by their index in ``blocks``; ``keeps`` lists the indices of
    those to cache in memory.
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
        # not a bound method: the reference cycle would keep all blocks alive until a garbage collection
        will_be_read = partial(_will_be_read, disk, blocks, found)
        self._ahead = ReadAhead(reader, addresses, will_be_read)
        self._reader, self._addresses = reader, addresses
        self._maps_files = bool(keeps) and maps_files(reader)
        self._disk = disk
        self._blocks = blocks
        self._found = found
        self._keeps = {at: list[pa.Table]() for at in keeps}
        self._hits = self._misses = self._disk_bytes = 0
        self._schema: pa.Schema | None = None

    @property
    def caches(self) -> bool:
        """Whether blocks of the task come from a cache, or go to one."""
        return bool(self._found or self._keeps) or self._disk is not None

    @property
    def cached_tables(self) -> list[Tables]:
        """The tables of each block to cache in memory."""
        return list(self._keeps.values())

    def report(self) -> CacheReport:
        """The hits and misses of this task, and the cache errors of this process since the last report."""
        faults = CacheReport() if self._disk is None else self._disk.take_report()
        return replace(
            faults,
            hits=self._hits,
            misses=self._misses,
            cached_bytes=tuple(sum(map(arrow_bytes, tables)) for tables in self.cached_tables),
            disk_bytes=self._disk_bytes,
        )

    def read(self, at: int) -> pa.Table:
        """Read a block as one table."""
        with self._look_up(at) as tables:
            # an empty list: a cached block without rows, whose schema is unknown
            if tables:
                metadata = detach_ranges(tables[0].schema)[0].metadata
                return pa.concat_tables([table.replace_schema_metadata(metadata) for table in tables])
            table = self._ahead.read(at)
            if self._should_cache(at):
                # transforms get the same read-only columns as in later epochs
                columns = [as_immutable(column) for column in table.combine_chunks().columns]
                table = pa.Table.from_arrays(columns, schema=table.schema)
                self._add_to_cache(at, [table])
            return table

    def parts(self, at: int) -> Iterator[BlockPart]:
        """Read a block part by part, as `BlockReader.parts` does."""
        if self._maps_files and at in self._keeps:
            # copied: a cached block must not be a view of a file that can be written to in place
            yield self.read(at)
            return
        with self._look_up(at) as tables:
            if tables is not None:
                for table in tables:
                    schema, ranges = detach_ranges(table.schema)
                    schema = self._share_schema(schema)
                    yield _CachedPart(table.replace_schema_metadata(schema.metadata), schema, ranges)
                return
            parts = self._ahead.parts(at)
            if not self._should_cache(at):
                yield from parts
                return
            tables = []
            yield from record_parts(parts, tables)
            self._add_to_cache(at, tables)

    def join(self, first: int, stop: int) -> BlockAddress | None:
        """The address of one block with the rows of some; None if these are to be read one by one."""
        return None if self.caches else join_blocks(self._reader, self._addresses[first:stop])

    def joined_parts(self, joined: BlockAddress, count: int) -> Iterator[BlockPart]:
        """Read so many blocks part by part, where parts can have rows of several."""
        self._misses += count
        yield from self._reader.parts(joined)

    def _share_schema(self, schema: pa.Schema) -> pa.Schema:
        """Return the same object for equal schemas, so that outputs pickle to the same size as uncached ones.

        Ray's object store then reuses the space of freed outputs, where a larger one would not fit.
        """
        if self._schema is None or not self._schema.equals(schema, check_metadata=True):
            self._schema = schema
        return self._schema

    @contextmanager
    def _look_up(self, at: int) -> Iterator[Tables | None]:
        """Get the cached tables of a block; None to read it, while a lock keeps other processes from doing so."""
        tables = self._find_cached(at)
        with ExitStack() as exclusive:
            if tables is None and self._disk is not None and self._disk.accepts_blocks:
                exclusive.enter_context(self._disk.reading(self._blocks[at]))
                tables = self._find_cached(at)
                if tables is not None:
                    exclusive.close()
            self._hits += tables is not None
            self._misses += tables is None
            yield tables

    def _find_cached(self, at: int) -> Tables | None:
        tables = self._found.get(at)
        if tables is None and self._disk is not None:
            tables = self._disk.find(self._blocks[at])
        return tables

    def _should_cache(self, at: int) -> bool:
        return at in self._keeps or (self._disk is not None and self._disk.accepts_blocks)

    def _add_to_cache(self, at: int, tables: Tables) -> None:
        tables = attach_ranges(tables)
        if at in self._keeps:
            self._keeps[at] = tables
        if self._disk is not None:
            self._disk_bytes += self._disk.put(self._blocks[at], tables)


class _RecordedPart:
    """A part that keeps its decoded columns, each as one contiguous array."""

    def __init__(self, part: BlockPart) -> None:
        self._part = part
        self._columns: dict[int, pa.Array] = {}

    @property
    def num_rows(self) -> int:
        return self._part.num_rows

    @property
    def schema(self) -> pa.Schema:
        return self._part.schema

    @timed("decode")
    def select(self, columns: list[int]) -> pa.Table:
        for number in columns:
            if number not in self._columns:
                self._columns[number] = join(self._part.select([number]))
        schema = pa.schema([self.schema.field(number) for number in columns])
        return pa.Table.from_arrays([self._columns[number] for number in columns], schema=schema)

    def bounds(self, columns: Sequence[int]) -> NDArray[np.int64]:
        found = column_bounds(self._part, columns).copy()
        for at in np.flatnonzero(found[:, 0] > found[:, 1]).tolist():
            found[at] = bounds_table([find_ranges([self.select([columns[at]]).column(0)])])
        return found

    def table(self) -> pa.Table:
        return self.select(list(range(len(self.schema))))


def record_parts(parts: Iterable[BlockPart], tables: list[pa.Table]) -> Iterator[BlockPart]:
    """Yield the parts of a block, and append each one's decoded table to ``tables``.

    The table of a part is appended when the next part is requested; the last one at the end.
    """
    for part in parts:
        if isinstance(part, pa.Table):
            whole = part.combine_chunks()
            yield whole
            tables.append(whole)
            continue
        recorded = _RecordedPart(part)
        yield recorded
        if recorded.num_rows:
            tables.append(recorded.table())


def attach_ranges(tables: Sequence[pa.Table]) -> list[pa.Table]:
    """Add the min and max of each integer or time column, over all tables, to the schema metadata.

    Examples
    --------
    >>> (table,) = attach_ranges([pa.table({"x": [3, -1], "s": ["a", "b"]})])
    >>> schema, ranges = detach_ranges(table.schema)
    >>> schema.metadata, ranges
    (None, {0: (-1, 3)})
    """
    ranges = {}
    for number, kind in enumerate(tables[0].schema.types if tables else ()):
        found = find_ranges([table.column(number) for table in tables]) if is_packable(kind) else None
        if found is not None:
            ranges[number] = found
    note = {_RANGES_KEY: json.dumps(list(ranges.items())).encode()}
    return [table.replace_schema_metadata({**(table.schema.metadata or {}), **note}) for table in tables]


def detach_ranges(schema: pa.Schema) -> tuple[pa.Schema, Ranges]:
    """Split a schema into the one without column statistics, and the statistics by column number."""
    metadata = dict(schema.metadata or {})
    ranges = {number: (low, high) for number, (low, high) in json.loads(metadata.pop(_RANGES_KEY, b"[]"))}
    return schema.with_metadata(metadata) if metadata else schema.remove_metadata(), ranges

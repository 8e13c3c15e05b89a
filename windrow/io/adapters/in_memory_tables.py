"""Sources in memory: Arrow tables, pickled by value or as references to Ray's object store; a range of integers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.source import BlockAddress
from windrow.io.catalog.content_digest import digest_table
from windrow.io.catalog.listed_source import ListedSource, WholeBlockReader
from windrow.io.catalog.safe_casts import cast_table
from windrow.io.catalog.schemas import unify_schemas
from windrow.io.catalog.value_sizes import (
    count_nulls,
    cut_rows,
    make_block_table,
    weigh_table,
    weigh_tables,
)

# Returns what `InMemoryBlocks.__reduce__` returns; None pickles the blocks by value.
Carry = Callable[["InMemoryBlocks"], "tuple[Any, ...] | None"]
# of integers
_COLUMN, _BYTES = "id", 8


class InMemoryBlocks:
    """Tables in this process's memory, one for each block; they can be slices of larger tables.

    ``carry`` is called on each pickling: where processes share an object store, it puts the blocks there
    once, and the pickle holds references. It must be a module-level function, since it is pickled too.
    ``carried`` is reserved for it, to cache its result.
    """

    def __init__(self, tables: Sequence[pa.Table], carry: Carry | None = None) -> None:
        self._tables = tuple(tables)
        self._carry = carry
        self.carried: Any = None

    def block(self, number: int) -> pa.Table:
        return self._tables[number]

    def pack(self) -> list[pa.Buffer]:
        return [_pack_table(table) for table in self._tables]

    def __reduce__(self) -> tuple[Any, ...]:
        carried = None if self._carry is None else self._carry(self)
        return (_restore, (self.pack(), self._carry)) if carried is None else carried


@dataclass(frozen=True, eq=False)
class InMemoryReader(WholeBlockReader):
    """Reads blocks in memory; a block's locator is its index."""

    # an `InMemoryBlocks`, or what it was unpickled to
    held: Any

    def read(self, address: BlockAddress) -> pa.Table:
        return self.held.block(address.locator)


def hold_tables(
    tables: Sequence[pa.Table], name: str, target_block_bytes: int, carry: Carry | None = None
) -> ListedSource:
    """Create a source of concatenated tables, cut into blocks of equal rows.

    Blocks have equal rows, give or take one, at about ``target_block_bytes`` of values each;
    boundaries between tables do not matter.
    """
    table = _join_tables(tables, name)
    borders = cut_rows(table.num_rows, weigh_table(table), target_block_bytes).tolist()
    blocks = [table.slice(start, stop - start) for start, stop in pairwise(borders)]
    return ListedSource(
        name=name,
        schema=table.schema,
        blocks=weigh_tables(blocks, table.schema),
        block_addresses=tuple(
            BlockAddress(f"{name}, rows {start}-{stop - 1}", number)
            for number, (start, stop) in enumerate(pairwise(borders))
        ),
        reader=InMemoryReader(InMemoryBlocks(blocks, carry)),
        fingerprint=digest_table(table),
        null_counts=count_nulls(table),
        block_bytes=target_block_bytes,
        fragments=len(tables),
    )


def _join_tables(tables: Sequence[pa.Table], name: str) -> pa.Table:
    """Concatenate tables, with the types that hold the values of all."""
    schemas = [(f"{name}[{index}]", table.schema) for index, table in enumerate(tables)]
    schema = unify_schemas(schemas)
    return pa.concat_tables(
        [_conform(table, schema, f"{name}[{index}]") for index, table in enumerate(tables)]
    )


def _conform(table: pa.Table, schema: pa.Schema, name: str) -> pa.Table:
    table = table.select(schema.names).replace_schema_metadata(None)
    # tables of the right types need no cast, nor the modules that a cast imports
    return (
        pa.table(table.columns, schema=schema)
        if table.schema.types == schema.types
        else cast_table(table, schema, lambda row: f"{name}, row {row}")
    )


def _restore(buffers: Sequence[pa.Buffer], carry: Carry | None) -> InMemoryBlocks:
    return InMemoryBlocks([unpack_table(buffer) for buffer in buffers], carry)


def _pack_table(table: pa.Table) -> pa.Buffer:
    """Serialize a table as an Arrow IPC stream; of a slice only its own rows, unlike pickling."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpack_table(buffer: pa.Buffer) -> pa.Table:
    """Deserialize a table; zero-copy, so it references ``buffer``."""
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_all()


@dataclass(frozen=True)
class NumbersReader(WholeBlockReader):
    """Generates blocks of integers; a block's locator is (start, stop)."""

    def read(self, address: BlockAddress) -> pa.Table:
        return pa.table({_COLUMN: pa.array(np.arange(*address.locator, dtype=np.int64))})


def count_up(stop: int, block_rows: int) -> ListedSource:
    """Create a source of the integers 0 to ``stop`` - 1, in blocks of ``block_rows``; the last can be shorter."""
    starts = np.arange(0, stop, block_rows, dtype=np.int64)
    rows = np.minimum(stop - starts, block_rows)
    schema = pa.schema([pa.field(_COLUMN, pa.int64())])
    return ListedSource(
        name=f"range({stop})",
        schema=schema,
        blocks=make_block_table(rows, rows * _BYTES, schema),
        block_addresses=tuple(
            BlockAddress(f"range, rows {start}-{start + count - 1}", (start, start + count))
            for start, count in zip(starts.tolist(), rows.tolist(), strict=True)
        ),
        reader=NumbersReader(),
        fingerprint=hashlib.sha256(f"range {_COLUMN} {stop}".encode()).hexdigest(),
        null_counts={_COLUMN: 0},
        block_bytes=block_rows * _BYTES,
        fragments=1,
    )

"""Blocks held in memory, and their pickling: by value, or as references to Ray's object store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

__all__ = ["Carry", "InMemoryBlocks", "pack_table", "unpack_table"]

# Returns what `InMemoryBlocks.__reduce__` returns; None pickles the blocks by value.
Carry = Callable[["InMemoryBlocks"], "tuple[Any, ...] | None"]


class InMemoryBlocks:
    """Tables in this process's memory, one for each block.

    Parameters
    ----------
    tables
        The blocks; they can be slices of larger tables.
    carry
        Called on each pickling: where processes share an object store, it puts the blocks there once,
        and the pickle holds references. Must be a module-level function, since it is pickled too.

    Attributes
    ----------
    carried
        Reserved for ``carry``, to cache its result.
    """

    def __init__(self, tables: Sequence[pa.Table], carry: Carry | None = None) -> None:
        self._tables = tuple(tables)
        self._carry = carry
        self.carried: Any = None

    def block(self, number: int) -> pa.Table:
        """The table of a block."""
        return self._tables[number]

    def pack(self) -> list[pa.Buffer]:
        """Serialize all blocks."""
        return [pack_table(table) for table in self._tables]

    def __reduce__(self) -> tuple[Any, ...]:
        carried = None if self._carry is None else self._carry(self)
        return (_restore, (self.pack(), self._carry)) if carried is None else carried


def _restore(buffers: Sequence[pa.Buffer], carry: Carry | None) -> InMemoryBlocks:
    return InMemoryBlocks([unpack_table(buffer) for buffer in buffers], carry)


def pack_table(table: pa.Table) -> pa.Buffer:
    """Serialize a table as an Arrow IPC stream; of a slice only its own rows, unlike pickling."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpack_table(buffer: pa.Buffer) -> pa.Table:
    """Deserialize a table; zero-copy, so it references ``buffer``."""
    with pa.ipc.open_stream(buffer) as reader:
        return reader.read_all()

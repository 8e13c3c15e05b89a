"""Blocks held in memory, and how they go to other processes: whole, or carried by a store of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

__all__ = ["Carry", "InMemoryBlocks", "pack_table", "unpack_table"]

# What a `InMemoryBlocks` is to be pickled as, as `__reduce__` returns it; None: its bytes.
Carry = Callable[["InMemoryBlocks"], "tuple[Any, ...] | None"]


class InMemoryBlocks:
    """Tables in this process's memory, one for each block.

    Parameters
    ----------
    tables
        The blocks; they may be slices of larger ones.
    carry
        Asked whenever this is pickled: where processes share a store, the blocks are put there
        once, and what is pickled names them. A function of a module, since it is pickled too.

    Attributes
    ----------
    carried
        For ``carry``: what it made of this, to be found again.
    """

    def __init__(self, tables: Sequence[pa.Table], carry: Carry | None = None) -> None:
        self._tables = tuple(tables)
        self._carry = carry
        self.carried: Any = None

    def block(self, number: int) -> pa.Table:
        """The table of a block."""
        return self._tables[number]

    def pack(self) -> list[pa.Buffer]:
        """All blocks as bytes."""
        return [pack_table(table) for table in self._tables]

    def __reduce__(self) -> tuple[Any, ...]:
        carried = None if self._carry is None else self._carry(self)
        return (_restore, (self.pack(), self._carry)) if carried is None else carried


def _restore(parcels: Sequence[pa.Buffer], carry: Carry | None) -> InMemoryBlocks:
    return InMemoryBlocks([unpack_table(parcel) for parcel in parcels], carry)


def pack_table(table: pa.Table) -> pa.Buffer:
    """A table as bytes; of a slice no more than its own rows, which pickling would not see to."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def unpack_table(parcel: pa.Buffer) -> pa.Table:
    """The table of some bytes, which it lies in."""
    with pa.ipc.open_stream(parcel) as reader:
        return reader.read_all()

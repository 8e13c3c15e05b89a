"""Read-ahead within a task: requests the next blocks from object storage while one is decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import pyarrow as pa

from windrow.core.phase_clock import PhaseClock, counting, current_clock, phase
from windrow.core.source import BlockAddress, BlockPart, BlockReader, RemoteReader
from windrow.io.storage.retries import call_ahead

__all__ = ["ReadAhead"]

# The blocks of a task are small where it has several: together hardly larger than one block can be.
_READ_AHEAD_BLOCKS = 4


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
        self._is_remote = isinstance(reader, RemoteReader) and reader.is_remote
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

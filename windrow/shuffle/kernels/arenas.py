"""Memory layout of map outputs under construction: one buffer per map output, with all fixed-width columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import ALIGNMENT_BYTES, BufferPool
from windrow.core.frame_of_reference import Packing
from windrow.core.native_libraries import address_of
from windrow.shuffle.kernels.bit_packing import pack_values
from windrow.shuffle.kernels.fixed_width import PlainRows, fixed_width_bytes, rows_view

__all__ = ["Arenas", "MapOutputColumn"]

_PLACE_BYTES, _WORD_BYTES = 4, 8


@dataclass(frozen=True, eq=False)
class MapOutputColumn:
    """The memory of one column in all map outputs.

    Attributes
    ----------
    buffers
        The buffer of each map output.
    starts, sizes
        (map outputs,) the column's offset and bytes in each buffer.
    addresses
        (map outputs,) the address of the column in each buffer.
    width, packing
        Unpacked bytes per row, and the frame-of-reference encoding.
    """

    buffers: Sequence[NDArray[np.uint8]]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    addresses: NDArray[np.int64]
    width: int
    packing: Packing

    def view(self, at: int, kind: Any) -> NDArray[Any]:
        """The column's memory in one map output, viewed as a dtype."""
        start = int(self.starts[at])
        return self.buffers[at][start : start + int(self.sizes[at])].view(kind)

    def write(self, at: int, rows: PlainRows) -> bool:
        """Write the column of one map output; returns False if a value does not fit the packing."""
        memory = self.view(at, np.uint8)
        if self.packing.bytes != self.width:
            return pack_values(rows, self.packing, memory)
        np.copyto(rows_view(memory, self.width), rows)
        return True

    def gather(self, at: int, values: PlainRows, part: NDArray[np.int64]) -> bool:
        """Write selected rows to one map output; returns False if a value does not fit the packing."""
        if self.packing.bytes != self.width:
            return self.write(at, values[part])
        if len(part):
            np.take(values, part, axis=0, out=rows_view(self.view(at, np.uint8), self.width), mode="clip")
        return True


class Arenas:
    """The memory of several map outputs: one buffer each, so that a map output is freed as a whole.

    Validity is allocated later, since only decoding shows whether a column has nulls.

    Attributes
    ----------
    rows
        (map outputs,) rows of each one.
    places, columns
        The memory of the places, and of each fixed-width column by number.
    """

    def __init__(
        self,
        schema: pa.Schema,
        packing: Mapping[int, Packing],
        map_output_rows: Sequence[int],
        pool: BufferPool,
    ) -> None:
        self.rows = np.array(map_output_rows, np.int64)
        self._pool = pool
        # (columns, map outputs)
        sizes = np.outer([how.bytes for how in packing.values()], self.rows).astype(np.int64)
        self._start = _aligned(self.rows * _PLACE_BYTES, ALIGNMENT_BYTES)
        ends = self._start + np.cumsum(_aligned(sizes), axis=0)
        starts = np.concatenate([self._start[None], ends])
        self._stop = starts[-1]
        self._buffers = [pool.take(nbytes) for nbytes in self._stop.tolist()]
        addresses = np.array([address_of(memory) for memory in self._buffers], np.int64)
        column_addresses = addresses + starts
        self.places = MapOutputColumn(
            self._buffers,
            np.zeros_like(self.rows),
            self.rows * _PLACE_BYTES,
            addresses,
            _PLACE_BYTES,
            Packing(_PLACE_BYTES, 0),
        )
        self.columns = {
            number: MapOutputColumn(
                self._buffers,
                starts[at],
                sizes[at],
                column_addresses[at],
                fixed_width_bytes(schema.field(number).type),
                how,
            )
            for at, (number, how) in enumerate(packing.items())
        }
        self._flags: dict[int, MapOutputColumn] = {}

    def take_validity(self, number: int) -> MapOutputColumn:
        """Allocate the validity bytes of a column with nulls."""
        buffers = [self._pool.take(rows) for rows in self.rows.tolist()]
        addresses = np.array([address_of(memory) for memory in buffers], np.int64)
        starts = np.zeros_like(self.rows)
        self._flags[number] = MapOutputColumn(buffers, starts, self.rows, addresses, 1, Packing(1, 0))
        return self._flags[number]

    def values(self, at: int) -> NDArray[np.uint8]:
        """The bytes of all fixed-width columns of one map output."""
        return self._buffers[at][int(self._start[at]) : int(self._stop[at])]

    def packing(self, at: int) -> NDArray[np.int64]:
        """Offset and packing of each fixed-width column, as in `MapOutput.packing`."""
        start = int(self._start[at])
        rows = [(int(each.starts[at]) - start, *each.packing) for each in self.columns.values()]
        return np.array(rows, np.int64).reshape(-1, 3)

    def validity(self, at: int) -> dict[int, NDArray[np.uint8]]:
        """The validity bytes of one map output, by column number."""
        return {number: flags.view(at, np.uint8) for number, flags in self._flags.items()}


def _aligned(sizes: NDArray[np.int64], alignment: int = _WORD_BYTES) -> NDArray[np.int64]:
    return -(-sizes // alignment) * alignment

"""`MapOutput`, what a map task sends to a shard: rows of one block, grouped by run; and its memory while it is made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# before any map output is pickled
from windrow.core import arrow_pickling as arrow_pickling
from windrow.core.arrow_bytes import arrow_bytes
from windrow.core.buffer_pool import ALIGNMENT_BYTES, BufferPool
from windrow.core.cached_properties import cached_property
from windrow.core.frame_of_reference import Packing
from windrow.core.native_libraries import address_of
from windrow.shuffle.kernels.arrow_columns import move_column
from windrow.shuffle.kernels.bit_packing import pack_values, unpack_values
from windrow.shuffle.kernels.fixed_width import PlainRows, column_widths, list_rows_of, pack, rows_view
from windrow.shuffle.kernels.nested_columns import NestedColumn

# the bytes of a row's place within its run
PLACE_BYTES = 4
_WORD_BYTES = 8
# of most map outputs: the garbage collector looks at each dict that lives
_NO_NULLS: Mapping[int, NDArray[np.uint8]] = {}


@dataclass(frozen=True, eq=False)
class MapOutput:
    """Rows of one block, grouped by run.

    The fixed-width columns are contiguous in one buffer, each frame-of-reference encoded in as few bytes as
    its values need. Pickle protocol 5 sends the buffers out of band, without copying unrelated memory.
    """

    schema: pa.Schema
    run_starts: NDArray[np.int64]
    places: NDArray[np.uint32]  # by row: its offset within its run
    values: NDArray[np.uint8]  # the bytes of all fixed-width columns
    packing: NDArray[np.int64]
    validity: Mapping[int, NDArray[np.uint8]]  # by the number of a fixed-width column with nulls: a bit a row
    others: pa.RecordBatch  # the columns without a fixed width

    @property
    def num_rows(self) -> int:
        return len(self.places)

    @property
    def nbytes(self) -> int:
        arrays: list[PlainRows] = [self.run_starts, self.places, self.values, *self.validity.values()]
        others = arrow_bytes(self.others) if self.others.num_columns else 0
        return others + sum([array.nbytes for array in arrays])

    @property
    def unpacked_bytes(self) -> int:
        """The number of bytes without frame-of-reference encoding."""
        widths = sum(column_widths(self.schema).widths)
        return self.nbytes - self.values.nbytes + widths * self.num_rows

    def __reduce__(self) -> tuple[Any, ...]:
        # cached properties hold addresses and views, which must not be pickled
        return MapOutput, tuple(getattr(self, each.name) for each in fields(self))

    def of_runs(self, first: int, count: int) -> MapOutput:
        """The same rows, of which only ``count`` runs from ``first`` on are named; they are numbered from 0."""
        starts = self.run_starts[first : first + count + 1]
        # a round has one of these for each block of its windows, and `replace` takes longer
        found = MapOutput(
            self.schema, starts, self.places, self.values, self.packing, self.validity, self.others
        )
        # the memory is the same
        object.__setattr__(found, "places_address", self.places_address)
        object.__setattr__(found, "sources", self.sources)
        return found

    def gather(self, rows: NDArray[np.int64], places: NDArray[np.uint32], pool: BufferPool) -> MapOutput:
        """Copy some rows, in any order, to a map output with a single run."""
        count, packing = len(rows), self.packing.copy()
        sizes = _aligned(packing[:, 1] * count, ALIGNMENT_BYTES)
        packing[:, 0] = np.cumsum(sizes) - sizes
        values = pool.take(int(sizes.sum()))
        for (start, width, _), target in zip(self.packing.tolist(), packing[:, 0].tolist(), strict=True):
            if width:
                source = rows_view(self.values[start : start + self.num_rows * width], width)
                out = rows_view(values[target : target + count * width], width)
                np.take(source, rows, axis=0, out=out, mode="clip")
        others = self.others
        moved = [
            move_column(column, rows, name, pool)
            for name, column in zip(others.schema.names, others.columns, strict=True)
        ]
        return MapOutput(
            schema=self.schema,
            run_starts=np.array([0, count], np.int64),
            places=places,
            values=values,
            packing=packing,
            validity={number: pack(_take_bits(bits, rows)) for number, bits in self.validity.items()},
            others=pa.RecordBatch.from_arrays(moved, schema=others.schema),
        )

    def select(
        self,
        numbers: Sequence[int],
        replaced: Mapping[int, tuple[pa.Array, pa.Field]],
        *,
        copies: bool,
    ) -> MapOutput:
        """The same rows with some of the columns, given by number.

        ``replaced`` has other values for columns without a fixed width. ``copies``: no memory of other columns is kept.
        """
        widths = column_widths(self.schema)
        fixed = [at for at, number in enumerate(widths.fixed) if number in numbers]
        places = {number: at for at, number in enumerate(widths.others)}
        packing, values = self.packing[fixed].reshape(-1, 3), self.values
        if copies:
            starts, sizes = packing[:, 0].copy(), packing[:, 1] * self.num_rows
            aligned = _aligned(sizes, ALIGNMENT_BYTES)
            packing[:, 0] = np.cumsum(aligned) - aligned
            values = np.empty(int(aligned.sum()), np.uint8)
            for start, target, size in zip(
                starts.tolist(), packing[:, 0].tolist(), sizes.tolist(), strict=True
            ):
                values[target : target + size] = self.values[start : start + size]
        kept = {
            number: replaced.get(number)
            or (self.others.column(places[number]), self.others.schema.field(places[number]))
            for number in numbers
            if number in places
        }
        fields = [kept[number][1] if number in kept else self.schema.field(number) for number in numbers]
        return MapOutput(
            schema=pa.schema(fields, self.schema.metadata),
            run_starts=self.run_starts,
            places=self.places,
            values=values,
            packing=packing,
            validity={
                at: self.validity[number] for at, number in enumerate(numbers) if number in self.validity
            },
            others=pa.RecordBatch.from_arrays(
                [array for array, _ in kept.values()], schema=pa.schema([field for _, field in kept.values()])
            ),
        )

    @cached_property
    def places_address(self) -> int:
        return address_of(self.places)

    @cached_property
    def sources(self) -> NDArray[np.int64]:
        """(fixed-width columns, 3) as ``packing``, with addresses instead of offsets."""
        sources = self.packing.copy()
        sources[:, 0] += address_of(self.values)
        return sources

    def values_of(self, at: int, width: int, rows: slice) -> PlainRows:
        """Decode some rows of a fixed-width column; ``at`` is its index among these."""
        start, value_bytes, base = self.packing[at].tolist()
        memory = self.values[start + rows.start * value_bytes : start + rows.stop * value_bytes]
        return unpack_values(memory, rows.stop - rows.start, width, Packing(value_bytes, base))

    @cached_property
    def lists(self) -> tuple[PlainRows | None, ...]:
        """For each column of ``others`` a view of its rows if it is a plain fixed-size list, else None."""
        return tuple(list_rows_of(column, copies=False) for column in self.others.columns)

    def nested(self, at: int) -> NestedColumn:
        """A column of ``others``, taken apart."""
        known = self._nested
        if at not in known:
            known[at] = NestedColumn.of(self.others.column(at), self.others.schema.field(at).name)
        return known[at]

    @cached_property
    def _nested(self) -> dict[int, NestedColumn]:
        return {}


@dataclass(frozen=True, eq=False)
class MapOutputColumn:
    """The memory of one column in all map outputs: by map output its buffer, and its start and bytes in that."""

    buffers: Sequence[NDArray[np.uint8]]
    starts: NDArray[np.int64]
    sizes: NDArray[np.int64]
    addresses: NDArray[np.int64]  # of the column in each buffer
    width: int  # unpacked bytes per row
    packing: Packing

    def view(self, at: int, kind: Any) -> NDArray[Any]:
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
    """

    def __init__(
        self,
        schema: pa.Schema,
        packings: NDArray[np.int64],
        map_output_rows: Sequence[int],
        pool: BufferPool,
    ) -> None:
        self.rows = np.array(map_output_rows, np.int64)
        # (fixed-width columns, 2) the `Packing` of each
        self.packings = packings
        self._widths = column_widths(schema)
        # (columns, map outputs)
        self._sizes = np.outer(packings[:, 0], self.rows)
        self._start = _aligned(self.rows * PLACE_BYTES, ALIGNMENT_BYTES)
        ends = self._start + np.cumsum(_aligned(self._sizes), axis=0)
        starts = np.concatenate([self._start[None], ends])
        self._starts, self._stop = starts[:-1], starts[-1]
        self._buffers = [pool.take(nbytes) for nbytes in self._stop.tolist()]
        of_buffers = np.array([address_of(memory) for memory in self._buffers], np.int64)
        # (columns, map outputs) where each column is
        self.addresses = of_buffers + self._starts
        self.places = MapOutputColumn(
            self._buffers,
            np.zeros_like(self.rows),
            self.rows * PLACE_BYTES,
            of_buffers,
            PLACE_BYTES,
            Packing(PLACE_BYTES, 0),
        )
        # by column with nulls: a bit a row for each map output
        self._validity: dict[int, list[NDArray[np.uint8]]] = {}

    def column(self, number: int) -> MapOutputColumn:
        """The memory of a fixed-width column."""
        at = self._widths.places[number]
        return MapOutputColumn(
            self._buffers,
            self._starts[at],
            self._sizes[at],
            self.addresses[at],
            self._widths.widths[number],
            Packing(*self.packings[at].tolist()),
        )

    def set_validity(self, number: int, valid: Iterable[NDArray[np.uint8]]) -> None:
        """Set which rows of a column are valid, 1, or null, 0: a byte a row for each map output."""
        self._validity[number] = [pack(rows) for rows in valid]

    def map_output(
        self, at: int, schema: pa.Schema, run_starts: NDArray[np.int64], others: pa.RecordBatch
    ) -> MapOutput:
        """One of the map outputs, once all columns are written; ``others`` are those without a fixed width."""
        start = int(self._start[at])
        packing = np.empty((len(self.packings), 3), np.int64)
        packing[:, 0], packing[:, 1:] = self._starts[:, at] - start, self.packings
        return MapOutput(
            schema=schema,
            run_starts=run_starts,
            places=self.places.view(at, np.uint32),
            values=self._buffers[at][start : int(self._stop[at])],
            packing=packing,
            validity={number: bits[at] for number, bits in self._validity.items()} or _NO_NULLS,
            others=others,
        )


def _take_bits(bits: NDArray[np.uint8], rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    return (bits[rows >> 3] >> (rows & 7).astype(np.uint8)) & 1


def _aligned(sizes: NDArray[np.int64], alignment: int = _WORD_BYTES) -> NDArray[np.int64]:
    return -(-sizes // alignment) * alignment

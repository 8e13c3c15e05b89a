"""`MapOutput`, what a map task sends to a shard: rows of one block, grouped by run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import ALIGNMENT_BYTES, BufferPool
from windrow.core.frame_of_reference import Packing
from windrow.core.native_libraries import address_of
from windrow.shuffle.kernels.arrow_columns import move_column
from windrow.shuffle.kernels.bit_packing import unpack_values
from windrow.shuffle.kernels.fixed_width import (
    PlainRows,
    fixed_width_bytes,
    list_rows_of,
    rows_view,
    wrap_values,
)

__all__ = ["MapOutput", "columns_by_width", "fixed_width_columns", "other_columns"]


@dataclass(frozen=True, eq=False)
class MapOutput:
    """Rows of one block, grouped by run.

    The fixed-width columns are contiguous in one buffer, each frame-of-reference encoded in as few
    bytes as its values need (`windrow.core.frame_of_reference`). Pickle protocol 5 sends the buffers
    out of band, without copying unrelated memory.

    Attributes
    ----------
    schema
        The block's schema.
    run_starts
        (runs + 1,) the index of the first row of each run, then the number of rows.
    places
        (rows,) the place of each row, its offset within its run.
    values
        The bytes of all fixed-width columns.
    packing
        (fixed-width columns, 3) for each, in the schema's order: its offset in ``values``, and
        its `Packing`.
    validity
        (rows,) 1 for valid and 0 for null, by column number; only for fixed-width columns with nulls.
    others
        The columns without a fixed width.
    """

    schema: pa.Schema
    run_starts: NDArray[np.int64]
    places: NDArray[np.uint32]
    values: NDArray[np.uint8]
    packing: NDArray[np.int64]
    validity: Mapping[int, NDArray[np.uint8]]
    others: pa.RecordBatch

    @property
    def num_rows(self) -> int:
        """The number of rows over all runs."""
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """The number of bytes in memory."""
        arrays: list[PlainRows] = [self.run_starts, self.places, self.values, *self.validity.values()]
        return int(self.others.nbytes) + sum(array.nbytes for array in arrays)

    @property
    def unpacked_bytes(self) -> int:
        """The number of bytes without frame-of-reference encoding."""
        widths = sum(fixed_width_bytes(kind) for kind in self.schema.types)
        return self.nbytes - self.values.nbytes + widths * self.num_rows

    def __reduce__(self) -> tuple[Any, ...]:
        # cached properties hold addresses and views, which must not be pickled
        return MapOutput, tuple(getattr(self, each.name) for each in fields(self))

    def gather(self, rows: NDArray[np.int64], places: NDArray[np.uint32], pool: BufferPool) -> MapOutput:
        """Copy some rows, in any order, to a map output with a single run."""
        count, packing = len(rows), self.packing.copy()
        sizes = -(-packing[:, 1] * count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
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
            validity={number: valid[rows] for number, valid in self.validity.items()},
            others=pa.RecordBatch.from_arrays(moved, schema=others.schema),
        )

    @cached_property
    def places_address(self) -> int:
        """The address of `places`."""
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

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows as an Arrow batch, grouped by run; built on each access."""
        columns = dict(zip(other_columns(self.schema), self.others.columns, strict=True))
        for at, number in enumerate(fixed_width_columns(self.schema)):
            kind = self.schema.field(number).type
            values = self.values_of(at, fixed_width_bytes(kind), slice(0, self.num_rows))
            columns[number] = wrap_values(values, kind, self.validity.get(number))
        return pa.RecordBatch.from_arrays([columns[i] for i in sorted(columns)], schema=self.schema)


def fixed_width_columns(schema: pa.Schema) -> list[int]:
    """The numbers of the fixed-width columns."""
    return [number for number, kind in enumerate(schema.types) if fixed_width_bytes(kind)]


def columns_by_width(schema: pa.Schema) -> dict[int, list[int]]:
    """The numbers of the fixed-width columns, by width in bytes."""
    by_width: dict[int, list[int]] = {}
    for number, kind in enumerate(schema.types):
        by_width.setdefault(fixed_width_bytes(kind), []).append(number)
    return {width: by_width[width] for width in sorted(by_width) if width}


def other_columns(schema: pa.Schema) -> list[int]:
    """The numbers of the columns without a fixed width."""
    return [number for number, kind in enumerate(schema.types) if not fixed_width_bytes(kind)]

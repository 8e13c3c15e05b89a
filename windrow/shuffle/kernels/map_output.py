"""What travels from map to reduce: some rows of one block, grouped by run."""

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
    """Some rows of one block, run after run, on their way to be placed.

    Columns that are words lie in one memory, one behind the other, each packed as its
    words allow (`windrow.core.frame_of_reference`). Pickled with protocol 5 the memory travels out
    of band, and nothing but the piece's own.

    Attributes
    ----------
    schema
        The block's schema.
    run_starts
        (runs + 1,) where each run begins among the rows, and the end of the last.
    places
        (rows,) the place of each row within its run.
    words
        The bytes of all columns of words.
    packing
        (columns of words, 3) for each, in the schema's order: where it begins in ``words``, and
        its `Packing`.
    validity
        (rows,) 1 where a value is and 0 where it is null, by the number of the
        column of words; only where there are nulls.
    others
        The columns that are no words.
    """

    schema: pa.Schema
    run_starts: NDArray[np.int64]
    places: NDArray[np.uint32]
    words: NDArray[np.uint8]
    packing: NDArray[np.int64]
    validity: Mapping[int, NDArray[np.uint8]]
    others: pa.RecordBatch

    @property
    def num_rows(self) -> int:
        """Rows of all runs together."""
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the piece holds."""
        arrays: list[PlainRows] = [self.run_starts, self.places, self.words, *self.validity.values()]
        return int(self.others.nbytes) + sum(array.nbytes for array in arrays)

    @property
    def unpacked_bytes(self) -> int:
        """The same if words had the width of their type."""
        widths = sum(fixed_width_bytes(kind) for kind in self.schema.types)
        return self.nbytes - self.words.nbytes + widths * self.num_rows

    def __reduce__(self) -> tuple[Any, ...]:
        # what is kept beside the fields are addresses and views, which do not travel
        return MapOutput, tuple(getattr(self, each.name) for each in fields(self))

    def gather(self, rows: NDArray[np.int64], places: NDArray[np.uint32], pool: BufferPool) -> MapOutput:
        """Some rows, in any order, as a piece of a single run in memory of its own."""
        count, packing = len(rows), self.packing.copy()
        sizes = -(-packing[:, 1] * count // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        packing[:, 0] = np.cumsum(sizes) - sizes
        words = pool.take(int(sizes.sum()))
        for (start, width, _), target in zip(self.packing.tolist(), packing[:, 0].tolist(), strict=True):
            if width:
                given = rows_view(self.words[start : start + self.num_rows * width], width)
                out = rows_view(words[target : target + count * width], width)
                np.take(given, rows, axis=0, out=out, mode="clip")
        others = self.others
        moved = [
            move_column(column, rows, name, pool)
            for name, column in zip(others.schema.names, others.columns, strict=True)
        ]
        return MapOutput(
            schema=self.schema,
            run_starts=np.array([0, count], np.int64),
            places=places,
            words=words,
            packing=packing,
            validity={number: valid[rows] for number, valid in self.validity.items()},
            others=pa.RecordBatch.from_arrays(moved, schema=others.schema),
        )

    @cached_property
    def places_address(self) -> int:
        """Where its places begin."""
        return address_of(self.places)

    @cached_property
    def sources(self) -> NDArray[np.int64]:
        """(columns of words, 3) as ``packing``, with addresses."""
        sources = self.packing.copy()
        sources[:, 0] += address_of(self.words)
        return sources

    def values_of(self, at: int, width: int, rows: slice) -> PlainRows:
        """Some rows of the column of words that is number ``at`` among these."""
        start, taken, base = self.packing[at].tolist()
        memory = self.words[start + rows.start * taken : start + rows.stop * taken]
        return unpack_values(memory, rows.stop - rows.start, width, Packing(taken, base))

    @cached_property
    def lists(self) -> tuple[PlainRows | None, ...]:
        """For each column of ``others`` its rows, where they are lists in plain memory; else None."""
        return tuple(list_rows_of(column, copies=False) for column in self.others.columns)

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows as Arrow sees them, run after run; made anew at each call."""
        columns = dict(zip(other_columns(self.schema), self.others.columns, strict=True))
        for at, number in enumerate(fixed_width_columns(self.schema)):
            kind = self.schema.field(number).type
            words = self.values_of(at, fixed_width_bytes(kind), slice(0, self.num_rows))
            columns[number] = wrap_values(words, kind, self.validity.get(number))
        return pa.RecordBatch.from_arrays([columns[i] for i in sorted(columns)], schema=self.schema)


def fixed_width_columns(schema: pa.Schema) -> list[int]:
    """The numbers of the columns that are words."""
    return [number for number, kind in enumerate(schema.types) if fixed_width_bytes(kind)]


def columns_by_width(schema: pa.Schema) -> dict[int, list[int]]:
    """The numbers of the columns that are words, by their width."""
    by_width: dict[int, list[int]] = {}
    for number, kind in enumerate(schema.types):
        by_width.setdefault(fixed_width_bytes(kind), []).append(number)
    return {width: by_width[width] for width in sorted(by_width) if width}


def other_columns(schema: pa.Schema) -> list[int]:
    """The numbers of the columns that are no words."""
    return [number for number, kind in enumerate(schema.types) if not fixed_width_bytes(kind)]

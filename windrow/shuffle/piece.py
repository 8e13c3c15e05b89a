"""What travels from map to reduce: some rows of one block, grouped by run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.native import address_of
from windrow.shuffle.plain import PlainRows, list_rows_of, word_bytes, wrap_words

__all__ = ["Piece", "other_columns", "stack_columns"]


@dataclass(frozen=True, eq=False)
class Piece:
    """Some rows of one block, run after run, on their way to be placed.

    Columns of one width are stacked in one array, so that the rows of a run are cut
    from all of them at once. Pickled with protocol 5 the memory travels out of band,
    and nothing but the piece's own.

    Attributes
    ----------
    schema
        The block's schema.
    run_starts
        (runs + 1,) where each run begins among the rows, and the end of the last.
    places
        (rows,) the place of each row within its run.
    stacks
        For each entry of ``stack_columns(schema)`` an array (columns, rows) of words or
        (columns, rows, width) of bytes.
    validity
        (rows,) 1 where a value is and 0 where it is null, by the number of the
        stacked column; only where there are nulls.
    others
        The columns that are not stacked.
    """

    schema: pa.Schema
    run_starts: NDArray[np.int64]
    places: NDArray[np.uint32]
    stacks: tuple[PlainRows, ...]
    validity: Mapping[int, NDArray[np.uint8]]
    others: pa.RecordBatch

    @property
    def num_rows(self) -> int:
        """Rows of all runs together."""
        return len(self.places)

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the piece holds."""
        arrays: list[PlainRows] = [self.run_starts, self.places, *self.stacks, *self.validity.values()]
        return int(self.others.nbytes) + sum(array.nbytes for array in arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        # what is kept beside the fields are addresses and views, which do not travel
        return Piece, tuple(getattr(self, each.name) for each in fields(self))

    @cached_property
    def addresses(self) -> tuple[int, tuple[int, ...]]:
        """Where its places and each of its stacks begin."""
        return address_of(self.places), tuple(address_of(stack) for stack in self.stacks)

    @cached_property
    def lists(self) -> tuple[PlainRows | None, ...]:
        """For each column of ``others`` its rows, where they are lists in plain memory; else None."""
        return tuple(list_rows_of(column, copies=False) for column in self.others.columns)

    @property
    def rows(self) -> pa.RecordBatch:
        """The rows as Arrow sees them, run after run; made anew at each call."""
        columns = dict(zip(other_columns(self.schema), self.others.columns, strict=True))
        for numbers, stack in zip(stack_columns(self.schema), self.stacks, strict=True):
            for number, values in zip(numbers, stack, strict=True):
                kind = self.schema.field(number).type
                columns[number] = wrap_words(values, kind, self.validity.get(number))
        return pa.RecordBatch.from_arrays([columns[i] for i in sorted(columns)], schema=self.schema)


def stack_columns(schema: pa.Schema) -> list[list[int]]:
    """The numbers of the columns that are stacked, for each width that occurs."""
    by_width: dict[int, list[int]] = {}
    for number, kind in enumerate(schema.types):
        by_width.setdefault(word_bytes(kind), []).append(number)
    return [by_width[width] for width in sorted(by_width) if width]


def other_columns(schema: pa.Schema) -> list[int]:
    """The numbers of the columns that are not stacked."""
    return [number for number, kind in enumerate(schema.types) if not word_bytes(kind)]

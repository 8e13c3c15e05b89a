"""Groups pieces by run: ranges of rows that stay together, as the tokens of a document do, and are copied as such."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import WindrowError
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.arrow_columns import join
from windrow.shuffle.kernels.fixed_width import clear_nulls, validity_of, values_of
from windrow.shuffle.kernels.group_rows import choose_packing, group_entries
from windrow.shuffle.kernels.map_output import Arenas, MapOutput
from windrow.shuffle.kernels.native import RunIds

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Ranges of rows: (pieces,) the first row of each in its table, and its number of rows."""

    firsts: Ints
    counts: Ints

    def select(self, pieces: Ints) -> Pieces:
        """Some of them, by number."""
        return Pieces(self.firsts[pieces], self.counts[pieces])

    @property
    def rows(self) -> Ints:
        """(rows,) the rows of all pieces.

        >>> Pieces(np.array([100, 7]), np.array([3, 2])).rows.tolist()
        [100, 101, 102, 7, 8]
        """
        return piece_rows(self.firsts, self.counts)


def piece_rows(firsts: NDArray[np.integer[Any]], counts: NDArray[np.integer[Any]]) -> Ints:
    """(rows,) the rows of pieces, given the first row and the number of rows of each."""
    counts = counts.astype(np.int64)
    rows: Ints = np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    rows += np.arange(len(rows))
    return rows


def group_pieces(
    table: pa.Table,
    pieces: Pieces,
    runs: RunIds,
    places: NDArray[np.uint32],
    slice_starts: Ints,
    pool: BufferPool,
    pause: Callable[[], None] = lambda: None,
) -> list[MapOutput]:
    """As `group_rows` for the rows of pieces; ``runs`` and ``places`` are those of the first row of each.

    The rows of a piece have one run, and consecutive places. All columns of ``table`` have a fixed width.
    """
    if not len(pieces.counts) == len(runs) == len(places):
        raise WindrowError(f"{len(pieces.counts)} pieces have {len(runs)} runs and {len(places)} places")
    grouping = group_entries(runs, slice_starts)
    parts = grouping.parts
    ends = [np.append(0, np.cumsum(pieces.counts[part])) for part in parts]
    arenas = Arenas(table.schema, choose_packing(table), [int(end[-1]) for end in ends], pool)
    grouped = [pieces.select(part) for part in parts]
    for number in range(table.num_columns):
        pause()
        _move_column(join(table.select([number])), number, grouped, arenas)
    for at, (part, of_output) in enumerate(zip(parts, grouped, strict=True)):
        number_rows(places[part], of_output.counts, arenas.places.view(at, np.uint32))
    none = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
    return [
        arenas.map_output(at, table.schema, end[starts], none)
        for at, (end, starts) in enumerate(zip(ends, grouping.run_starts, strict=True))
    ]


def _move_column(column: pa.Array, number: int, grouped: list[Pieces], arenas: Arenas) -> None:
    out = arenas.column(number)
    values, valid = values_of(column), validity_of(column)
    if valid is not None:
        arenas.set_validity(number, [valid[pieces.rows] for pieces in grouped])
        values = clear_nulls(values, valid, out.packing.base)
    values = np.ascontiguousarray(values)
    for at, pieces in enumerate(grouped):
        if native.LIBRARY is None:
            fits = out.gather(at, values, pieces.rows)
        else:
            memory = out.view(at, np.uint8)
            fits = native.copy_pieces(values, out.width, out.packing, pieces.firsts, pieces.counts, memory)
        if not fits:
            raise WindrowError(f"values of column {number} do not fit their own range")


def number_rows(places: NDArray[np.uint32], counts: Ints, out: NDArray[np.uint32]) -> None:
    """Write the places of the rows of pieces, given those of their first rows."""
    if native.LIBRARY is None:
        out[:] = piece_rows(places, counts)
    else:
        native.number_pieces(places, counts, out)


def end_lists(values: NDArray[Any], counts: Ints, end: NDArray[Any]) -> NDArray[Any]:
    """Lists that lie end to end, with a value behind each that is not empty.

    >>> end_lists(np.array([1, 2, 3]), np.array([2, 0, 1]), np.array(9)).tolist()
    [1, 2, 9, 3, 9]
    """
    if native.LIBRARY is None:
        return np.insert(values, np.cumsum(counts)[counts > 0], end)
    out = np.empty(len(values) + int(np.count_nonzero(counts)), values.dtype)
    native.end_lists(np.ascontiguousarray(values), counts, end, out)
    return out

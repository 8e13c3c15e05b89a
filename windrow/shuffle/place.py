"""The reduce side's kernel: put a run's rows, which many pieces hold, in their places."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import WindrowError
from windrow.core.memory import BufferPool
from windrow.core.native import address_of
from windrow.shuffle import kernels
from windrow.shuffle.columns import join, move_column
from windrow.shuffle.piece import Piece, other_columns, stack_columns
from windrow.shuffle.plain import (
    PlainRows,
    row_bytes,
    rows_view,
    stack_view,
    wrap_list_rows,
    wrap_words,
)
from windrow.shuffle.text import can_move_text, move_text

__all__ = ["place_rows"]

_SCRATCH_BYTES = 4 << 20
# of the cache: rows of a line and more are written whole wherever they go
_LINE_BYTES = 64


def place_rows(
    pieces: Sequence[Piece], run: int, row_count: int, schema: pa.Schema, pool: BufferPool
) -> pa.RecordBatch:
    """Make one run of the pieces that hold its rows.

    Parameters
    ----------
    pieces
        All pieces of the run's slice, in any order.
    run
        The run's number within the slice.
    row_count
        Rows of the run; the pieces' places of this run are 0 to ``row_count - 1``,
        each once.
    schema
        The schema of the pieces' rows.
    pool
        Where memory comes from: one writable buffer for each fixed-width column,
        so that keeping one column keeps only that.

    Raises
    ------
    WindrowError
        If the pieces do not hold every place of the run exactly once.
    PlanError
        If Arrow cannot move a column of this type, naming the column.
    """
    spans = [_Span(piece, int(piece.run_starts[run]), int(piece.run_starts[run + 1])) for piece in pieces]
    spans = [span for span in spans if span.start < span.stop]
    places = _Places(spans, row_count, run)
    if not spans or not schema.names:
        return _without_values(row_count, schema)
    masked = {number for span in spans for number in span.piece.validity}
    columns: dict[int, pa.Array] = {}
    for at, numbers in enumerate(stack_columns(schema)):
        for number, values in zip(numbers, places.place_stack(at, pool), strict=True):
            valid = _place_mask(spans, number, places.sources) if number in masked else None
            columns[number] = wrap_words(values, schema.field(number).type, valid)
    for at, number in enumerate(other_columns(schema)):
        columns[number] = places.place_other(at, schema.field(number).name, pool)
    return pa.RecordBatch.from_arrays([columns[i] for i in range(len(columns))], schema=schema)


class _Span(NamedTuple):
    """The rows of a run that one piece holds."""

    piece: Piece
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


class _Places:
    """Where the rows of a run go; checked when it is made.

    Raises
    ------
    WindrowError
        If the spans do not hold every place of the run exactly once.
    """

    def __init__(self, spans: list[_Span], row_count: int, run: int) -> None:
        self._spans = spans
        self._row_count = row_count
        self._given = [span.piece.places[span.rows] for span in spans]
        self._counts = np.array([len(given) for given in self._given], np.int64)
        if not self._are_whole():
            raise WindrowError(
                f"run {run} needs {row_count} places, each once; its pieces hold {self._counts.sum()} others"
            )

    def _are_whole(self) -> bool:
        if kernels.LIBRARY is None:
            return int(self._counts.sum()) == self._row_count and bool((self.sources >= 0).all())
        return kernels.check_places(self._addresses, self._counts, self._row_count)

    @cached_property
    def _addresses(self) -> NDArray[np.int64]:
        width = np.dtype(np.uint32).itemsize
        return np.array([span.piece.addresses[0] + width * span.start for span in self._spans], np.int64)

    @cached_property
    def sources(self) -> NDArray[np.int64]:
        """For each place of the run, which of the spans' rows goes there; -1 for none."""
        given = np.concatenate(self._given, dtype=np.int64) if self._given else np.empty(0, np.int64)
        sources = np.full(self._row_count, -1, np.int64)
        inside = given < self._row_count
        sources[given[inside]] = np.arange(len(given))[inside]
        return sources

    def place_stack(self, at: int, pool: BufferPool) -> list[PlainRows]:
        """Each column of a stack in place order, in a buffer of its own."""
        stacks = [span.piece.stacks[at] for span in self._spans]
        width = row_bytes(stacks[0][0])
        outs = [
            rows_view(memory, width) for memory in pool.take_each(width * self._row_count, len(stacks[0]))
        ]
        if kernels.LIBRARY is None:
            parts = [stack[:, span.rows] for stack, span in zip(stacks, self._spans, strict=True)]
            _take_stack(parts, self.sources, outs, pool)
        else:
            bases = [span.piece.addresses[1][at] + span.start * width for span in self._spans]
            self._place(bases, [stack.strides[0] for stack in stacks], outs, width, pool)
        return outs

    def _place(
        self, bases: list[int], strides: list[int], outs: list[PlainRows], width: int, pool: BufferPool
    ) -> None:
        """Let the kernel place the columns of a width, part by part."""
        scratch_bytes = kernels.scratch_bytes(width, self._row_count, len(outs))
        scratch = pool.take(scratch_bytes) if width < _LINE_BYTES else None
        first, step = np.array(bases, np.int64), np.array(strides, np.int64)
        kernels.place(first, step, self._addresses, self._counts, scratch, outs)

    def place_other(self, at: int, name: str, pool: BufferPool) -> pa.Array:
        """A column that is no plain memory, in place order."""
        rows = [span.piece.lists[at] for span in self._spans]
        if kernels.LIBRARY is not None and all(part is not None for part in rows):
            return self._place_lists(rows, self._spans[0].piece.others.schema.field(at).type, pool)
        batches = [span.piece.others.slice(span.start, span.stop - span.start) for span in self._spans]
        arrays = [batch.column(at) for batch in batches]
        if can_move_text(arrays[0].type):
            moved = move_text(arrays, self._given, slice(0, self._row_count), pool)
            if moved is not None:
                return moved
        joined = join(pa.Table.from_batches(batches).select([at]))
        return move_column(joined, self.sources, name, pool)

    def _place_lists(self, parts: list[Any], kind: pa.DataType, pool: BufferPool) -> pa.Array:
        width = row_bytes(parts[0])
        memory = pool.take(width * self._row_count)
        firsts = zip(parts, self._spans, strict=True)
        bases = [address_of(part) + span.start * width for part, span in firsts]
        self._place(bases, [0] * len(bases), [rows_view(memory, width)], width, pool)
        return wrap_list_rows(memory, kind, self._row_count)


def _take_stack(
    parts: list[PlainRows], sources: NDArray[np.int64], outs: list[PlainRows], pool: BufferPool
) -> None:
    """Place with NumPy."""
    columns, width = len(outs), row_bytes(outs[0])
    # Parts are laid end to end for as many columns at once as the cache holds: fewer,
    # larger copies, and what the random reads then touch is near.
    at_once = max(1, min(columns, _SCRATCH_BYTES // (width * len(sources))))
    scratch = stack_view(pool.take(at_once * width * len(sources)), width, at_once)
    for first in range(0, columns, at_once):
        some = min(at_once, columns - first)
        end = 0
        for part in parts:
            start, end = end, end + part.shape[1]
            scratch[:some, start:end] = part[first : first + some]
        for values, out in zip(scratch[:some], outs[first : first + some], strict=True):
            np.take(values, sources, axis=0, out=out, mode="clip")


def _place_mask(spans: list[_Span], number: int, sources: NDArray[np.int64]) -> NDArray[np.uint8]:
    given = np.ones(len(sources), np.uint8)
    end = 0
    for span in spans:
        start, end = end, end + span.stop - span.start
        mask = span.piece.validity.get(number)
        if mask is not None:
            given[start:end] = mask[span.rows]
    return given[sources]


def _without_values(row_count: int, schema: pa.Schema) -> pa.RecordBatch:
    if schema.names:
        columns = [pa.chunked_array([], kind).combine_chunks() for kind in schema.types]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    counted = pa.RecordBatch.from_arrays([pa.nulls(row_count)], names=["rows"])
    return counted.select([]).replace_schema_metadata(schema.metadata)

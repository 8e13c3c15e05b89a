"""The reduce side's kernel: put a run's rows, which many pieces hold, in their places."""

from __future__ import annotations

from functools import cached_property
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import WindrowError
from windrow.core.native_libraries import address_of
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.arrow_columns import join, move_column
from windrow.shuffle.kernels.fixed_width import (
    PlainRows,
    row_bytes,
    rows_view,
    wrap_list_rows,
    wrap_values,
)
from windrow.shuffle.kernels.map_output import MapOutput, columns_by_width, fixed_width_columns, other_columns
from windrow.shuffle.kernels.packed_rows import PackedRows, join_columns, join_packings
from windrow.shuffle.kernels.text_columns import can_move_text, move_text

__all__ = ["MapOutputs", "place_portion", "place_rows"]

# of the cache: rows of a line and more are written whole wherever they go
_LINE_BYTES = 64
_PLACE_BYTES = np.dtype(np.uint32).itemsize


class MapOutputs(tuple[MapOutput, ...]):
    """The pieces of a slice, in any order, and where the rows of its runs lie in them.

    What is asked of every piece for every run is found out once, as one array over the pieces.
    """

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(runs + 1, pieces) where each run's rows begin in each piece, and where the last one's end.

        Without pieces there is one run, which has no rows.
        """
        if not self:
            return np.zeros((2, 0), np.int64)
        return np.ascontiguousarray(np.stack([map_output.run_starts for map_output in self], axis=1))

    def portion(self, run: int, row_count: int, rows: slice, pool: BufferPool) -> MapOutputs:
        """The rows of some places of a run, as the pieces of a single run that has no others.

        Raises
        ------
        WindrowError
            If the pieces do not hold every place of the run exactly once.
        """
        if run not in self._entries:
            self._entries[run] = self._find_entries(run, row_count)
        entries = self._entries[run][rows]
        counts = self.starts[run + 1] - self.starts[run]
        ends = np.cumsum(counts)
        owners = np.searchsorted(ends, entries, side="right")
        # what is to be added to an entry's number to get its row
        shifts = self.starts[run] + counts - ends
        places = np.argsort(owners, kind="stable")
        borders = np.searchsorted(owners[places], np.arange(len(self) + 1)).tolist()
        return MapOutputs(
            self[at].gather(entries[of] + shifts[at], of.astype(np.uint32), pool)
            for at, of in ((at, places[low:high]) for at, (low, high) in enumerate(pairwise(borders)))
            if len(of)
        )

    @cached_property
    def _entries(self) -> dict[int, NDArray[np.int64]]:
        """Of runs that are placed in portions: for each place the number of its row among the run's."""
        return {}

    def _find_entries(self, run: int, row_count: int) -> NDArray[np.int64]:
        bounds = zip(self, *self.starts[run : run + 2].tolist(), strict=True)
        given = [map_output.places[start:stop] for map_output, start, stop in bounds]
        entries = _invert(given, row_count)
        count = sum(map(len, given))
        if count != row_count or (entries < 0).any():
            raise _make_places_error(run, row_count, count)
        return entries

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """(pieces,) the address of each one's places."""
        return np.array([map_output.places_address for map_output in self], np.int64)

    @cached_property
    def column_groups(self) -> list[_ColumnGroup]:
        """The columns of words, by their width."""
        schema = self[0].schema
        at = {number: place for place, number in enumerate(fixed_width_columns(schema))}
        each = np.stack([map_output.sources for map_output in self], axis=1)
        column_groups = []
        for width, numbers in columns_by_width(schema).items():
            places = [at[number] for number in numbers]
            sources = each[places]
            packing = join_packings(sources[:, :, 1], sources[:, :, 2], width)
            column_groups.append(_ColumnGroup(numbers, places, width, sources, tuple(packing)))
        return column_groups

    @cached_property
    def others(self) -> list[int]:
        """The numbers of the columns that are no words."""
        return other_columns(self[0].schema)

    @cached_property
    def nullable(self) -> frozenset[int]:
        """The numbers of the columns of words that hold nulls somewhere."""
        return frozenset(chain.from_iterable(map_output.validity for map_output in self))


class _ColumnGroup(NamedTuple):
    """The columns of words of one width.

    Attributes
    ----------
    columns
        Their numbers.
    at
        Their numbers among the columns of words.
    width
        Bytes a row of each.
    sources
        (columns, pieces, 3) where each lies, as `MapOutput.sources` has it.
    packing
        Of each, such that the words of every piece fit in.
    """

    columns: list[int]
    at: list[int]
    width: int
    sources: NDArray[np.int64]
    packing: tuple[tuple[int, int], ...]


def place_rows(
    map_outputs: MapOutputs, run: int, row_count: int, schema: pa.Schema, pool: BufferPool
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
    placing = _Placing(map_outputs, run, row_count)
    if not row_count or not schema.names:
        return _without_values(row_count, schema)
    columns: dict[int, pa.Array] = {}
    kinds = schema.types
    for group in map_outputs.column_groups:
        for number, values in zip(group.columns, placing.place_columns(group, pool), strict=True):
            valid = placing.place_mask(number) if number in map_outputs.nullable else None
            columns[number] = wrap_values(values, kinds[number], valid)
    for at, number in enumerate(map_outputs.others):
        columns[number] = placing.place_other(at, schema.field(number).name, pool)
    return pa.RecordBatch.from_arrays([columns[i] for i in range(len(columns))], schema=schema)


def place_portion(
    map_outputs: MapOutputs, run: int, row_count: int, rows: slice, schema: pa.Schema, pool: BufferPool
) -> pa.RecordBatch:
    """Make some rows of one run: for runs whose rows are so large that all of them take too much.

    Their values are copied once more than by `place_rows`, whose parameters these are.

    Parameters
    ----------
    rows
        The places that are wanted.
    """
    if 2 * (rows.stop - rows.start) > row_count:
        return place_rows(map_outputs, run, row_count, schema, pool).slice(rows.start, rows.stop - rows.start)
    portion = map_outputs.portion(run, row_count, rows, pool)
    return place_rows(portion, 0, rows.stop - rows.start, schema, pool)


class _Span(NamedTuple):
    """The rows of a run that one piece holds."""

    map_output: MapOutput
    start: int
    stop: int

    @property
    def rows(self) -> slice:
        return slice(self.start, self.stop)


class _Placing:
    """One run on its way to its places, which are checked when this is made.

    Raises
    ------
    WindrowError
        If the pieces do not hold every place of the run exactly once.
    """

    def __init__(self, map_outputs: MapOutputs, run: int, row_count: int) -> None:
        self._map_outputs = map_outputs
        self._row_count = row_count
        bounds = map_outputs.starts[run : run + 2]
        self._starts: NDArray[np.int64] = bounds[0]
        self._counts: NDArray[np.int64] = bounds[1] - bounds[0]
        if not self._are_places_complete():
            raise _make_places_error(run, row_count, int(self._counts.sum()))

    def _are_places_complete(self) -> bool:
        if native.LIBRARY is None:
            return int(self._counts.sum()) == self._row_count and bool((self.sources >= 0).all())
        return native.check_places(self._addresses, self._counts, self._row_count)

    @cached_property
    def _addresses(self) -> NDArray[np.int64]:
        return self._map_outputs.places + self._starts * _PLACE_BYTES

    @cached_property
    def _spans(self) -> list[_Span]:
        bounds = zip(self._map_outputs, self._starts.tolist(), self._counts.tolist(), strict=True)
        return [_Span(map_output, start, start + count) for map_output, start, count in bounds if count]

    @cached_property
    def _given(self) -> list[NDArray[np.uint32]]:
        return [span.map_output.places[span.rows] for span in self._spans]

    @cached_property
    def sources(self) -> NDArray[np.int64]:
        """For each place of the run, which of the spans' rows goes there; -1 for none."""
        return _invert(self._given, self._row_count)

    def place_columns(self, group: _ColumnGroup, pool: BufferPool) -> list[PlainRows]:
        """Each column of a stack in place order, in a buffer of its own."""
        memory = pool.take_many(group.width * self._row_count, len(group.columns))
        outs = [rows_view(each, group.width) for each in memory]
        if native.LIBRARY is None:
            concatenated = rows_view(pool.take(group.width * self._row_count), group.width)
            for at, out in zip(group.at, outs, strict=True):
                parts = [span.map_output.values_of(at, group.width, span.rows) for span in self._spans]
                np.concatenate(parts, out=concatenated)
                np.take(concatenated, self.sources, axis=0, out=out, mode="clip")
        else:
            packed_rows = join_columns(group.packing, group.width, self._row_count)
            scratch = self._take_scratch(group.width, packed_rows, pool)
            native.place(
                group.sources, self._starts, self._addresses, self._counts, scratch, outs, packed_rows
            )
        return outs

    def _take_scratch(
        self, width: int, packed_rows: PackedRows | None, pool: BufferPool
    ) -> NDArray[np.uint8] | None:
        """Memory by way of which columns go; rows that are whole lines need none."""
        if width >= _LINE_BYTES:
            return None
        return pool.take(native.scratch_bytes(width, self._row_count, packed_rows))

    def place_mask(self, number: int) -> NDArray[np.uint8]:
        """Where a stacked column has values (1) and nulls (0), in place order."""
        given = np.ones(self._row_count, np.uint8)
        end = 0
        for span in self._spans:
            start, end = end, end + span.stop - span.start
            mask = span.map_output.validity.get(number)
            if mask is not None:
                given[start:end] = mask[span.rows]
        return given[self.sources]

    def place_other(self, at: int, name: str, pool: BufferPool) -> pa.Array:
        """A column that is no plain memory, in place order."""
        rows = [span.map_output.lists[at] for span in self._spans]
        if native.LIBRARY is not None and all(part is not None for part in rows):
            return self._place_lists(rows, self._spans[0].map_output.others.schema.field(at).type, pool)
        batches = [span.map_output.others.slice(span.start, span.stop - span.start) for span in self._spans]
        arrays = [batch.column(at) for batch in batches]
        if can_move_text(arrays[0].type):
            moved = move_text(arrays, self._given, slice(0, self._row_count), pool, name)
            if moved is not None:
                return moved
        joined = join(pa.Table.from_batches(batches).select([at]))
        return move_column(joined, self.sources, name, pool)

    def _place_lists(self, parts: list[Any], kind: pa.DataType, pool: BufferPool) -> pa.Array:
        width = row_bytes(parts[0])
        memory = pool.take(width * self._row_count)
        held = self._counts > 0
        addresses = [address_of(part) for part in parts]
        sources = np.array([[(address, width, 0) for address in addresses]], np.int64)
        firsts, places, counts = self._starts[held], self._addresses[held], self._counts[held]
        scratch = self._take_scratch(width, None, pool)
        native.place(sources, firsts, places, counts, scratch, [rows_view(memory, width)], None)
        return wrap_list_rows(memory, kind, self._row_count)


def _invert(given: list[NDArray[np.uint32]], row_count: int) -> NDArray[np.int64]:
    """For each place which of the rows that are given it, one after the other, goes there; -1 for none."""
    places = np.concatenate(given, dtype=np.int64) if given else np.empty(0, np.int64)
    sources = np.full(row_count, -1, np.int64)
    inside = places < row_count
    sources[places[inside]] = np.arange(len(places))[inside]
    return sources


def _make_places_error(run: int, row_count: int, found: int) -> WindrowError:
    return WindrowError(f"run {run} needs {row_count} places, each once; its pieces hold {found} others")


def _without_values(row_count: int, schema: pa.Schema) -> pa.RecordBatch:
    if schema.names:
        columns = [pa.chunked_array([], kind).combine_chunks() for kind in schema.types]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    counted = pa.RecordBatch.from_arrays([pa.nulls(row_count)], names=["rows"])
    return counted.select([]).replace_schema_metadata(schema.metadata)

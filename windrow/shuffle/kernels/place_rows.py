"""The reduce side of the shuffle: puts the rows of a run, from many map outputs, at their places."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple, NoReturn

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.cached_properties import cached_property
from windrow.core.errors import WindrowError
from windrow.core.native_libraries import address_of
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.arrow_columns import join, move_column
from windrow.shuffle.kernels.fixed_width import (
    PlainRows,
    Validity,
    column_widths,
    pack,
    row_bytes,
    rows_view,
    unpack,
    views_of,
    wrap_list_rows,
    wrap_values,
)
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.nested_columns import Targets, can_move_nested, move_nested
from windrow.shuffle.kernels.packed_rows import PackedRows, join_columns, join_packings

# A cache line. Rows of this size or more are scattered directly: each write fills whole lines.
_LINE_BYTES = 64
_PLACE_BYTES = np.dtype(np.uint32).itemsize


class MapOutputs(tuple[MapOutput, ...]):
    """The map outputs of a slice, in any order.

    Cached properties hold what every run needs of every map output, as one array over all of them.
    """

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(runs + 1, map outputs) the first row of each run in each map output, then the end of the last run."""
        return np.ascontiguousarray(np.stack([map_output.run_starts for map_output in self], axis=1))

    def portion(self, run: int, row_count: int, rows: slice, pool: BufferPool) -> MapOutputs:
        """Copy the rows at some places of a run to new map outputs, in which they are the only run."""
        known = self._entries
        if run not in known:
            placing = _Placing(self, run, row_count)
            placing.check()
            known[run] = placing.sources
        entries = known[run][rows]
        counts = self.starts[run + 1] - self.starts[run]
        ends = np.cumsum(counts)
        owners = np.searchsorted(ends, entries, side="right")
        # added to an entry's number, gives its row
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
        """For runs placed in portions: for each place the number of its row among the rows of the run."""
        return {}

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """(map outputs,) the address of the places of each one."""
        return np.array([map_output.places_address for map_output in self], np.int64)

    @cached_property
    def column_groups(self) -> list[_ColumnGroup]:
        schema = self[0].schema
        widths = column_widths(schema)
        at = {number: place for place, number in enumerate(widths.fixed)}
        each = np.stack([map_output.sources for map_output in self], axis=1)
        column_groups = []
        for width, numbers in widths.by_width.items():
            places = [at[number] for number in numbers]
            sources = each[places]
            packing = join_packings(sources[:, :, 1], sources[:, :, 2], width)
            column_groups.append(_ColumnGroup(numbers, places, width, sources, tuple(packing)))
        return column_groups

    @cached_property
    def others(self) -> tuple[int, ...]:
        return column_widths(self[0].schema).others

    @cached_property
    def nullable(self) -> list[int]:
        """The numbers of the fixed-width columns with nulls in some map output."""
        return sorted(set(chain.from_iterable(map_output.validity for map_output in self)))

    @cached_property
    def validity_addresses(self) -> NDArray[np.int64]:
        """(nullable columns, map outputs) the address of the validity bits, 0 for those without nulls."""
        bits = [[map_output.validity.get(number) for map_output in self] for number in self.nullable]
        addresses = [[0 if each is None else address_of(each) for each in column] for column in bits]
        return np.array(addresses, np.int64).reshape(len(bits), len(self))


class _ColumnGroup(NamedTuple):
    """The fixed-width columns of one width, in bytes."""

    columns: list[int]  # their numbers
    at: list[int]  # their indices among the fixed-width columns
    width: int
    sources: NDArray[np.int64]  # (columns, map outputs, 3) as in `MapOutput.sources`
    packing: tuple[tuple[int, int], ...]  # a common (bytes, base) of each, for every map output


def place_rows(map_outputs: MapOutputs, run: int, row_count: int, pool: BufferPool) -> pa.RecordBatch:
    """Assemble one run from the map outputs of its slice, whose places must be 0 to ``row_count - 1``, each once.

    The pool lends one writable buffer for each fixed-width column, so that a reference to one column keeps
    only that column in memory.
    """
    placing, schema = _Placing(map_outputs, run, row_count), map_outputs[0].schema
    if not row_count or not schema.names:
        placing.check()
        return _without_values(row_count, schema)
    columns: dict[int, pa.Array] = {}
    widths = column_widths(schema)
    kinds, plain = widths.kinds, widths.plain
    values, validity = placing.place_columns(pool)
    for group, of_group in zip(map_outputs.column_groups, values, strict=True):
        for number, each in zip(group.columns, of_group, strict=True):
            # this loop holds the GIL
            if number in plain and number not in validity:
                memory = [None, pa.py_buffer(each)]
                columns[number] = pa.Array.from_buffers(kinds[number], row_count, memory, null_count=0)
            else:
                columns[number] = wrap_values(each, kinds[number], validity.get(number))
    for at, number in enumerate(map_outputs.others):
        columns[number] = placing.place_other(at, schema.field(number).name, pool)
    return pa.RecordBatch.from_arrays([columns[i] for i in range(len(columns))], schema=schema)


def place_portion(
    map_outputs: MapOutputs, run: int, row_count: int, rows: slice, pool: BufferPool
) -> pa.RecordBatch:
    """Assemble some rows of one run, by their places, if all of them at once would be too large.

    Values are copied once more than by `place_rows`.
    """
    if 2 * (rows.stop - rows.start) > row_count:
        return place_rows(map_outputs, run, row_count, pool).slice(rows.start, rows.stop - rows.start)
    portion = map_outputs.portion(run, row_count, rows, pool)
    return place_rows(portion, 0, rows.stop - rows.start, pool)


class _Placing:
    """Places the rows of one run."""

    def __init__(self, map_outputs: MapOutputs, run: int, row_count: int) -> None:
        self._map_outputs = map_outputs
        self._row_count = row_count
        bounds = map_outputs.starts[run : run + 2]
        self._starts: NDArray[np.int64] = bounds[0]
        self._counts: NDArray[np.int64] = bounds[1] - bounds[0]
        self._run = run

    def check(self) -> None:
        """Raise `WindrowError` unless there is one row for each place."""
        if native.LIBRARY is None:
            complete = int(self._counts.sum()) == self._row_count and bool((self.sources >= 0).all())
        else:
            complete = native.check_places(self._addresses, self._counts, self._row_count)
        if not complete:
            self._raise_incomplete()

    def _raise_incomplete(self) -> NoReturn:
        raise WindrowError(
            f"run {self._run} needs {self._row_count} places, each once; its map outputs hold {self._counts.sum()} "
            "others"
        )

    @cached_property
    def _addresses(self) -> NDArray[np.int64]:
        return self._map_outputs.places + self._starts * _PLACE_BYTES

    @cached_property
    def _spans(self) -> list[tuple[MapOutput, slice]]:
        """The map outputs that hold rows of the run, and those rows."""
        bounds = zip(self._map_outputs, self._starts.tolist(), self._counts.tolist(), strict=True)
        return [(map_output, slice(start, start + count)) for map_output, start, count in bounds if count]

    @cached_property
    def _targets(self) -> list[Targets]:
        """The rows of each span and their places, for `move_nested`."""
        held = self._counts > 0
        spans = zip(
            self._starts[held].tolist(),
            self._counts[held].tolist(),
            self._addresses[held].tolist(),
            strict=True,
        )
        return [Targets(*span) for span in spans]

    @cached_property
    def _span_places(self) -> list[NDArray[np.uint32]]:
        return [map_output.places[rows] for map_output, rows in self._spans]

    @cached_property
    def sources(self) -> NDArray[np.int64]:
        """For each place of the run, the index of its row in the concatenated spans; -1 for none."""
        places = np.concatenate([np.empty(0, np.int64), *self._span_places], dtype=np.int64)
        sources = np.full(self._row_count, -1, np.int64)
        inside = places < self._row_count
        sources[places[inside]] = np.arange(len(places))[inside]
        return sources

    def place_columns(self, pool: BufferPool) -> tuple[list[list[PlainRows]], dict[int, Validity]]:
        """The values of each group of fixed-width columns, and the validity of those with nulls; checks the places."""
        rows, groups = self._row_count, self._map_outputs.column_groups
        values = []
        for group in groups:
            memory = pool.take_many(group.width * rows, len(group.columns))
            values.append(views_of(memory, group.width))
        if native.LIBRARY is None:
            self.check()
            for group, outs in zip(groups, values, strict=True):
                self._take_columns(group, outs, pool)
            return values, {number: self._validity_of(number) for number in self._map_outputs.nullable}
        placed = []
        for group, outs in zip(groups, values, strict=True):
            packed_rows = join_columns(group.packing, group.width, rows)
            scratch = self._take_scratch(group.width, packed_rows, pool)
            placed.append(native.PlacedColumns(group.sources, scratch, outs, packed_rows))
        numbers = self._map_outputs.nullable
        masks = pool.take_many(-(-rows // 8), len(numbers)) if numbers else []
        bits = self._map_outputs.validity_addresses if numbers else None
        where = self._starts, self._addresses, self._counts
        nulls = native.place(*where, rows, placed, bits, masks, checks=True)
        if nulls is None:
            self._raise_incomplete()
        return values, dict(zip(numbers, map(Validity, masks, nulls), strict=True))

    def _take_columns(self, group: _ColumnGroup, outs: Sequence[PlainRows], pool: BufferPool) -> None:
        concatenated = rows_view(pool.take(group.width * self._row_count), group.width)
        for at, out in zip(group.at, outs, strict=True):
            parts = [map_output.values_of(at, group.width, rows) for map_output, rows in self._spans]
            np.concatenate(parts, out=concatenated)
            np.take(concatenated, self.sources, axis=0, out=out, mode="clip")

    def _take_scratch(
        self, width: int, packed_rows: PackedRows | None, pool: BufferPool
    ) -> NDArray[np.uint8] | None:
        if width >= _LINE_BYTES:
            return None
        return pool.take(native.scratch_bytes(width, self._row_count, packed_rows))

    def _validity_of(self, number: int) -> Validity:
        flags = [
            unpack(map_output.validity[number], rows.start, rows.stop - rows.start)
            if number in map_output.validity
            else np.ones(rows.stop - rows.start, np.uint8)
            for map_output, rows in self._spans
        ]
        valid = np.concatenate(flags)[self.sources]
        return Validity(pack(valid), len(valid) - int(np.count_nonzero(valid)))

    def place_other(self, at: int, name: str, pool: BufferPool) -> pa.Array:
        lists = [map_output.lists[at] for map_output, _ in self._spans]
        if native.LIBRARY is not None and all(part is not None for part in lists):
            return self._place_lists(lists, self._map_outputs[0].others.schema.field(at).type, pool)
        kind = self._map_outputs[0].others.schema.field(at).type
        if can_move_nested(kind):
            moved = move_nested(
                [map_output.nested(at) for map_output, _ in self._spans],
                kind,
                self._targets,
                slice(0, self._row_count),
                pool,
                name,
            )
            if moved is not None:
                return moved
        batches = [held.others.slice(rows.start, rows.stop - rows.start) for held, rows in self._spans]
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
        placed = native.PlacedColumns(sources, scratch, [rows_view(memory, width)], None)
        native.place(firsts, places, counts, self._row_count, [placed], checks=False)
        return wrap_list_rows(memory, kind, self._row_count)


def _without_values(row_count: int, schema: pa.Schema) -> pa.RecordBatch:
    if schema.names:
        columns = [pa.chunked_array([], kind).combine_chunks() for kind in schema.types]
        return pa.RecordBatch.from_arrays(columns, schema=schema)
    counted = pa.RecordBatch.from_arrays([pa.nulls(row_count)], names=["rows"])
    return counted.select([]).replace_schema_metadata(schema.metadata)

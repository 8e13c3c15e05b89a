"""The map side of the shuffle: sorts the rows of a block by run, and moves its columns into map outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.cached_properties import cached_property
from windrow.core.column_memory import ColumnMemory
from windrow.core.errors import WindrowError
from windrow.core.frame_of_reference import bounds_table, choose_packings
from windrow.core.native_libraries import address_of
from windrow.core.source import BlockPart, can_scatter, column_bounds
from windrow.core.text_types import offset_width
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.arrow_columns import join, join_each, move_column
from windrow.shuffle.kernels.bit_packing import find_ranges
from windrow.shuffle.kernels.fixed_width import (
    PlainRows,
    clear_nulls,
    column_widths,
    list_rows_of,
    validity_of,
    values_of,
)
from windrow.shuffle.kernels.map_output import Arenas, MapOutput, MapOutputColumn
from windrow.shuffle.kernels.native import RunIds
from windrow.shuffle.kernels.nested_columns import NestedColumn, Targets, can_move_nested, move_nested
from windrow.shuffle.kernels.packed_rows import join_columns

# Columns are moved in batches of this size: a few milliseconds of work in C, or in Python.
_BATCH_BYTES, _BATCH_COPIES = 8 << 20, 128
# Parts scatter values of at most this width themselves. A batch of them takes at most this many packed and decoded
# bytes, unless it is a single column: the packed ones stay in the cache, and decoding takes some milliseconds.
_MAX_DECODED_WIDTH = 16
DECODED_TOGETHER_BYTES, _DECODED_BYTES = 4 << 20, 16 << 20
# In NumPy, scattering (sequential reads, one write stream per run) beats gathering at these widths. For
# narrower values the 8-byte row numbers dominate the memory traffic.
_SCATTER_WIDTHS = (8, 16)


def group_rows(
    table: BlockPart,
    rows: NDArray[np.int64] | None,
    runs: RunIds,
    places: NDArray[np.uint32],
    slice_starts: NDArray[np.int64],
    pool: BufferPool,
    pause: Callable[[], None] = lambda: None,
) -> list[MapOutput]:
    """Group entries by run, keeping their order within a run, into one map output per slice.

    ``rows``, ``runs`` and ``places`` have one value an entry: its row of ``table`` (None: entry i is row i),
    its run id, and its offset within the run. Slice k holds the runs from ``slice_starts[k]`` to
    ``slice_starts[k + 1]``, exclusive; entries of other runs are dropped. Each column is selected once and
    used immediately. If its statistics are wrong (`windrow.core.source.column_bounds`), all columns are
    selected again. ``pause`` is called every few milliseconds, between columns.
    """
    entries = table.num_rows if rows is None else len(rows)
    if not entries == len(runs) == len(places):
        raise WindrowError(f"{entries} entries have {len(runs)} runs and {len(places)} places")
    grouping = group_entries(runs, slice_starts, scatters_all=can_scatter(table))
    moving = grouping if rows is None else grouping.compose(rows, table.num_rows)
    try:
        arenas, others = _move_columns(table, moving, pool, pause)
    except _ColumnOverflowError:
        arenas = None  # retry outside of this handler: the error's traceback keeps the first arenas alive
    if arenas is None:
        # statistics were wrong; those of a table are computed from its values
        whole = table.select(list(range(len(table.schema))))
        arenas, others = _move_columns(whole, moving, pool, pause)
    grouping.move([places], [arenas.places], pool)
    numbers = column_widths(table.schema).others
    others_schema = pa.schema([table.schema.field(number) for number in numbers])
    if numbers:
        batches = [pa.RecordBatch.from_arrays(list(moved), schema=others_schema) for moved in others]
    else:
        batches = [pa.RecordBatch.from_arrays([], schema=others_schema)] * len(grouping.run_starts)
    return [
        arenas.map_output(at, table.schema, run_starts, batch)
        for at, (run_starts, batch) in enumerate(zip(grouping.run_starts, batches, strict=True))
    ]


def _move_columns(
    part: BlockPart, moving: _Grouping, pool: BufferPool, pause: Callable[[], None]
) -> tuple[Arenas, list[tuple[pa.Array, ...]]]:
    """Move all columns: returns the fixed-width ones, and for each map output the others."""
    arenas = Arenas(part.schema, choose_packing(part), moving.map_output_rows, pool)
    others = []
    _FixedWidthMover(part, moving, arenas, pool, pause).move()
    for number in column_widths(part.schema).others:
        pause()
        arrays = moving.decode_text(part, number, pool)
        if arrays is None:
            column = part.decode_nested(number, pool) if can_scatter(part) else None
            column = join(part.select([number])) if column is None else column
            arrays = moving.move_arrow_column(column, part.schema.field(number).name, pool)
        others.append(arrays)
    return arenas, list(zip(*others, strict=True))


def choose_packing(part: BlockPart) -> NDArray[np.int64]:
    """(fixed-width columns, 2) the `Packing` of each, from its statistics or, in a table, from its values."""
    columns = column_widths(part.schema)
    bounds = bounds_table([None] * len(columns.fixed))
    numbers = [columns.fixed[at] for at in columns.packable.tolist()]
    if part.num_rows and numbers:
        if isinstance(part, pa.Table):
            known = bounds_table([find_ranges([part.select([number]).column(0)]) for number in numbers])
        else:
            known = column_bounds(part, numbers)
        bounds[columns.packable] = known
    return choose_packings(columns.fixed_widths, bounds)


class _ColumnOverflowError(Exception):
    """The values of a column do not fit its packing, since its statistics were wrong."""


class _FixedWidthMover:
    """Moves the fixed-width columns.

    Columns decoded from a part are moved while they are in the CPU cache. Columns already in memory are moved
    in batches large enough to amortize releasing the GIL.
    """

    def __init__(
        self, part: BlockPart, moving: _Grouping, arenas: Arenas, pool: BufferPool, pause: Callable[[], None]
    ) -> None:
        self._part, self._moving, self._arenas, self._pool, self._pause = part, moving, arenas, pool, pause
        self._columns = column_widths(part.schema)
        self._rows = part.num_rows
        self._decodes = can_scatter(part)
        # by width
        self._pending: dict[int, list[int]] = {}

    def move(self) -> None:
        """Move all of them."""
        scatters = self._decodes and self._moving.compiled_targets is not None
        packed_bytes = (self._arenas.packings[:, 0] * self._rows).tolist()
        # the places of columns that the part will scatter together, and their bytes, unpacked and packed
        together: list[int] = []
        decoded_total = packed_total = 0
        for at, width in enumerate(self._columns.fixed_widths.tolist()):
            size_bytes = width * self._rows
            if not scatters or width > _MAX_DECODED_WIDTH:
                self._add(self._columns.fixed[at], width, size_bytes)
                continue
            fits = packed_total + packed_bytes[at] <= DECODED_TOGETHER_BYTES
            if not fits or decoded_total + size_bytes > _DECODED_BYTES:
                self._decode(together)
                together, decoded_total, packed_total = [], 0, 0
            together.append(at)
            decoded_total += size_bytes
            packed_total += packed_bytes[at]
        self._decode(together)
        for numbers in self._pending.values():
            self._move(numbers)

    def _add(self, number: int, width: int, size_bytes: int) -> None:
        """Move a column now, or later in a batch."""
        pending = self._pending.setdefault(width, [])
        pending.append(number)
        copies = len(pending) * len(self._arenas.rows)
        is_much = len(pending) * size_bytes >= _BATCH_BYTES or copies >= _BATCH_COPIES
        if self._decodes or is_much:
            self._move(self._pending.pop(width))

    def _decode(self, together: list[int]) -> None:
        """Let the part scatter columns; select and move those that it cannot."""
        if together:
            self._pause()
            for at in self._decode_some(together):
                self._move([self._columns.fixed[at]])

    def _decode_some(self, together: list[int]) -> list[int]:
        """Move the columns that the part can scatter; returns the others, some of which can overflow.

        A function of its own: the decoded values are released before the other columns are selected.
        """
        targets, part = self._moving.compiled_targets, self._part
        assert targets is not None, "targets are known where columns are scattered"
        assert can_scatter(part), "the part scatters columns"
        # Columns are scattered into scratch memory that stays in the CPU cache, then copied in order, even where
        # scattering directly is possible: so each page of a map output is written once.
        places, packings = np.array(together), self._arenas.packings[together]
        numbers = [self._columns.fixed[at] for at in together]
        scratch = ColumnMemory.take(self._pool, packings[:, 0] * len(targets))
        found = part.scatter_values(numbers, packings, targets, scratch, self._pool)
        done = np.flatnonzero(found.done)
        addresses = self._arenas.addresses[places[done]]
        native.copy_out(scratch.select(done), packings[done, 0], self._arenas.rows, addresses)
        for column, valid in found.valid.items():
            self._arenas.set_validity(numbers[column], self._moving.cut(valid))
        return places[~found.done].tolist()

    def _move(self, numbers: list[int]) -> None:
        self._pause()
        columns = join_each(self._part.select(numbers))
        outs = [self._arenas.column(number) for number in numbers]
        values = []
        for number, column, out in zip(numbers, columns, outs, strict=True):
            values.append(values_of(column))
            valid = validity_of(column)
            if valid is not None:
                self._arenas.set_validity(number, self._moving.move_flags(valid))
                values[-1] = clear_nulls(values[-1], valid, out.packing.base)
        overflow = self._moving.move(values, outs, self._pool)
        if overflow is not None:
            raise _ColumnOverflowError(self._part.schema.field(numbers[overflow]).name)


@dataclass(frozen=True, eq=False)
class _Grouping:
    """Where rows go; the same for every column."""

    run_starts: list[NDArray[np.int64]]  # by map output: the first row of each run, then the number of rows
    targets: NDArray[Any] | None
    known_parts: list[NDArray[np.int64]] | None = None

    @cached_property
    def parts(self) -> list[NDArray[np.int64]]:
        """The source of each row of each map output."""
        if self.known_parts is not None or self.targets is None:
            return self.known_parts or []
        order = np.empty(len(self.targets), np.int64)
        order[self.targets] = np.arange(len(order))
        return [order[rows] for rows in self._map_output_slices]

    @property
    def compiled_targets(self) -> NDArray[np.uint32] | None:
        """The targets if the C kernels made them, and so can use them; NumPy handles 2^32 rows and more."""
        return self.targets if self.targets is not None and self.targets.dtype == np.uint32 else None

    @property
    def map_output_rows(self) -> list[int]:
        return [int(starts[-1]) for starts in self.run_starts]

    def compose(self, rows: NDArray[np.int64], stored_rows: int) -> _Grouping:
        """The same grouping, where entry i stands for row ``rows[i]``."""
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= stored_rows):
            raise WindrowError(f"entries refer to row numbers outside the block's {stored_rows} rows")
        return _Grouping(self.run_starts, None, [rows[part] for part in self.parts])

    def cut(self, rows: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Cut rows in target order into those of each map output."""
        return [rows[part] for part in self._map_output_slices]

    def move_flags(self, flags: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Move a byte a row; returns those of each map output."""
        if self.targets is None:
            return [flags[part] for part in self.parts]
        moved = np.empty_like(flags)
        moved[self.targets] = flags
        return self.cut(moved)

    def move(
        self, columns: Sequence[PlainRows], outs: Sequence[MapOutputColumn], pool: BufferPool
    ) -> int | None:
        """Write columns of one width to the map outputs, by scatter or gather, whichever is faster.

        Returns the index of a column whose values do not fit its packing.
        """
        targets = self.compiled_targets
        if targets is not None:
            width, rows = outs[0].width, len(targets)
            packing = tuple(out.packing for out in outs)
            packed_rows = join_columns(packing, width, rows)
            scratch = pool.take(native.scratch_bytes(width, rows, packed_rows))
            values = [np.ascontiguousarray(column) for column in columns]
            counts = np.array(self.map_output_rows, np.int64)
            addresses = np.stack([out.addresses for out in outs])
            return native.group_columns(
                values, width, packing, targets, scratch, counts, addresses, packed_rows
            )
        for number, (column, out) in enumerate(zip(columns, outs, strict=True)):
            if self.targets is not None and column.ndim == 1 and column.itemsize in _SCATTER_WIDTHS:
                scratch = pool.take(column.nbytes).view(column.dtype).reshape(column.shape)
                scratch[self.targets] = column
                fits = all(out.write(at, scratch[part]) for at, part in enumerate(self._map_output_slices))
            else:
                fits = all(out.gather(at, column, part) for at, part in enumerate(self.parts))
            if not fits:
                return number
        return None

    def decode_text(self, part: BlockPart, column: int, pool: BufferPool) -> list[pa.Array] | None:
        """Let the part decode a text column directly to each map output; None if it cannot."""
        targets = self.compiled_targets
        if targets is None or not can_scatter(part) or not offset_width(part.schema.field(column).type):
            return None
        return part.scatter_text(column, targets, self._map_output_slices, pool)

    def move_arrow_column(self, column: pa.Array, name: str, pool: BufferPool) -> list[pa.Array]:
        """Move a column without a fixed width; returns its rows of each map output."""
        targets = self.compiled_targets if can_move_nested(column.type) else None
        if targets is not None and list_rows_of(column, copies=False) is None:
            nested, to = NestedColumn.of(column, name), Targets(0, len(column), address_of(targets))
            moved = [
                move_nested([nested], column.type, [to], rows, pool, name) for rows in self._map_output_slices
            ]
            found = [array for array in moved if array is not None]
            if len(found) == len(moved):
                return found
        return [move_column(column, part, name, pool) for part in self.parts]

    @cached_property
    def _map_output_slices(self) -> list[slice]:
        """The rows of each map output in the concatenated map outputs."""
        return [slice(start, end) for start, end in pairwise(np.cumsum([0, *self.map_output_rows]).tolist())]


def group_entries(runs: RunIds, slice_starts: NDArray[np.int64], *, scatters_all: bool = False) -> _Grouping:
    """Sort entries by run; the parameters are those of `group_rows`.

    ``scatters_all``: entries that are dropped are scattered, too, since they are decoded anyway.
    """
    first, last = int(slice_starts[0]), int(slice_starts[-1])
    cuts = (slice_starts - first).tolist()
    if native.LIBRARY is not None and len(runs) <= native.MAX_ROWS:
        targets, starts = native.group(runs, first, last)
        few_left_out = len(runs) - int(starts[-1]) <= len(runs) // 8
        grouping = _Grouping(_cut_starts(starts, cuts), targets)
        # with many dropped rows, scattering those of memory too would waste most of the work
        return (
            grouping if few_left_out or scatters_all else _Grouping(grouping.run_starts, None, grouping.parts)
        )
    order = _sort_stably(runs)
    starts = np.searchsorted(runs[order], np.arange(first, last + 1))
    run_starts = _cut_starts(starts, cuts)
    parts = [order[starts[low] : starts[high]] for low, high in pairwise(cuts)]
    left_out = len(order) - int(starts[-1] - starts[0])
    if starts[0] or left_out > len(order) // 8:
        return _Grouping(run_starts, None, parts)
    targets = np.empty(len(order), np.int64)
    targets[order] = np.arange(len(order))
    return _Grouping(run_starts, targets, parts)


def _cut_starts(starts: NDArray[np.int64], cuts: list[int]) -> list[NDArray[np.int64]]:
    return [starts[low : high + 1] - starts[low] for low, high in pairwise(cuts)]


def _sort_stably(runs: RunIds) -> NDArray[np.int64]:
    """The stable order of entries by run."""
    # NumPy's stable sort is a radix sort for 16-bit keys, five times as fast as its merge sort for wider ones.
    order = np.argsort(runs.astype(np.uint16, copy=False), kind="stable")
    if runs.dtype.itemsize > 2 and len(runs) and int(runs.max()) > 0xFFFF:
        order = order[np.argsort((runs >> 16).astype(np.uint16)[order], kind="stable")]
    return order.astype(np.int64, copy=False)

"""The map side's kernel: group a block's rows by the run that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import WindrowError
from windrow.core.memory import ALIGNMENT_BYTES, BufferPool
from windrow.core.source import BlockPart, can_scatter
from windrow.shuffle import kernels
from windrow.shuffle.columns import join, move_column
from windrow.shuffle.piece import Piece, other_columns, stack_columns
from windrow.shuffle.plain import (
    PlainRows,
    row_bytes,
    rows_view,
    stack_view,
    validity_of,
    word_bytes,
    words_of,
)
from windrow.shuffle.text import can_move_text, move_text

__all__ = ["group_rows"]

# Scattering reads in order and writes one stream a run, which beats gathering for
# words of this size and more; below it the 8-byte row numbers are most of the traffic.
_SCATTER_WIDTHS = (8, 16)
# about a millisecond's work, of C or of Python
_TOGETHER_BYTES, _TOGETHER_COPIES = 4 << 20, 128
# no part decodes wider words to where rows go
_DECODED_BYTES = 8

RunIds = NDArray[np.uint16 | np.uint32]


def group_rows(
    table: BlockPart,
    rows: NDArray[np.int64] | None,
    runs: RunIds,
    places: NDArray[np.uint32],
    slice_starts: NDArray[np.int64],
    pool: BufferPool,
    pause: Callable[[], None] = lambda: None,
) -> list[Piece]:
    """Group entries by run, in their given order within a run, into one piece a slice.

    Parameters
    ----------
    table
        Rows of a block; each column is asked for once, and used at once.
    rows
        (entries,) the row of ``table`` that each entry stands for; None for every
        row once, in order.
    runs
        (entries,) the run of each entry; entries of runs outside the slices are left out.
    places
        (entries,) the place of each entry within its run.
    slice_starts
        (slices + 1,) run ids: slice k holds runs ``slice_starts[k]`` up to, not
        including, ``slice_starts[k + 1]``.
    pool
        Where memory comes from: one buffer for a piece's plain columns and places,
        and one for the null flags of each column that holds nulls.
    pause
        Called every few milliseconds, between columns.

    Raises
    ------
    PlanError
        If Arrow cannot move a column of this type, naming the column.
    """
    entries = table.num_rows if rows is None else len(rows)
    if not entries == len(runs) == len(places):
        raise WindrowError(f"{entries} entries have {len(runs)} runs and {len(places)} places")
    grouping = _group_entries(runs, slice_starts)
    moving = grouping if rows is None else grouping.through(rows, table.num_rows)
    arenas = [_Arena.of(table.schema, rows_of_piece, pool) for rows_of_piece in grouping.piece_rows]
    grouping.move([places], [[arena.places for arena in arenas]], pool)
    others: list[dict[int, pa.Array]] = [{} for _ in arenas]
    stacks = _Stacks(table, moving, arenas, pool, pause)
    for number, name in enumerate(table.schema.names):
        if number in stacks.places:
            stacks.add(number)
            continue
        pause()
        arrays = moving.decode_text(table, number, pool)
        if arrays is None:
            arrays = moving.move_other(join(table.select([number])), name, pool)
        for moved, array in zip(others, arrays, strict=True):
            moved[number] = array
    stacks.finish()
    return [
        Piece(
            schema=table.schema,
            run_starts=run_starts,
            places=arena.places,
            stacks=arena.stacks,
            validity=arena.validity,
            others=_batch_of(table.schema, moved),
        )
        for run_starts, arena, moved in zip(grouping.run_starts, arenas, others, strict=True)
    ]


class _Stacks:
    """Moves the columns that are stacked.

    What a part decodes is moved column by column, while it is in the cache. What lies in memory
    is moved together, so that the interpreter's lock is given up once for many columns.
    """

    def __init__(
        self,
        part: BlockPart,
        moving: _Grouping,
        arenas: Sequence[_Arena],
        pool: BufferPool,
        pause: Callable[[], None],
    ) -> None:
        self._part, self._moving, self._arenas, self._pool, self._pause = part, moving, arenas, pool, pause
        self._decodes = can_scatter(part)
        self._waiting: dict[int, list[int]] = {}
        stacked = stack_columns(part.schema)
        self.places = {
            number: (stack, place)
            for stack, numbers in enumerate(stacked)
            for place, number in enumerate(numbers)
        }
        self._widths = [word_bytes(part.schema.field(numbers[0]).type) for numbers in stacked]
        self._scratch: NDArray[np.uint8] | None = None

    def add(self, number: int) -> None:
        """Move a column, now or with others of its stack."""
        if self._decodes:
            self._pause()
            if self._decode(number):
                return
        stack, _ = self.places[number]
        waiting = self._waiting.setdefault(stack, [])
        waiting.append(number)
        size_bytes = len(waiting) * self._part.num_rows * word_bytes(self._part.schema.field(number).type)
        copies = len(waiting) * len(self._arenas)
        if self._decodes or size_bytes >= _TOGETHER_BYTES or copies >= _TOGETHER_COPIES:
            self._move(self._waiting.pop(stack))

    def _decode(self, number: int) -> bool:
        stack, _ = self.places[number]
        if not self._moving.is_compiled or self._widths[stack] > _DECODED_BYTES:
            return False
        if self._scratch is None:
            # once for all columns
            widest = max(width for width in self._widths if width <= _DECODED_BYTES)
            self._scratch = self._pool.take(widest * self._part.num_rows)
        return self._moving.decode(self._part, number, self._outs(number), self._scratch)

    def finish(self) -> None:
        """Move what has waited for others."""
        self._scratch = None
        for numbers in self._waiting.values():
            self._move(numbers)

    def _outs(self, number: int) -> list[PlainRows]:
        """Where each piece has the rows of a column."""
        stack, place = self.places[number]
        return [arena.stacks[stack][place] for arena in self._arenas]

    def _move(self, numbers: list[int]) -> None:
        self._pause()
        table = self._part.select(numbers)
        columns = [
            column.chunk(0) if column.num_chunks == 1 else join(table.select([at]))
            for at, column in enumerate(table.columns)
        ]
        for number, column in zip(numbers, columns, strict=True):
            valid = validity_of(column)
            if valid is not None:
                flags = [arena.take_validity(number, self._pool) for arena in self._arenas]
                self._moving.move([valid], [flags], self._pool)
        outs = [self._outs(number) for number in numbers]
        self._moving.move([words_of(column) for column in columns], outs, self._pool)


def _batch_of(schema: pa.Schema, columns: dict[int, pa.Array]) -> pa.RecordBatch:
    fields = [schema.field(number) for number in other_columns(schema)]
    return pa.RecordBatch.from_arrays([columns[i] for i in sorted(columns)], schema=pa.schema(fields))


@dataclass(frozen=True, eq=False)
class _Arena:
    """The memory of one piece, cut from one buffer, so that a piece is freed as a whole.

    Whether a column holds nulls is known when it is decoded, so its flags come later.
    """

    places: NDArray[np.uint32]
    stacks: tuple[PlainRows, ...]
    validity: dict[int, NDArray[np.uint8]]

    @classmethod
    def of(cls, schema: pa.Schema, rows: int, pool: BufferPool) -> _Arena:
        stacked = stack_columns(schema)
        widths = [word_bytes(schema.field(numbers[0]).type) for numbers in stacked]
        heights = [width * len(numbers) for width, numbers in zip(widths, stacked, strict=True)]
        sizes = [size * rows for size in (np.dtype(np.uint32).itemsize, *heights)]
        ends = list(accumulate(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes))
        buffer = pool.take(ends[-1])
        cuts = iter([buffer[start : start + size] for start, size in zip([0, *ends], sizes, strict=False)])
        return cls(
            places=next(cuts).view(np.uint32),
            stacks=tuple(stack_view(next(cuts), w, len(n)) for w, n in zip(widths, stacked, strict=True)),
            validity={},
        )

    def take_validity(self, number: int, pool: BufferPool) -> NDArray[np.uint8]:
        """Memory for the flags of a column that holds nulls."""
        self.validity[number] = pool.take(len(self.places))
        return self.validity[number]


@dataclass(frozen=True, eq=False)
class _Grouping:
    """Where rows go; the same for every column.

    Attributes
    ----------
    run_starts
        For each piece where its runs begin, and the end of the last.
    targets
        The place of each source in all pieces laid end to end, sources that are left
        out coming last; None where a source is used otherwise than about once.
    given_parts
        The source of each row of each piece, where that is known already.
    """

    run_starts: list[NDArray[np.int64]]
    targets: NDArray[Any] | None
    given_parts: list[NDArray[np.int64]] | None = None

    @cached_property
    def parts(self) -> list[NDArray[np.int64]]:
        """The source of each row of each piece."""
        if self.given_parts is not None or self.targets is None:
            return self.given_parts or []
        order = np.empty(len(self.targets), np.int64)
        order[self.targets] = np.arange(len(order))
        return [order[rows] for rows in self._piece_slices]

    @property
    def is_compiled(self) -> bool:
        """Whether the targets are numbered for the kernels; more rows than these count are NumPy's."""
        return self.targets is not None and self.targets.dtype == np.uint32

    @property
    def piece_rows(self) -> list[int]:
        """Rows of each piece."""
        return [int(starts[-1]) for starts in self.run_starts]

    def through(self, rows: NDArray[np.int64], stored_rows: int) -> _Grouping:
        """The same grouping where entry i stands for row ``rows[i]``."""
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= stored_rows):
            raise WindrowError(f"entries point outside of the block's {stored_rows} rows")
        return _Grouping(self.run_starts, None, [rows[part] for part in self.parts])

    # Columns go by way of memory that stays in the cache, even where a piece could be hit
    # directly: scattering there and copying in order writes each of the piece's pages once.

    def decode(
        self, part: BlockPart, column: int, outs: Sequence[PlainRows], scratch: NDArray[np.uint8]
    ) -> bool:
        """Decode a column straight to each piece, by way of scratch; False where the part cannot."""
        if self.targets is None or not self.is_compiled or not can_scatter(part):
            return False
        width = row_bytes(outs[0])
        rows = scratch[: width * len(self.targets)]
        if not part.scatter(column, self.targets, rows):
            return False
        _copy_out(rows_view(rows, width), outs)
        return True

    def move(
        self, columns: Sequence[PlainRows], outs: Sequence[Sequence[PlainRows]], pool: BufferPool
    ) -> None:
        """Write columns of one width to each piece, the faster way; ``outs`` has the pieces of each."""
        if self.targets is not None and self.is_compiled:
            scratch = pool.take(kernels.scratch_bytes(row_bytes(columns[0]), len(columns[0]), len(columns)))
            kernels.group_columns(
                [np.ascontiguousarray(values) for values in columns], self.targets, scratch, outs
            )
            return
        for values, out in zip(columns, outs, strict=True):
            if self.targets is None or not _scatters(values):
                self.gather(values, out)
                continue
            scratch = pool.take(values.nbytes).view(values.dtype).reshape(values.shape)
            scratch[self.targets] = values
            _copy_out(scratch, out)

    def decode_text(self, part: BlockPart, column: int, pool: BufferPool) -> list[pa.Array] | None:
        """Decode a column of text straight to each piece; None where the part cannot."""
        if self.targets is None or not self.is_compiled or not can_scatter(part):
            return None
        if not can_move_text(part.schema.field(column).type):
            return None
        return part.scatter_text(column, self.targets, self._piece_slices, pool)

    def move_other(self, column: pa.Array, name: str, pool: BufferPool) -> list[pa.Array]:
        """Make each piece's rows of a column that is no plain memory."""
        arrays = []
        for at, rows in enumerate(self._piece_slices):
            moved = None
            if self.targets is not None and self.is_compiled and can_move_text(column.type):
                moved = move_text([column], [self.targets], rows, pool)
            arrays.append(move_column(column, self.parts[at], name, pool) if moved is None else moved)
        return arrays

    @cached_property
    def _piece_slices(self) -> list[slice]:
        """The rows of each piece in all pieces laid end to end."""
        return [slice(start, end) for start, end in pairwise(np.cumsum([0, *self.piece_rows]).tolist())]

    def gather(self, values: PlainRows, outs: Sequence[PlainRows]) -> None:
        """Write a column's rows to each piece, picked one by one in the piece's order."""
        for part, out in zip(self.parts, outs, strict=True):
            if len(part):
                np.take(values, part, axis=0, out=out, mode="clip")


def _copy_out(rows: PlainRows, outs: Sequence[PlainRows]) -> None:
    """Give each piece its rows, which lie end to end."""
    end = 0
    for out in outs:
        start, end = end, end + len(out)
        np.copyto(out, rows[start:end])


def _scatters(values: PlainRows) -> bool:
    """Whether NumPy scatters a column faster than it gathers it."""
    return values.ndim == 1 and values.itemsize in _SCATTER_WIDTHS


def _group_entries(runs: RunIds, slice_starts: NDArray[np.int64]) -> _Grouping:
    first, last = int(slice_starts[0]), int(slice_starts[-1])
    cuts = (slice_starts - first).tolist()
    if kernels.LIBRARY is not None and len(runs) <= kernels.MOST_ROWS:
        targets, starts = kernels.group(runs, first, last)
        few_left_out = len(runs) - int(starts[-1]) <= len(runs) // 8
        grouping = _Grouping(_cut_starts(starts, cuts), targets)
        # scattering rows that nobody gets would be most of the work
        return grouping if few_left_out else _Grouping(grouping.run_starts, None, grouping.parts)
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
    # NumPy sorts 16-bit keys by radix, five times as fast as wider ones by merging.
    order = np.argsort(runs.astype(np.uint16, copy=False), kind="stable")
    if runs.dtype.itemsize > 2 and len(runs) and int(runs.max()) > 0xFFFF:
        order = order[np.argsort((runs >> 16).astype(np.uint16)[order], kind="stable")]
    return order.astype(np.int64, copy=False)

"""The map side's kernel: group a block's rows by the run that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.errors import WindrowError
from windrow.core.memory import ALIGNMENT_BYTES, BufferPool
from windrow.core.packing import Packing, packs
from windrow.core.source import BlockPart, can_scatter, told_bounds
from windrow.shuffle import kernels
from windrow.shuffle.arenas import Arenas, PieceColumn
from windrow.shuffle.columns import join, move_column
from windrow.shuffle.joint import join_columns
from windrow.shuffle.packing import find_ranges
from windrow.shuffle.piece import Piece, other_columns, word_columns
from windrow.shuffle.plain import (
    PlainRows,
    rows_view,
    validity_of,
    word_bytes,
    words_of,
)
from windrow.shuffle.text import can_move_text, move_text

__all__ = ["DECODED_TOGETHER_BYTES", "group_rows"]

# Scattering reads in order and writes one stream a run, which beats gathering for
# words of this size and more; below it the 8-byte row numbers are most of the traffic.
_SCATTER_WIDTHS = (8, 16)
# about a millisecond's work, of C or of Python
_TOGETHER_BYTES, _TOGETHER_COPIES = 8 << 20, 128
# no part decodes wider words to where rows go; so much of them lies there at a time
_DECODED_BYTES = 8
DECODED_TOGETHER_BYTES = 4 << 20

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
        Rows of a block; each column is asked for once, and used at once, unless what is told of one
        is wrong (`windrow.core.source.BoundedPart`): then all are asked for again.
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
        Where memory comes from: one buffer for a piece's columns of words and places,
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
    try:
        arenas, others = _move_columns(table, moving, pool, pause)
    except _MisfitError:
        arenas = None  # with what it holds the error is gone, too, before there is more
    if arenas is None:
        # what is told of one column is wrong, and of others may be: of a table it is seen
        whole = table.select(list(range(len(table.schema))))
        arenas, others = _move_columns(whole, moving, pool, pause)
    grouping.move([places], [arenas.places], pool)
    return [
        Piece(
            schema=table.schema,
            run_starts=run_starts,
            places=arenas.places.see(at, np.uint32),
            words=arenas.words(at),
            packing=arenas.packing(at),
            validity=arenas.validity(at),
            others=_batch_of(table.schema, moved),
        )
        for at, (run_starts, moved) in enumerate(zip(grouping.run_starts, others, strict=True))
    ]


def _move_columns(
    part: BlockPart, moving: _Grouping, pool: BufferPool, pause: Callable[[], None]
) -> tuple[Arenas, list[dict[int, pa.Array]]]:
    """Move all columns: those of words, and of each piece the others by number."""
    arenas = Arenas(part.schema, _choose_packing(part), moving.piece_rows, pool)
    others: list[dict[int, pa.Array]] = [{} for _ in moving.piece_rows]
    words = _Words(part, moving, arenas, pool, pause)
    for number, name in enumerate(part.schema.names):
        if number in arenas.columns:
            words.add(number)
            continue
        pause()
        arrays = moving.decode_text(part, number, pool)
        if arrays is None:
            arrays = moving.move_other(join(part.select([number])), name, pool)
        for moved, array in zip(others, arrays, strict=True):
            moved[number] = array
    words.finish()
    return arenas, others


def _choose_packing(part: BlockPart) -> dict[int, Packing]:
    """How each column of words may travel: as is told of it, or seen of a table that lies in memory."""
    chosen = {}
    for number in word_columns(part.schema):
        kind = part.schema.field(number).type
        bounds = None
        if packs(kind) and part.num_rows:
            lies = isinstance(part, pa.Table)
            bounds = find_ranges([part.select([number]).column(0)]) if lies else told_bounds(part, number)
        width = word_bytes(kind)
        chosen[number] = Packing(width, 0) if bounds is None else Packing.of(width, *bounds)
    return chosen


class _MisfitError(Exception):
    """A column's words need more bytes than was told."""


class _Words:
    """Moves the columns of words.

    What a part decodes is moved while it is in the cache, and what lies in memory together, as many
    columns at a time as make it worth while to give up the interpreter's lock.
    """

    def __init__(
        self,
        part: BlockPart,
        moving: _Grouping,
        arenas: Arenas,
        pool: BufferPool,
        pause: Callable[[], None],
    ) -> None:
        self._part, self._moving, self._arenas, self._pool, self._pause = part, moving, arenas, pool, pause
        self._decodes = can_scatter(part)
        # columns that the part is asked to decode
        self._stored: list[int] = []
        self._stored_bytes = 0
        self._waiting: dict[int, list[int]] = {}
        self._widths = {number: column.width for number, column in arenas.columns.items()}

    def add(self, number: int) -> None:
        """Move a column, now or with others."""
        width = self._widths[number]
        size_bytes = width * self._part.num_rows
        if self._decodes and self._moving.is_compiled and width <= _DECODED_BYTES:
            if self._stored_bytes + size_bytes > DECODED_TOGETHER_BYTES:
                self._decode()
            self._stored.append(number)
            self._stored_bytes += size_bytes
            return
        waiting = self._waiting.setdefault(width, [])
        waiting.append(number)
        copies = len(waiting) * len(self._arenas.rows)
        is_much = len(waiting) * size_bytes >= _TOGETHER_BYTES or copies >= _TOGETHER_COPIES
        if self._decodes or is_much:
            self._move(self._waiting.pop(width))

    def _decode(self) -> None:
        """Move the columns that the part may decode; those that it cannot are asked for."""
        numbers, self._stored, self._stored_bytes = self._stored, [], 0
        if not numbers:
            return
        self._pause()
        for number in self._decode_some(numbers):
            self._move([number])

    def _decode_some(self, numbers: Sequence[int]) -> list[int]:
        """Move the columns that the part can decode; returns the others."""
        outs = [self._arenas.columns[number] for number in numbers]
        found = self._moving.decode(self._part, numbers, [out.width for out in outs], self._pool)
        told = list(zip(numbers, outs, found, strict=True))
        decoded = [(number, out, words) for number, out, words in told if words is not None]
        misfit = kernels.copy_out(
            [words for _, _, words in decoded],
            [out.packing for _, out, _ in decoded],
            self._arenas.rows,
            [out.addresses for _, out, _ in decoded],
        )
        if misfit is not None:
            raise _MisfitError(self._part.schema.field(decoded[misfit][0]).name)
        return [number for number, _, words in told if words is None]

    def finish(self) -> None:
        """Move what has waited for others."""
        self._decode()
        for numbers in self._waiting.values():
            self._move(numbers)

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
                self._moving.move([valid], [self._arenas.take_validity(number)], self._pool)
        outs = [self._arenas.columns[number] for number in numbers]
        misfit = self._moving.move([words_of(column) for column in columns], outs, self._pool)
        if misfit is not None:
            raise _MisfitError(self._part.schema.field(numbers[misfit]).name)


def _batch_of(schema: pa.Schema, columns: dict[int, pa.Array]) -> pa.RecordBatch:
    fields = [schema.field(number) for number in other_columns(schema)]
    return pa.RecordBatch.from_arrays([columns[i] for i in sorted(columns)], schema=pa.schema(fields))


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
        self, part: BlockPart, numbers: Sequence[int], widths: Sequence[int], pool: BufferPool
    ) -> list[PlainRows | None]:
        """Decode columns to scratch, each row in its place; None for those that the part cannot."""
        if self.targets is None or not can_scatter(part):
            return [None] * len(numbers)
        sizes = [width * len(self.targets) for width in widths]
        # words must lie where the decoder can write whole ones
        starts = np.cumsum([0, *(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes)]).tolist()
        memory = pool.take(starts[-1])
        scratch = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        done = part.scatter(numbers, self.targets, scratch)
        told = zip(scratch, widths, done, strict=True)
        return [rows_view(words, width) if is_done else None for words, width, is_done in told]

    def move(self, columns: Sequence[PlainRows], outs: Sequence[PieceColumn], pool: BufferPool) -> int | None:
        """Write columns of one width to the pieces, the faster way.

        Returns
        -------
        int or None
            Which of them needs more bytes than its packing has.
        """
        if self.targets is not None and self.is_compiled:
            width, rows = outs[0].width, len(self.targets)
            packing = tuple(out.packing for out in outs)
            joint = join_columns(packing, width, rows)
            scratch = pool.take(kernels.scratch_bytes(width, rows, joint))
            return kernels.group_columns(
                [np.ascontiguousarray(values) for values in columns],
                width,
                packing,
                self.targets,
                scratch,
                np.array(self.piece_rows, np.int64),
                np.stack([out.addresses for out in outs]),
                joint,
            )
        for number, (values, out) in enumerate(zip(columns, outs, strict=True)):
            if self.targets is None or not _scatters(values):
                fits = all(out.gather(at, values, part) for at, part in enumerate(self.parts))
            else:
                scratch = pool.take(values.nbytes).view(values.dtype).reshape(values.shape)
                scratch[self.targets] = values
                fits = all(out.put(at, scratch[part]) for at, part in enumerate(self._piece_slices))
            if not fits:
                return number
        return None

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

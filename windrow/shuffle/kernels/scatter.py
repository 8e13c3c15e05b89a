"""`Grouping`: sorts the rows of a block by run, and scatters or gathers columns into map outputs accordingly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import ALIGNMENT_BYTES, BufferPool
from windrow.core.errors import WindrowError
from windrow.core.frame_of_reference import Packing
from windrow.core.source import BlockPart, can_scatter
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.arrow_columns import move_column
from windrow.shuffle.kernels.fixed_width import PlainRows
from windrow.shuffle.kernels.map_output import MapOutputColumn
from windrow.shuffle.kernels.packed_rows import join_columns
from windrow.shuffle.kernels.text_columns import can_move_text, move_text

__all__ = ["Grouping", "RunIds", "group_entries"]

# In NumPy, scattering (sequential reads, one write stream per run) beats gathering at these widths. For
# narrower values the 8-byte row numbers dominate the memory traffic.
_SCATTER_WIDTHS = (8, 16)

RunIds = NDArray[np.uint16 | np.uint32]


@dataclass(frozen=True, eq=False)
class Grouping:
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

    def compose(self, rows: NDArray[np.int64], stored_rows: int) -> Grouping:
        """The same grouping, where entry i stands for row ``rows[i]``."""
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= stored_rows):
            raise WindrowError(f"entries refer to row numbers outside the block's {stored_rows} rows")
        return Grouping(self.run_starts, None, [rows[part] for part in self.parts])

    # Columns are scattered into scratch memory that stays in the CPU cache, then copied in order, even
    # where scattering directly is possible: so each page of a map output is written once.

    def decode(
        self, part: BlockPart, numbers: Sequence[int], packings: Sequence[Packing], pool: BufferPool
    ) -> list[NDArray[np.uint8] | None]:
        """Let the part scatter packed columns to scratch memory; None for columns that it cannot scatter."""
        if self.targets is None or not can_scatter(part):
            return [None] * len(numbers)
        sizes = [packing.bytes * len(self.targets) for packing in packings]
        # the decoder needs aligned memory
        starts = np.cumsum([0, *(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes)]).tolist()
        memory = pool.take(starts[-1])
        scratch = [memory[start : start + size] for start, size in zip(starts, sizes, strict=False)]
        done = part.scatter_values(numbers, packings, self.targets, scratch)
        return [words if is_done else None for words, is_done in zip(scratch, done, strict=True)]

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
        if targets is None or not can_scatter(part) or not can_move_text(part.schema.field(column).type):
            return None
        return part.scatter_text(column, targets, self._map_output_slices, pool)

    def move_arrow_column(self, column: pa.Array, name: str, pool: BufferPool) -> list[pa.Array]:
        """Move a column without a fixed width; returns its rows of each map output."""
        targets = self.compiled_targets if can_move_text(column.type) else None
        arrays = []
        for at, rows in enumerate(self._map_output_slices):
            moved = None if targets is None else move_text([column], [targets], rows, pool, name)
            arrays.append(move_column(column, self.parts[at], name, pool) if moved is None else moved)
        return arrays

    @cached_property
    def _map_output_slices(self) -> list[slice]:
        """The rows of each map output in the concatenated map outputs."""
        return [slice(start, end) for start, end in pairwise(np.cumsum([0, *self.map_output_rows]).tolist())]


def group_entries(runs: RunIds, slice_starts: NDArray[np.int64]) -> Grouping:
    """Sort entries by run; the parameters are those of `windrow.shuffle.kernels.group_rows.group_rows`."""
    first, last = int(slice_starts[0]), int(slice_starts[-1])
    cuts = (slice_starts - first).tolist()
    if native.LIBRARY is not None and len(runs) <= native.MAX_ROWS:
        targets, starts = native.group(runs, first, last)
        few_left_out = len(runs) - int(starts[-1]) <= len(runs) // 8
        grouping = Grouping(_cut_starts(starts, cuts), targets)
        # with many dropped rows, scattering those too would waste most of the work
        return grouping if few_left_out else Grouping(grouping.run_starts, None, grouping.parts)
    order = _sort_stably(runs)
    starts = np.searchsorted(runs[order], np.arange(first, last + 1))
    run_starts = _cut_starts(starts, cuts)
    parts = [order[starts[low] : starts[high]] for low, high in pairwise(cuts)]
    left_out = len(order) - int(starts[-1] - starts[0])
    if starts[0] or left_out > len(order) // 8:
        return Grouping(run_starts, None, parts)
    targets = np.empty(len(order), np.int64)
    targets[order] = np.arange(len(order))
    return Grouping(run_starts, targets, parts)


def _cut_starts(starts: NDArray[np.int64], cuts: list[int]) -> list[NDArray[np.int64]]:
    return [starts[low : high + 1] - starts[low] for low, high in pairwise(cuts)]


def _sort_stably(runs: RunIds) -> NDArray[np.int64]:
    """The stable order of entries by run."""
    # NumPy's stable sort is a radix sort for 16-bit keys, five times as fast as its merge sort for wider ones.
    order = np.argsort(runs.astype(np.uint16, copy=False), kind="stable")
    if runs.dtype.itemsize > 2 and len(runs) and int(runs.max()) > 0xFFFF:
        order = order[np.argsort((runs >> 16).astype(np.uint16)[order], kind="stable")]
    return order.astype(np.int64, copy=False)

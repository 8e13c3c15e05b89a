"""Steps that costs divide into uneven parts, as a shard takes them: their rows and costs, and their microbatches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from windrow.pipeline.delivery.delivery import StepPart
from windrow.shuffle.order.runs import Run, WindowRuns
from windrow.shuffle.order.step_runs import Piece, Pieces, StepRuns, cut_pieces, to_pieces

# of repeated rows, which join the last one that has rows
LAST_MICROBATCH = -1


class StepParts:
    """The pieces of a shard's steps, as its runs bring them, and what they make of each step.

    A thread takes runs while the consumer asks for steps. Few consumers do, so pieces are put together only then.
    ``sequence_rows``: how many rows of pieces are a row of the step; with packing, pieces hold tokens.
    """

    def __init__(self, sequence_rows: int = 1) -> None:
        self._sequence_rows = sequence_rows
        # pieces whose rows have not been given out yet, where batches are not even
        self.pieces: deque[Piece] = deque()
        self._lock = threading.Lock()
        self._added: deque[Sequence[Piece] | Pieces] = deque()
        self._complete: list[StepPart] = []
        # of the first so many of these steps
        self._rows = [0]
        # of the step at `_step`, the rows and the cost of each microbatch
        self._open: dict[int, tuple[int, float]] = {}
        self._step = -1

    def add(self, pieces: Sequence[Piece] | Pieces) -> None:
        """Add the pieces that a run consists of; of even batches, columns."""
        if not isinstance(pieces, tuple):
            self.pieces.extend(pieces)
        self._added.append(pieces)

    def of_step(self, step: int) -> StepPart | None:
        """What is known of a step, counted from the first one that was taken; None if nothing is."""
        with self._lock:
            self._gather()
            if step < len(self._complete):
                return self._complete[step]
            return self._join_open() if step == len(self._complete) and self._open else None

    def rows_of(self, steps: int) -> int:
        """The rows of the first steps."""
        with self._lock:
            self._gather()
            known = min(steps, len(self._complete))
            is_open = steps > known and bool(self._open)
            return self._rows[known] + (sum(self._join_open().rows) if is_open else 0)

    def _gather(self) -> None:
        while self._added:
            added = self._added.popleft()
            for piece in to_pieces(added) if isinstance(added, tuple) else added:
                if piece.step != self._step and self._open:
                    self._end()
                self._step = piece.step
                part = _find_part(piece, self._open)
                rows, cost = self._open.get(part, (0, 0.0))
                self._open[part] = rows + piece.rows, max(cost, piece.cost)
                if piece.ends:
                    self._end()

    def _end(self) -> None:
        part = self._join_open()
        self._complete.append(part)
        self._rows.append(self._rows[-1] + sum(part.rows))
        self._open = {}

    def _join_open(self) -> StepPart:
        found = [self._open[part] for part in sorted(self._open)]
        return StepPart(
            tuple(rows // self._sequence_rows for rows, _ in found), tuple(cost for _, cost in found)
        )


class StepSpan(NamedTuple):
    """The rows of whole steps: how many each microbatch has, and how many microbatches each step."""

    rows: pa.RecordBatch
    sizes: list[int]
    counts: list[int]


def align_steps(runs: Iterable[pa.RecordBatch], parts: StepParts) -> Iterator[StepSpan]:
    """Regroup runs into spans of whole steps. ``parts`` gets the pieces of a run before it is yielded.

    Steps are copied if they lie in two runs, or if the pieces of their microbatches alternate.
    """
    step, open_one = -1, dict[int, list[pa.RecordBatch]]()
    for run in runs:
        at, begin, sizes, counts = 0, 0, list[int](), list[int]()
        while at < run.num_rows:
            pieces, rows = _next_step(parts.pieces, run.num_rows - at)
            if open_one and pieces[0].step != step:
                yield _join(open_one)
                open_one = {}
            is_whole = pieces[-1].ends or at + rows < run.num_rows
            own = _sizes_of(pieces) if is_whole and not open_one else None
            if own is not None:
                sizes += own
                counts.append(len(own))
                at += rows
                continue
            if counts:
                yield StepSpan(run.slice(begin, at - begin), sizes, counts)
            step = pieces[0].step
            for piece in pieces:
                open_one.setdefault(_find_part(piece, open_one), []).append(run.slice(at, piece.rows))
                at += piece.rows
            if is_whole:
                yield _join(open_one)
                open_one = {}
            begin, sizes, counts = at, [], []
        if counts:
            yield StepSpan(run.slice(begin), sizes, counts)
    if open_one:
        yield _join(open_one)


def _next_step(pieces: deque[Piece], most_rows: int) -> tuple[list[Piece], int]:
    """Remove and return the next pieces of one step, of at most so many rows, and their rows."""
    found = [pieces.popleft()]
    rows = found[0].rows
    while rows < most_rows and not found[-1].ends and pieces[0].step == found[0].step:
        found.append(pieces.popleft())
        rows += found[-1].rows
    return found, rows


def _sizes_of(pieces: Sequence[Piece]) -> list[int] | None:
    """The rows of each microbatch of a step; None if the pieces of one do not stand together."""
    sizes, latest = [pieces[0].rows], pieces[0].microbatch
    for piece in pieces[1:]:
        if piece.microbatch == latest:
            sizes[-1] += piece.rows
        elif piece.microbatch > latest:
            sizes.append(piece.rows)
            latest = piece.microbatch
        else:
            return None
    return sizes


def _find_part(piece: Piece, found: Iterable[int]) -> int:
    return max(found, default=0) if piece.microbatch == LAST_MICROBATCH else piece.microbatch


def _join(found: dict[int, list[pa.RecordBatch]]) -> StepSpan:
    parts = [found[part] for part in sorted(found)]
    slices = [each for part in parts for each in part]
    rows = slices[0] if len(slices) == 1 else pa.concat_batches(slices)
    return StepSpan(rows, [sum(each.num_rows for each in part) for part in parts], [len(parts)])


def take_pieces(pieces: deque[Piece], rows: int) -> list[Piece]:
    """Remove and return the pieces of the next ``rows`` rows; a piece that goes on behind them is divided."""
    taken: list[Piece] = []
    while rows:
        piece = pieces.popleft()
        if piece.rows > rows:
            pieces.appendleft(piece._replace(rows=piece.rows - rows))
            piece = piece._replace(rows=rows, ends=False)
        taken.append(piece)
        rows -= piece.rows
    return taken


class WindowPieces:
    """The parts of steps that a shard's rows of a window are, from an epoch's row on and behind ``first`` rows."""

    def __init__(self, layout: WindowRuns | StepRuns, row: int, shard: int, first: int) -> None:
        self._stride = layout.assignment.place_stride
        balance = layout.assignment.balance
        columns = layout.pieces_from(row, shard)
        self._is_even = balance is not None and balance.divides_evenly
        self._columns = columns
        self._left = None if columns is None or self._is_even else deque(to_pieces(columns))
        # rows up to the end of each piece
        self._stops = np.cumsum([] if columns is None else columns[2])
        self._taken = self._at = 0
        self.take(first)

    def take(self, rows: int) -> Sequence[Piece] | Pieces:
        """Those of the next rows; of even batches, those that end with them. None where costs do not divide steps."""
        if self._columns is None:
            return []
        if self._left is not None:
            return take_pieces(self._left, rows)
        self._taken += rows
        first, self._at = (
            self._at,
            int(np.searchsorted(self._stops, self._taken, side="right")),
        )
        return cut_pieces(self._columns, first, self._at)

    def repeated(self, run: Run) -> Sequence[Piece] | Pieces:
        """That of a run of rows that are repeated to fill the last step."""
        if self._columns is None:
            return []
        return [Piece(run.place // self._stride, LAST_MICROBATCH, run.rows, ends=False, cost=0.0)]


def for_microbatches(
    finish: Callable[[Any], Any] | None, size_of: Callable[[Any], int]
) -> tuple[Callable[[Any], Any] | None, Callable[[Any], int]]:
    """The functions that complete a batch and tell its bytes, for lists of microbatches."""
    return (
        None if finish is None else lambda batches: [finish(batch) for batch in batches],
        lambda batches: sum(map(size_of, batches)),
    )

"""Steps that costs divide into uneven parts, as a shard takes them: their rows and costs, and their microbatches."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.pipeline.delivery.delivery import StepPart
from windrow.shuffle.order.runs import Run, WindowRuns
from windrow.shuffle.order.step_runs import Pieces, StepRuns

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

# of repeated rows, which join the last one that has rows
LAST_MICROBATCH = -1


class StepParts:
    """The pieces of a shard's steps, as its runs bring them, and what they make of each step.

    A thread takes runs while the consumer asks for steps. Few consumers do, so pieces are put together only then.
    ``sequence_rows``: how many rows of pieces are a row of the step; with packing, pieces hold tokens.
    """

    def __init__(self, sequence_rows: int = 1) -> None:
        self._sequence_rows = sequence_rows
        # those of the latest run
        self.latest: Pieces | None = None
        self._lock = threading.Lock()
        self._added: deque[Pieces] = deque()
        # of the step behind the complete ones
        self._open: Pieces | None = None
        # by microbatch of all complete steps, its rows and its cost
        self._rows: list[int] = []
        self._costs: list[float] = []
        # by complete step, and behind the last: its first microbatch, and the rows before it
        self._firsts, self._rows_before = [0], [0]

    def add(self, pieces: Pieces | None) -> None:
        """Add the pieces that a run consists of."""
        self.latest = pieces
        if pieces is not None:
            self._added.append(pieces)

    def of_step(self, step: int) -> StepPart | None:
        """What is known of a step, counted from the first one that was taken; None if nothing is."""
        with self._lock:
            self._gather()
            if step + 1 < len(self._firsts):
                own = slice(self._firsts[step], self._firsts[step + 1])
                return StepPart(tuple(self._rows[own]), tuple(self._costs[own]))
            if step + 1 > len(self._firsts) or self._open is None:
                return None
            rows, costs, _ = self._sum_up(self._open)
            return StepPart(tuple(rows.tolist()), tuple(costs.tolist()))

    def rows_of(self, steps: int) -> int:
        """The rows of the first steps."""
        with self._lock:
            self._gather()
            if steps < len(self._rows_before):
                return self._rows_before[steps]
            return self._rows_before[-1] + (
                0 if self._open is None else int(self._sum_up(self._open)[0].sum())
            )

    def _gather(self) -> None:
        if not self._added:
            return
        added = [] if self._open is None else [self._open]
        while self._added:
            added.append(self._added.popleft())
        pieces = _resolve_repeated(Pieces(*map(np.concatenate, zip(*added, strict=True))))
        whole = _count_whole(pieces)
        self._open = pieces.cut(whole, len(pieces.steps)) if whole < len(pieces.steps) else None
        rows, costs, counts = self._sum_up(pieces.cut(0, whole))
        firsts = self._firsts[-1] + np.cumsum(counts)
        self._rows_before += (self._rows_before[-1] + np.cumsum(rows)[firsts - self._firsts[-1] - 1]).tolist()
        self._firsts += firsts.tolist()
        self._rows += rows.tolist()
        self._costs += costs.tolist()

    def _sum_up(self, pieces: Pieces) -> tuple[Ints, Floats, Ints]:
        """The rows and the cost of each microbatch, and how many microbatches each step has."""
        order = np.lexsort((pieces.microbatches, pieces.steps))
        begins, counts = _find_microbatches(pieces.steps[order], pieces.microbatches[order])
        if not len(begins):
            return pieces.rows, pieces.costs, counts
        rows = np.add.reduceat(pieces.rows[order], begins) // self._sequence_rows
        return rows, np.maximum.reduceat(pieces.costs[order], begins), counts


def _resolve_repeated(pieces: Pieces) -> Pieces:
    """Give rows that are repeated the microbatch that they join."""
    (repeated,) = np.nonzero(pieces.microbatches == LAST_MICROBATCH)
    if not len(repeated):
        return pieces
    microbatches = pieces.microbatches.copy()
    for at in repeated.tolist():
        microbatches[at] = microbatches[:at][pieces.steps[:at] == pieces.steps[at]].max(initial=0)
    return pieces._replace(microbatches=microbatches)


def _count_whole(pieces: Pieces) -> int:
    """How many pieces belong to steps that have all of their rows: all, or those before the last step."""
    if not len(pieces.steps) or pieces.ends[-1]:
        return len(pieces.steps)
    return int(np.searchsorted(pieces.steps, pieces.steps[-1]))


def _find_microbatches(steps: Ints, microbatches: Ints) -> tuple[Ints, Ints]:
    """Where each microbatch begins, and how many each step has, if the pieces of each stand together."""
    begins_step = np.diff(steps, prepend=-1) != 0
    begins = np.flatnonzero(begins_step | (np.diff(microbatches, prepend=-1) != 0))
    counts = np.diff(np.flatnonzero(begins_step[begins]), append=len(begins))
    return begins, counts


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
        pieces = parts.latest
        assert pieces is not None, "costs divide steps"
        first, at, count = 0, 0, len(pieces.steps)
        if open_one:
            first = int(np.searchsorted(pieces.steps, step, side="right"))
            at = _add_pieces(open_one, run, at, pieces.cut(0, first))
            if first < count or pieces.ends[-1]:
                yield _join(open_one)
                open_one = {}
        if first == count:
            continue
        # the last step may go on in the next run
        whole = max(first, _count_whole(pieces))
        for span in _cut_spans(run, at, pieces.cut(first, whole)):
            yield span
            at += span.rows.num_rows
        if whole < count:
            step = int(pieces.steps[-1])
            _add_pieces(open_one, run, at, pieces.cut(whole, count))
    if open_one:
        yield _join(open_one)


def _cut_spans(run: pa.RecordBatch, at: int, pieces: Pieces) -> Iterator[StepSpan]:
    """Spans of the whole steps of some pieces, of which the rows of a run from ``at`` on are."""
    steps, count = pieces.steps, len(pieces.steps)
    goes_back = (np.diff(steps) == 0) & (np.diff(pieces.microbatches) < 0)
    first = 0
    for step in np.unique(steps[1:][goes_back]).tolist():
        begin, end = (int(np.searchsorted(steps, step, side=side)) for side in ("left", "right"))
        if first < begin:
            yield (span := _make_span(run, at, pieces.cut(first, begin)))
            at += span.rows.num_rows
        one = dict[int, list[pa.RecordBatch]]()
        at, first = _add_pieces(one, run, at, pieces.cut(begin, end)), end
        yield _join(one)
    if first < count:
        yield _make_span(run, at, pieces.cut(first, count))


def _make_span(run: pa.RecordBatch, at: int, pieces: Pieces) -> StepSpan:
    begins, counts = _find_microbatches(pieces.steps, pieces.microbatches)
    sizes = np.add.reduceat(pieces.rows, begins).tolist()
    return StepSpan(run.slice(at, sum(sizes)), sizes, counts.tolist())


def _add_pieces(found: dict[int, list[pa.RecordBatch]], run: pa.RecordBatch, at: int, pieces: Pieces) -> int:
    """Add the rows of pieces, from ``at`` on in a run, to their microbatches; returns where they end."""
    for microbatch, rows in zip(pieces.microbatches.tolist(), pieces.rows.tolist(), strict=True):
        part = max(found, default=0) if microbatch == LAST_MICROBATCH else microbatch
        found.setdefault(part, []).append(run.slice(at, rows))
        at += rows
    return at


def _join(found: dict[int, list[pa.RecordBatch]]) -> StepSpan:
    parts = [found[part] for part in sorted(found)]
    slices = [each for part in parts for each in part]
    rows = slices[0] if len(slices) == 1 else pa.concat_batches(slices)
    return StepSpan(rows, [sum(each.num_rows for each in part) for part in parts], [len(parts)])


class WindowPieces:
    """The parts of steps that a shard's rows of a window are, from an epoch's row on and behind ``first`` rows."""

    def __init__(self, layout: WindowRuns | StepRuns, row: int, shard: int, first: int) -> None:
        self._stride = layout.assignment.place_stride
        self._pieces = layout.pieces_from(row, shard)
        # rows up to the end of each piece
        self._stops = np.cumsum([] if self._pieces is None else self._pieces.rows)
        self._taken = first

    def take(self, rows: int) -> Pieces | None:
        """Those of the next rows, divided where these end within one; None where costs do not divide steps."""
        if self._pieces is None:
            return None
        begin, end = self._taken, self._taken + rows
        self._taken = end
        first, last = (
            int(np.searchsorted(self._stops, begin, side="right")),
            int(np.searchsorted(self._stops, end)),
        )
        pieces, stops = self._pieces.cut(first, last + 1), self._stops[first : last + 1]
        own = np.minimum(stops, end) - np.maximum(stops - pieces.rows, begin)
        return pieces._replace(rows=own, ends=pieces.ends & (stops <= end))

    def repeated(self, run: Run) -> Pieces | None:
        """That of a run of rows that are repeated to fill the last step."""
        if self._pieces is None:
            return None
        step, microbatch, rows = np.array([[run.place // self._stride], [LAST_MICROBATCH], [run.rows]])
        return Pieces(step, microbatch, rows, np.zeros(1, np.bool_), np.zeros(1))


def for_microbatches(
    finish: Callable[[Any], Any] | None, size_of: Callable[[Any], int]
) -> tuple[Callable[[Any], Any] | None, Callable[[Any], int]]:
    """The functions that complete a batch and tell its bytes, for lists of microbatches."""
    return (
        None if finish is None else lambda batches: [finish(batch) for batch in batches],
        lambda batches: sum(map(size_of, batches)),
    )

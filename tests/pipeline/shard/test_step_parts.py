"""Steps of uneven parts, put together from the pieces that runs bring."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice, pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.pipeline.delivery.batch_formats import cut_batches
from windrow.pipeline.delivery.delivery import StepPart
from windrow.pipeline.shard.step_parts import (
    LAST_MICROBATCH,
    StepParts,
    StepSpan,
    WindowPieces,
    align_steps,
)
from windrow.shuffle.order.runs import Run
from windrow.shuffle.order.step_runs import Pieces


class Piece(NamedTuple):
    """One of `Pieces`."""

    step: int
    microbatch: int
    rows: int
    ends: bool
    cost: float


def to_columns(pieces: Sequence[Piece]) -> Pieces:
    return Pieces(*(np.array(column) for column in zip(*pieces, strict=True)))


def to_pieces(columns: Pieces | None) -> list[Piece]:
    assert columns is not None
    return [Piece(*each) for each in zip(*(column.tolist() for column in columns), strict=True)]


# two microbatches of step 0, of which the second goes on in another run; step 1 has one that is filled up with padding
RUNS = [
    [Piece(0, 0, 2, False, 5.0), Piece(0, 1, 1, False, 7.0)],
    [Piece(0, 1, 2, True, 7.0), Piece(1, 0, 1, False, 3.0)],
    [Piece(1, LAST_MICROBATCH, 2, False, 0.0)],
]


def test_steps_are_known_as_far_as_runs_have_come() -> None:
    parts = StepParts()
    assert parts.of_step(0) is None
    parts.add(to_columns(RUNS[0]))
    assert parts.of_step(0) == StepPart((2, 1), (5.0, 7.0))
    parts.add(to_columns(RUNS[1]))
    assert [parts.of_step(step) for step in range(3)] == [
        StepPart((2, 3), (5.0, 7.0)),
        StepPart((1,), (3.0,)),
        None,
    ]
    parts.add(to_columns(RUNS[2]))
    assert parts.of_step(1) == StepPart((3,), (3.0,))
    assert [parts.rows_of(steps) for steps in range(4)] == [0, 5, 8, 8]


def feed(parts: StepParts, runs: Iterable[Sequence[Piece]]) -> Iterator[pa.RecordBatch]:
    """Runs of these pieces, whose rows are numbered; ``parts`` gets the pieces of each before it comes."""
    first = 0
    for pieces in runs:
        rows = sum(piece.rows for piece in pieces)
        parts.add(to_columns(pieces))
        yield pa.record_batch({"x": range(first, first + rows)})
        first += rows


def rows_of(spans: Iterable[StepSpan]) -> list[list[list[int]]]:
    """(steps, microbatches, rows) of spans."""
    found = []
    for span in spans:
        assert span.rows.num_rows == sum(span.sizes)
        parts = iter([part["x"].to_pylist() for part in cut_batches(span.rows, span.sizes)])
        found += [list(islice(parts, count)) for count in span.counts]
        assert next(parts, None) is None
    return found


def test_runs_are_regrouped_into_steps() -> None:
    parts = StepParts()
    assert rows_of(align_steps(feed(parts, RUNS), parts)) == [[[0, 1], [2, 3, 4]], [[5, 6, 7]]]


def test_steps_that_lie_in_one_run_are_not_copied() -> None:
    parts = StepParts()
    pieces = [
        [Piece(step, part, 1 + part, part == 1, 1.0) for step in range(first, first + 3) for part in range(2)]
        for first in (0, 3)
    ]
    runs = list[pa.RecordBatch]()

    def noted() -> Iterator[pa.RecordBatch]:
        for run in feed(parts, pieces):
            runs.append(run)
            yield run

    spans = list(align_steps(noted(), parts))
    assert [span.counts for span in spans] == [[2, 2, 2], [2, 2, 2]]
    assert all(span.sizes == [1, 2] * 3 for span in spans)
    for span, run in zip(spans, runs, strict=True):
        assert span.rows["x"].buffers()[1].address == run["x"].buffers()[1].address


@st.composite
def drawn_runs(draw: st.DrawFn) -> list[list[Piece]]:
    """Runs of steps whose microbatches come in any order, in several pieces, some of them filled up with padding."""
    pieces: list[Piece] = []
    for step in range(draw(st.integers(1, 5))):
        parts = draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        own = [Piece(step, part, draw(st.integers(1, 3)), False, 1.0) for part in parts]
        if draw(st.booleans()):
            own[-1] = own[-1]._replace(ends=True)
        elif draw(st.booleans()):
            own.append(Piece(step, LAST_MICROBATCH, draw(st.integers(1, 3)), False, 0.0))
        pieces += own
    borders = sorted(draw(st.sets(st.integers(1, len(pieces)), max_size=4)))
    return [pieces[start:stop] for start, stop in pairwise([0, *borders, len(pieces)]) if pieces[start:stop]]


@given(drawn_runs(), st.integers(1, 3))
def test_steps_have_the_rows_of_their_pieces(runs: list[list[Piece]], sequence_rows: int) -> None:
    expected, costs = dict[int, dict[int, list[int]]](), dict[int, dict[int, float]]()
    first = 0
    for piece in chain.from_iterable(runs):
        own = expected.setdefault(piece.step, {})
        part = max(own) if piece.microbatch == LAST_MICROBATCH else piece.microbatch
        own.setdefault(part, []).extend(range(first, first + piece.rows))
        known = costs.setdefault(piece.step, {})
        known[part] = max(known.get(part, 0.0), piece.cost)
        first += piece.rows
    parts, asked = StepParts(sequence_rows), StepParts(sequence_rows)
    found = rows_of(align_steps(feed(parts, runs), parts))
    assert found == [[own[part] for part in sorted(own)] for own in expected.values()]
    made = [
        StepPart(
            tuple(len(own[part]) // sequence_rows for part in sorted(own)),
            tuple(costs[step][part] for part in sorted(own)),
        )
        for step, own in expected.items()
    ]
    stops = [0, *accumulate(sum(part.rows) for part in made)]
    # also where it is asked for after each run
    for _ in feed(asked, runs):
        assert asked.rows_of(len(made)) <= stops[-1]
    for each in (parts, asked):
        assert [each.of_step(step) for step in range(len(made) + 1)] == [*made, None]
        assert [each.rows_of(steps) for steps in range(len(made) + 2)] == [*stops, stops[-1]]


class Layout:
    """Stands for the layout of a window of one shard."""

    assignment = SimpleNamespace(place_stride=10)

    def __init__(self, pieces: Sequence[Piece] | None) -> None:
        self._pieces = pieces

    def pieces_from(self, row: int, shard: int) -> Pieces | None:
        return None if self._pieces is None else to_columns(self._pieces)


def window_pieces(pieces: Sequence[Piece] | None, first: int = 0) -> WindowPieces:
    return WindowPieces(cast(Any, Layout(pieces)), 0, 0, first)


def test_a_piece_is_divided_where_a_portion_ends() -> None:
    own = [Piece(0, 0, 5, True, 9.0), Piece(1, 0, 1, True, 1.0), Piece(1, 1, 2, False, 1.0)]
    pieces = window_pieces(own)
    assert to_pieces(pieces.take(2)) == [Piece(0, 0, 2, False, 9.0)]
    assert to_pieces(pieces.take(4)) == [Piece(0, 0, 3, True, 9.0), Piece(1, 0, 1, True, 1.0)]
    assert to_pieces(pieces.take(2)) == own[2:]
    assert to_pieces(window_pieces(own, 4).take(3)) == [
        Piece(0, 0, 1, True, 9.0),
        own[1],
        own[2]._replace(rows=1),
    ]


def test_rows_that_are_repeated_join_the_step_at_their_place() -> None:
    run = Run(0, 3, place=24, rows=6)
    assert to_pieces(window_pieces(RUNS[0]).repeated(run)) == [Piece(2, LAST_MICROBATCH, 6, False, 0.0)]


def test_without_costs_there_are_no_pieces() -> None:
    pieces = window_pieces(None)
    assert pieces.take(3) is None
    assert pieces.repeated(Run(0, 3, place=24, rows=6)) is None

"""Steps of uneven parts, put together from the pieces that runs bring."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.pipeline.delivery.batch_formats import cut_batches
from windrow.pipeline.delivery.delivery import StepPart
from windrow.pipeline.shard.step_parts import LAST_MICROBATCH, StepParts, StepSpan, align_steps, take_pieces
from windrow.shuffle.order.step_runs import Piece

# two microbatches of step 0, of which the second goes on in another run; step 1 has one that is filled up with padding
RUNS = [
    [Piece(0, 0, 2, False, 5.0), Piece(0, 1, 1, False, 7.0)],
    [Piece(0, 1, 2, True, 7.0), Piece(1, 0, 1, False, 3.0)],
    [Piece(1, LAST_MICROBATCH, 2, False, 0.0)],
]


def test_steps_are_known_as_far_as_runs_have_come() -> None:
    parts = StepParts()
    assert parts.of_step(0) is None
    parts.add(RUNS[0])
    assert parts.of_step(0) == StepPart((2, 1), (5.0, 7.0))
    parts.add(RUNS[1])
    assert [parts.of_step(step) for step in range(3)] == [
        StepPart((2, 3), (5.0, 7.0)),
        StepPart((1,), (3.0,)),
        None,
    ]
    parts.add(RUNS[2])
    assert parts.of_step(1) == StepPart((3,), (3.0,))
    assert [parts.rows_of(steps) for steps in range(4)] == [0, 5, 8, 8]


def test_columns_are_the_same_as_pieces() -> None:
    parts, columns = StepParts(), StepParts()
    for pieces in RUNS[:2]:
        parts.add(pieces)
        steps, microbatches, rows, ends, costs = zip(*pieces, strict=True)
        columns.add(
            (np.array(steps), np.array(microbatches), np.array(rows), np.array(ends), np.array(costs))
        )
    assert [columns.of_step(step) for step in range(2)] == [parts.of_step(step) for step in range(2)]
    assert not columns.pieces


def feed(parts: StepParts, runs: Iterable[Sequence[Piece]]) -> Iterator[pa.RecordBatch]:
    """Runs of these pieces, whose rows are numbered; ``parts`` gets the pieces of each before it comes."""
    first = 0
    for pieces in runs:
        rows = sum(piece.rows for piece in pieces)
        parts.add(pieces)
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
    runs = list(feed(parts, pieces))
    spans = list(align_steps(runs, parts))
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


@given(drawn_runs())
def test_steps_have_the_rows_of_their_pieces(runs: list[list[Piece]]) -> None:
    expected = dict[int, dict[int, list[int]]]()
    first = 0
    for piece in chain.from_iterable(runs):
        own = expected.setdefault(piece.step, {})
        part = max(own) if piece.microbatch == LAST_MICROBATCH else piece.microbatch
        own.setdefault(part, []).extend(range(first, first + piece.rows))
        first += piece.rows
    parts = StepParts()
    found = rows_of(align_steps(feed(parts, runs), parts))
    assert found == [[own[part] for part in sorted(own)] for own in expected.values()]


def test_a_piece_is_divided_where_a_portion_ends() -> None:
    pieces = deque([Piece(0, 0, 5, True, 9.0), Piece(1, 0, 1, True, 1.0)])
    assert take_pieces(pieces, 2) == [Piece(0, 0, 2, False, 9.0)]
    assert take_pieces(pieces, 4) == [Piece(0, 0, 3, True, 9.0), Piece(1, 0, 1, True, 1.0)]
    assert not pieces

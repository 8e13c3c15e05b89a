"""Steps of uneven parts, put together from the pieces that runs bring."""

from __future__ import annotations

from collections import deque

import numpy as np
import pyarrow as pa

from windrow.pipeline.delivery.delivery import StepPart
from windrow.pipeline.shard.step_parts import LAST_MICROBATCH, StepParts, align_steps, take_pieces
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


def test_runs_are_regrouped_into_steps() -> None:
    parts = StepParts()

    def runs() -> list[pa.RecordBatch]:
        found, first = [], 0
        for pieces in RUNS:
            rows = sum(piece.rows for piece in pieces)
            parts.add(pieces)
            found.append(pa.record_batch({"x": range(first, first + rows)}))
            first += rows
        return found

    steps = [[part["x"].to_pylist() for part in step] for step in align_steps(runs(), parts)]
    assert steps == [[[0, 1], [2, 3, 4]], [[5, 6, 7]]]


def test_a_piece_is_divided_where_a_portion_ends() -> None:
    pieces = deque([Piece(0, 0, 5, True, 9.0), Piece(1, 0, 1, True, 1.0)])
    assert take_pieces(pieces, 2) == [Piece(0, 0, 2, False, 9.0)]
    assert take_pieces(pieces, 4) == [Piece(0, 0, 3, True, 9.0), Piece(1, 0, 1, True, 1.0)]
    assert not pieces

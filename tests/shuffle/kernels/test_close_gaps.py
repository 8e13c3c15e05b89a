"""Gaps between places are closed run by run, whatever finds the ranks."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.buffer_pool import BufferPool
from windrow.shuffle.kernels.close_gaps import close_gaps
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput


def _make_output(runs: list[int], places: list[int], count: int) -> MapOutput:
    table = pa.table({"x": np.array(places, np.int64)})
    starts = np.array([0, count], np.int64)
    numbers = np.array(runs, np.uint16)
    (found,) = group_rows(table, None, numbers, np.array(places, np.uint32), starts, BufferPool(0))
    return found


@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 400)), unique=True, max_size=40),
    st.sampled_from([1, 3]),
    st.booleans(),
)
def test_places_are_ranks(rows: list[tuple[int, int]], sequence_rows: int, is_spread: bool) -> None:
    scale = 10_000 if is_spread else 1
    placed = [
        (run, place * scale * sequence_rows + token) for run, place in rows for token in range(sequence_rows)
    ]
    outputs = [
        _make_output([run for run, _ in part], [place for _, place in part], 3)
        for part in (placed[::2], placed[1::2])
    ]
    closed = close_gaps(outputs, [0, 2], sequence_rows)
    for run in (0, 2):
        found: dict[int, int] = {}
        for before, after in zip(outputs, closed, strict=True):
            own = slice(*before.run_starts[run : run + 2].tolist())
            found.update(zip(before.places[own].tolist(), after.places[own].tolist(), strict=True))
        expected = sorted(place for other, place in placed if other == run)
        assert found == {place: rank for rank, place in enumerate(expected)}


def test_rows_move_within_their_runs() -> None:
    """Also where tokens that no reader wants are left out of sequences."""
    output = _make_output([0, 0, 0, 1, 1], [4, 5, 9, 0, 7], 2)
    (closed,) = close_gaps([output], [0, 1], 2, np.array([1, 0, 1, 0]))
    places = dict(zip(output.places.tolist(), closed.places.tolist(), strict=True))
    assert places == {4: 2, 5: 3, 9: 1, 0: 2, 7: 1}

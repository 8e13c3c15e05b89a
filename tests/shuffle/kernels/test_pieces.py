"""Pieces are grouped as their rows would be one by one, in C and in NumPy, and placed where these would be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.shuffle.examples import by_day
from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import WindrowError
from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.pieces import Pieces, end_lists, group_pieces, piece_rows
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows

POOL = BufferPool(1 << 20)
KINDS = (pa.int8(), pa.uint16(), pa.int32(), pa.int64(), pa.float16(), pa.float64(), pa.bool_())
SCHEMA = pa.schema([(f"c{number}", kind) for number, kind in enumerate(KINDS)])


def make_tokens(rows: int, seed: int, *, nulls: bool) -> pa.Table:
    rng = np.random.default_rng(seed)
    arrays = []
    for kind in KINDS:
        # small ranges, so that values are encoded in fewer bytes
        values = rng.integers(0, 2 if kind == pa.bool_() else 90, rows) + (kind == pa.int64()) * 10**12
        mask = rng.random(rows) < 0.2 if nulls else None
        dtype = bool if kind == pa.bool_() else kind.to_pandas_dtype()
        arrays.append(pa.array(values.astype(dtype), kind, mask=mask))
    return pa.table(arrays, schema=SCHEMA)


def state_of(output: MapOutput) -> list[Any]:
    columns = [
        output.values_of(at, width, slice(0, output.num_rows)).tolist()
        for at, width in enumerate(kind.bit_width // 8 or 1 for kind in KINDS)
    ]
    validity = {number: bits.tolist() for number, bits in output.validity.items()}
    return [
        output.run_starts.tolist(),
        output.places.tolist(),
        output.packing[:, 1:].tolist(),
        columns,
        validity,
    ]


@by_day(60)
@given(
    counts=st.lists(st.integers(0, 50), max_size=12),
    runs=st.integers(1, 4),
    seed=st.integers(0, 99),
    nulls=st.booleans(),
    compiled=st.sampled_from([False, True] if native.LIBRARY is not None else [False]),
)
def test_pieces_are_grouped_as_their_rows(
    counts: list[int], runs: int, seed: int, nulls: bool, compiled: bool
) -> None:
    rng = np.random.default_rng(seed)
    sizes = np.array(counts, np.int64)
    pieces = Pieces(np.cumsum(sizes) - sizes, sizes)
    table = make_tokens(int(sizes.sum()), seed, nulls=nulls)
    # the last run of all is that of dropped pieces
    ids = rng.integers(0, runs + 1, len(sizes)).astype(np.uint16)
    places = np.zeros(len(sizes), np.uint32)
    rows_of_run = [0] * (runs + 1)
    for piece in rng.permutation(len(sizes)).tolist():
        places[piece] = rows_of_run[ids[piece]]
        rows_of_run[ids[piece]] += counts[piece]
    cuts = np.array(sorted({0, *rng.integers(0, runs, 2).tolist(), runs}), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "LIBRARY", None)
        found = group_pieces(table, pieces, ids, places, cuts, POOL)
        by_row = group_rows(
            table.take(pa.array(pieces.rows)),
            None,
            np.repeat(ids, sizes),
            piece_rows(places, sizes).astype(np.uint32),
            cuts,
            POOL,
        )
        assert list(map(state_of, found)) == list(map(state_of, by_row))
        starts = cuts.tolist()
        for output, first, stop in zip(found, starts, starts[1:], strict=False):
            for run in range(first, stop):
                placed = place_rows(MapOutputs([output]), run - first, rows_of_run[run], POOL)
                own = [
                    piece
                    for piece in np.argsort(places, kind="stable").tolist()
                    if ids[piece] == run and counts[piece]
                ]
                rows = pieces.select(np.array(own, np.int64)).rows
                assert placed.to_pydict() == table.take(pa.array(rows)).to_pydict()


@by_day(30)
@given(
    counts=st.lists(st.integers(0, 20), max_size=9),
    kind=st.sampled_from([np.int8, np.float16, np.int64, np.bool_]),
)
def test_ended_lists(counts: list[int], kind: Any) -> None:
    sizes = np.array(counts, np.int64)
    values, end = np.arange(sizes.sum()).astype(kind), np.array([1], kind)
    lists = np.split(values, np.cumsum(sizes)[:-1]) if counts else []
    expected = [value for each in lists if len(each) for value in (*each.tolist(), end[0])]
    assert end_lists(values, sizes, end).tolist() == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LIBRARY", None)
        assert end_lists(values, sizes, end).tolist() == expected


@pytest.mark.parametrize("places", [[0, 1, 2], [0]])
def test_numbers_of_entries_must_agree(places: list[int]) -> None:
    pieces = Pieces(np.array([0, 2]), np.array([2, 2]))
    with pytest.raises(WindrowError, match="2 pieces"):
        group_pieces(
            make_tokens(4, 0, nulls=False),
            pieces,
            np.zeros(2, np.uint16),
            np.array(places, np.uint32),
            np.array([0, 1]),
            POOL,
        )


@pytest.mark.skipif(native.LIBRARY is None, reason="built without a C compiler")
@pytest.mark.parametrize(("firsts", "counts"), [([3], [2]), ([-1], [1]), ([0], [-1])])
def test_pieces_outside_of_the_values_are_rejected(firsts: list[int], counts: list[int]) -> None:
    out = np.empty(max(0, 4 * sum(counts)), np.uint8)
    with pytest.raises(ValueError, match="pieces"):
        native.copy_pieces(np.zeros(4, np.int32), 4, (4, 0), np.array(firsts), np.array(counts), out)


@pytest.mark.skipif(native.LIBRARY is None, reason="built without a C compiler")
@pytest.mark.parametrize("wrong", [None, 3, 40, 63])
def test_consecutive_places_are_checked_as_others(wrong: int | None) -> None:
    places = np.arange(64, dtype=np.uint32)
    if wrong is not None:
        places[wrong] = (wrong + 17) % 70
    address = np.array([places.ctypes.data], np.int64)
    assert native.check_places(address, np.array([64]), 64) == (wrong is None)
    again = np.concatenate([places, places])
    address = np.array([again.ctypes.data], np.int64)
    assert not native.check_places(address, np.array([128]), 128)
    assert not native.check_places(address, np.array([64]), 60)

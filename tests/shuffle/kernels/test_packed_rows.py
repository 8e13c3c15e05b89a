"""Columns packed into 64-bit words do not overlap, and unpack losslessly."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core.pools import GuardedPool
from tests.shuffle.examples import by_day
from tests.shuffle.kernels.test_bit_packing import SPANS, words
from tests.shuffle.kernels.test_native import needs_library, without_library
from windrow.core.frame_of_reference import Packing
from windrow.shuffle.kernels import packed_rows
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.packed_rows import join_columns, join_packings
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows

WIDTHS = st.sampled_from([1, 2, 4, 8])
KINDS = {1: pa.int8(), 2: pa.int16(), 4: pa.int32(), 8: pa.int64()}


@by_day(30)
@given(st.lists(st.tuples(st.sampled_from([0, 1, 2, 4, 8]), st.integers(-9, 9)), min_size=2, max_size=40))
def test_columns_do_not_share_bits_of_a_word(packing: list[tuple[int, int]]) -> None:
    laid = join_columns(tuple(packing), 8, 1_000)
    assert laid is not None
    assert sorted(laid.members[:, 0].tolist()) == list(range(len(packing)))
    taken = np.zeros((laid.words, 64), int)
    for word in range(laid.words):
        for number, shift, size, base in laid.members[laid.starts[word] : laid.starts[word + 1]].tolist():
            assert (size, base) == packing[number]
            assert shift + 8 * size <= 64
            taken[word, shift : shift + 8 * size] += 1
    assert taken.max() <= 1
    # no more words than the bytes need
    assert laid.words == max(1, -(-sum(size for size, _ in packing) // 8))


@by_day(30)
@given(WIDTHS, st.data())
def test_common_packing_covers_the_range_of_every_part(width: int, data: st.DataObject) -> None:
    half = 2 ** (8 * width - 1)
    lows = st.one_of(st.integers(-half, half - 1), st.integers(max(-half, -300), min(half - 1, 300)))
    bounds = data.draw(st.lists(st.tuples(lows, st.sampled_from(SPANS)), min_size=1, max_size=4))
    parts = [Packing.of(width, low, min(low + span, half - 1)) for low, span in bounds]
    taken, bases = np.array([parts], np.int64).transpose(2, 0, 1)
    ((size, base),) = join_packings(taken, bases, width)
    if size == width:
        assert base == 0
    else:
        for part in parts:
            assert part.bytes < width
            assert part.base - base >= 0
            assert part.base - base + 2 ** (8 * part.bytes) <= 2 ** (8 * size)
    # a single part keeps its packing
    assert len(parts) > 1 or (size, base) == parts[0]


def test_parts_at_both_ends_of_the_integer_range_are_not_packed() -> None:
    bases = np.array([[-(2**63), 2**63 - 200]], np.int64)
    assert join_packings(np.array([[4, 1]], np.int64), bases, 8) == [(8, 0)]


@pytest.mark.parametrize(
    ("columns", "rows", "lanes"),
    [(2, 1_000, 2), (3, 1_000, 4), (9, 1_000, 4), (9, 2**17 + 1, 2), (9, 2**18 + 1, 1), (9, 2**19 + 1, None)],
)
def test_number_of_lanes_is_limited_by_the_cpu_cache(columns: int, rows: int, lanes: int | None) -> None:
    laid = join_columns(((8, 0),) * columns, 8, rows)
    assert (None if laid is None else laid.lanes(rows)) == lanes


def test_single_and_wide_columns_are_not_joined() -> None:
    assert join_columns(((1, 0),), 8, 1_000) is None
    assert join_columns(((16, 0),) * 3, 16, 1_000) is None


@needs_library
@by_day(30)
@given(data=st.data())
def test_packed_rows_and_single_columns_give_the_same_result(data: st.DataObject) -> None:
    """The blocks have different packings, several slices, and dropped rows."""
    width = data.draw(WIDTHS)
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = data.draw(st.sampled_from([1, 15, 16, 17, 511, 512, 513, 1_300]))
    shapes = st.lists(st.tuples(st.sampled_from([-300, 0, 7, 2**62]), st.sampled_from(SPANS)), min_size=2)
    shape = data.draw(shapes.filter(lambda drawn: len(drawn) <= 12))
    apart = data.draw(st.sampled_from([0, 1, 200, 2**31, 2**33]))
    tables = [
        pa.table(
            {
                f"c{i}": words(KINDS[width], low + at * apart, span, rows, rng)
                for i, (low, span) in enumerate(shape)
            }
        )
        for at in range(data.draw(st.integers(1, 3)))
    ]
    # three runs in two slices; rows of a fourth run are left out
    runs = rng.integers(0, data.draw(st.sampled_from([3, 4])), rows * len(tables)).astype(np.uint16)
    places = np.zeros(len(runs), np.uint32)
    for run in range(3):
        here = np.flatnonzero(runs == run)
        places[here] = rng.permutation(len(here))
    cache_bytes = data.draw(st.sampled_from([2**22, 16 * rows, 8 * rows, 1]))
    pool = GuardedPool()

    def move() -> list[pa.RecordBatch]:
        cuts = [slice(at * rows, (at + 1) * rows) for at in range(len(tables))]
        grouped = [
            group_rows(table, None, runs[cut], places[cut], np.array([0, 1, 3]), pool)
            for table, cut in zip(tables, cuts, strict=True)
        ]
        slices = [MapOutputs(map_outputs) for map_outputs in zip(*grouped, strict=True)]
        counts = np.bincount(runs, minlength=3)
        wanted = [(slices[0], 0, 0), (slices[1], 0, 1), (slices[1], 1, 2)]
        return [place_rows(of, run, int(counts[k]), pool) for of, run, k in wanted]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_rows, "_CACHE_BYTES", cache_bytes)
        moved = move()
    with without_library():
        plain = move()
    pool.assert_guarded()
    assert all(one.equals(other) for one, other in zip(moved, plain, strict=True))
    whole = pa.concat_tables(tables)
    for run, batch in enumerate(moved):
        here = np.flatnonzero(runs == run)
        assert pa.table(batch).equals(whole.take(here[np.argsort(places[here])]))

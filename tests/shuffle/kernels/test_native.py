"""The C kernels and NumPy return bit-identical results."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.core.pools import GuardedPool
from tests.shuffle.examples import by_day
from tests.shuffle.tables import KINDS, make_table, rows_of
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.errors import SourceError, WindrowError
from windrow.core.native_libraries import address_of
from windrow.core.text_types import offset_width
from windrow.shuffle.kernels import native, row_positions
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.nested_columns import NestedColumn, Targets, move_nested
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows
from windrow.shuffle.order.permutation import Permutation

needs_library = pytest.mark.skipif(native.LIBRARY is None, reason="built without a C compiler")
POOL = BufferPool(1 << 20)


@contextmanager
def without_library() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native, "LIBRARY", None)
        yield


def test_library_is_built_if_there_is_a_compiler() -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler here")
    assert native.LIBRARY is not None


@needs_library
@by_day(30)
@given(
    key=st.binary(min_size=32, max_size=32),
    size=st.one_of(
        st.integers(2**16 + 1, 2**20),
        st.sampled_from([2**20 + 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 7, 2**62]),
    ),
    data=st.data(),
)
def test_positions(key: bytes, size: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, size))
    stop = min(size, start + data.draw(st.integers(0, 2_000)))
    compiled = Permutation(key, size).positions(start, stop)
    with without_library():
        plain = Permutation(key, size).positions(start, stop)
    assert compiled.dtype == plain.dtype
    assert np.array_equal(compiled, plain)


def _describe(map_output: MapOutput) -> tuple[object, ...]:
    masks = {number: mask.tolist() for number, mask in map_output.validity.items()}
    return map_output.run_starts.tolist(), map_output.places.tolist(), rows_of(map_output).to_pylist(), masks


@needs_library
@by_day(30)
@given(data=st.data())
def test_grouping_and_placing(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rows = data.draw(st.integers(0, 60))
    kinds = data.draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=4))
    # several columns of one width are moved together
    kinds += [data.draw(st.sampled_from(["int32", "int64", "float64"]))] * data.draw(st.integers(0, 9))
    table = make_table(kinds, rows, rng, [bool(rng.integers(2)) for _ in kinds])
    run_count = data.draw(st.integers(1, 5))
    beyond = data.draw(st.integers(0, 2))
    word = data.draw(st.sampled_from([np.uint16, np.uint32]))
    runs = rng.integers(0, run_count + beyond, rows).astype(word)
    places = np.zeros(rows, np.uint32)
    for run in range(run_count):
        here = np.flatnonzero(runs == run)
        places[here] = rng.permutation(len(here))
    slice_starts = np.array(sorted({0, run_count // 2, run_count}))
    pool = GuardedPool()

    def both() -> tuple[list[MapOutput], list[object]]:
        map_outputs = group_rows(table, None, runs, places, slice_starts, pool)
        placed: list[object] = []
        for map_output, first in zip(map_outputs, slice_starts, strict=False):
            of_slice = MapOutputs([map_output])
            for run in range(len(map_output.run_starts) - 1):
                count = int((runs == first + run).sum())
                placed.append(place_rows(of_slice, run, count, pool).to_pylist())
        return map_outputs, placed

    compiled, compiled_rows = both()
    with without_library():
        plain, plain_rows = both()
    assert [_describe(map_output) for map_output in compiled] == [
        _describe(map_output) for map_output in plain
    ]
    assert compiled_rows == plain_rows
    pool.assert_guarded()


@needs_library
@by_day(30)
@given(seed=st.integers(0, 2**32))
def test_validity_of_runs_that_begin_within_a_byte(seed: int) -> None:
    rng, pool = np.random.default_rng(seed), GuardedPool()
    counts = rng.integers(0, 40, rng.integers(1, 4))
    firsts, ends = rng.integers(0, 20, len(counts)), np.cumsum([0, *counts])
    places = rng.permutation(ends[-1]).astype(np.uint32)
    expected, bits = np.ones(ends[-1], np.uint8), []
    for first, start, stop in zip(firsts, ends[:-1], ends[1:], strict=True):
        flags = (rng.random(first + stop - start) < rng.choice([0.0, 0.5, 0.9, 1.0])).astype(np.uint8)
        has_nulls = bool(rng.integers(2))
        # exactly as many bytes as the bits need
        bits.append(np.packbits(flags, bitorder="little") if has_nulls else None)
        if has_nulls:
            expected[places[start:stop]] = flags[first:]
    low, high = sorted(rng.integers(0, ends[-1] + 1, 2).tolist())
    out = pool.take(-(-(high - low) // 8))
    addresses = np.array(
        [0 if each is None or not each.size else address_of(each) for each in bits], np.int64
    )
    of_places = address_of(places) + 4 * ends[:-1]
    nulls = native.move_validity(addresses, firsts, of_places, counts, slice(low, high), out)
    pool.assert_guarded()
    found = np.unpackbits(out, count=high - low, bitorder="little")
    assert found.tolist() == expected[low:high].tolist()
    assert nulls == high - low - found.sum()


@needs_library
def test_place_out_of_range_is_not_accessed() -> None:
    places, seen = np.array([0, 1, 3], np.uint32), np.zeros(4, np.uint8)
    addresses, counts = np.array([address_of(places)]), np.array([3])
    named = native.LIBRARY.windrow_check_places(
        1, address_of(addresses), address_of(counts), 3, address_of(seen)
    )
    assert (named, seen[3]) == (-1, 0)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("places", [[0, 0, 1], [0, 1, 3], [0, 1, 2**32 - 1]])
def test_places_that_are_not_a_permutation_raise(compiled: bool, places: list[int]) -> None:
    if compiled and native.LIBRARY is None:
        pytest.skip("built without a C compiler")
    table = make_table(["int64"], 3, np.random.default_rng(1), [False])
    slices = np.array([0, 1])
    (map_output,) = group_rows(table, None, np.zeros(3, np.uint16), np.array(places, np.uint32), slices, POOL)
    with pytest.MonkeyPatch.context() as patch:
        if not compiled:
            patch.setattr(native, "LIBRARY", None)
        with pytest.raises(WindrowError, match="each once"):
            place_rows(MapOutputs([map_output]), 0, 3, POOL)


TEXTS = [
    None,
    "",
    "a",
    "1234567",
    "12345678",
    "fifteen letters",
    "sixteen letters!",
    "many more letters than that",
]


def move(
    arrays: list[Any], targets: list[NDArray[np.uint32]], rows: slice, pool: BufferPool
) -> pa.Array | None:
    """Move all rows of arrays of a column that is called "name"."""
    columns = [NestedColumn.of(array, "name") for array in arrays]
    to = [Targets(0, len(array), address_of(each)) for array, each in zip(arrays, targets, strict=True)]
    return move_nested(columns, arrays[0].type, to, rows, pool, "name")


@needs_library
@by_day(30)
@given(data=st.data())
def test_text(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([pa.string(), pa.large_string(), pa.binary(), pa.large_binary()]))
    counts = data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    choices = TEXTS if data.draw(st.booleans()) else TEXTS[1:]
    total = sum(counts)
    before, after = rng.integers(0, 3), rng.integers(0, 3)
    goes = rng.permutation(total).astype(np.uint32)
    texts = [choices[i] for i in rng.integers(0, len(choices), total + before + after)]
    whole = pa.array(texts, kind)
    ends = np.cumsum([0, *counts])
    arrays = [whole.slice(before + start, count) for start, count in zip(ends, counts, strict=False)]
    targets = [goes[start:stop] for start, stop in pairwise(ends)]
    first = int(rng.integers(0, total + 1))
    stop = int(rng.integers(first, total + 1))
    pool = GuardedPool()
    moved = move(arrays, targets, slice(first, stop), pool)
    pool.assert_guarded()
    assert moved is not None
    moved.validate(full=True)
    order = np.argsort(goes)
    given_texts = whole.slice(before, total).to_pylist()
    assert moved.to_pylist() == [given_texts[i] for i in order[first:stop]]
    assert moved.type == kind


@needs_library
def test_text_too_large_for_its_offset_type_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.core.text_types._MAX_BYTES", 5)
    array, goes = pa.array(["abc", "def"]), np.arange(2, dtype=np.uint32)
    assert move([array], [goes], slice(0, 2), POOL) is None
    assert move([array], [goes], slice(0, 1), POOL) == pa.array(["abc"])


def corrupt(kind: pa.DataType, offsets: list[int], offset: int = 0) -> pa.Array:
    """Make text of 8 bytes, with offsets that change after Arrow has seen them."""
    words = np.zeros(len(offsets), np.int32 if offset_width(kind) == 4 else np.int64)
    buffers = [None, pa.py_buffer(words), pa.py_buffer(b"01234567")]
    array = pa.Array.from_buffers(kind, len(offsets) - 1 - offset, buffers, null_count=0, offset=offset)
    words[:] = offsets
    return array


class Short:
    """An array of three texts with the offsets of two."""

    type, offset = pa.string(), 0

    def __len__(self) -> int:
        return 3

    def buffers(self) -> list[pa.Buffer | None]:
        return [None, pa.py_buffer(np.zeros(3, np.int32)), pa.py_buffer(b"")]


@needs_library
@pytest.mark.parametrize("kind", [pa.string(), pa.large_binary()], ids=str)
@pytest.mark.parametrize(
    "offsets",
    [[0, 5, 3, 8], [-1, 2, 3, 8], [0, 2, 3, 9], [0, 2**31 - 1, -(2**31), 8], [8, 4, 2, 0]],
    ids=str,
)
def test_offsets_that_decrease_or_exceed_the_text_raise(kind: pa.DataType, offsets: list[int]) -> None:
    sound = pa.array(["ab", "c"], pa.string()).cast(kind)
    for rows in (slice(0, 5), slice(0, 1)):
        pool = GuardedPool()
        arrays, targets = [sound, corrupt(kind, offsets)], np.arange(5, dtype=np.uint32)
        with pytest.raises(SourceError, match=r"the values of column 'name' are corrupt: offsets decrease"):
            move(arrays, [targets[:2], targets[2:]], rows, pool)
        pool.assert_guarded()
    # offsets before the first row of the slice are not checked
    given = corrupt(kind, [99, 0, 5, 8], offset=1)
    moved = move([given], [np.array([1, 0], np.uint32)], slice(0, 2), POOL)
    assert moved is not None
    assert moved.cast(pa.large_binary()).to_pylist() == [b"567", b"01234"]


@needs_library
def test_text_buffers_that_are_too_short_raise() -> None:
    array: Any = Short()
    with pytest.raises(SourceError, match="12 bytes of offsets are too few"):
        move([array], [np.arange(3, dtype=np.uint32)], slice(0, 3), POOL)


@needs_library
@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64])
@by_day(30)
@given(data=st.data())
def test_range_is_minimum_and_maximum(kind: type[np.signedinteger[Any]], data: st.DataObject) -> None:
    info = np.iinfo(kind)
    words = np.array(data.draw(st.lists(st.integers(int(info.min), int(info.max)), min_size=1)), kind)
    # extremes follow the last value, so reading past the end would change the result
    guarded = np.concatenate([words, np.array([info.min, info.max] * 8, kind)])[: len(words)]
    assert native.find_range(guarded) == (words.min(), words.max())


NUMBERS, TARGETS, BYTES = np.arange(4), np.arange(4, dtype=np.uint32), np.zeros(64, np.uint8)
COLUMN: list[NDArray[Any]] = [np.zeros((4, 8), np.uint8)]
ONE = np.zeros(1, np.int64)


def words(*shape: int) -> NDArray[np.int64]:
    return np.zeros(shape, np.int64)


def grouped(targets: Any, scratch_bytes: int, rows: int) -> object:
    outs, scratch = words(1, 1), BYTES[:scratch_bytes]
    return native.group_columns(COLUMN, 8, [(8, 0)], targets, scratch, np.array([rows]), outs, None)


def copied(rows: int, map_outputs: int) -> None:
    columns = ColumnMemory(BYTES, np.zeros(1, np.int64))
    native.copy_out(columns, np.array([8]), np.array([rows]), words(1, map_outputs))


def assigned(shards: int, run_rows: int) -> object:
    return row_positions.assign(NUMBERS, 0, 4, (4, 2, run_rows), words(shards, 3), TARGETS, 0)


def placed(facts: int, scratch_bytes: int, columns: int = 0, mask_bytes: int = 1) -> None:
    group = native.PlacedColumns(words(1, 1, facts), BYTES[:scratch_bytes], COLUMN, None)
    bits, masks = (words(columns, 1), [BYTES[:mask_bytes]]) if columns else (None, [])
    native.place(ONE, ONE, ONE, 4, [group], bits, masks, checks=False)


def grouped_runs(runs: Any, first: int) -> object:
    return native.group(runs, first, 1)


@needs_library
@pytest.mark.parametrize(
    ("call", "arguments"),
    [
        (native.find_range, [words(0)]),
        (native.find_range, [words(2, 2)]),
        (native.find_range, [np.zeros(3, "V3")]),
        (copied, [9, 1]),
        (copied, [-1, 1]),
        (copied, [1, 2]),
        (grouped, [TARGETS, 31, 4]),
        (grouped, [TARGETS, 64, 5]),
        (grouped, [TARGETS[:3], 64, 3]),
        (grouped, [TARGETS.view(np.int32), 64, 4]),
        (grouped_runs, [NUMBERS, 0]),
        (grouped_runs, [TARGETS, 2]),
        (assigned, [1, 1]),
        (assigned, [2, 0]),
        (native.check_places, [words(2), ONE, 4]),
        (placed, [2, 64]),
        (placed, [3, 9]),
        (placed, [3, 64, 2]),
        (placed, [3, 64, 1, 2]),
        (row_positions.walk, [20, [1] * 5, [1] * 5, 1000, 0, 1]),
        (row_positions.walk, [9, [1] * 6, [1] * 6, 1000, 0, 1]),
        (row_positions.rank, [bytes(15), 4]),
        (row_positions.rank, [bytes(16), 2**16 + 1]),
    ],
)
def test_arguments_that_do_not_match_raise(call: Callable[..., object], arguments: list[Any]) -> None:
    with pytest.raises(ValueError, match="arguments of a kernel do not fit together"):
        call(*arguments)

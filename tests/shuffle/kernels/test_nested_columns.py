"""Text, lists and structs that the C kernels move are the rows that were given, in their new order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.core.pools import FilledPool, GuardedPool
from tests.shuffle.examples import by_day
from tests.shuffle.kernels.test_native import needs_library, without_library
from tests.shuffle.tables import contents_of
from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import SourceError
from windrow.core.native_libraries import address_of
from windrow.core.text_types import offset_width
from windrow.shuffle.kernels.arrow_columns import move_column
from windrow.shuffle.kernels.fixed_width import fixed_width_bytes
from windrow.shuffle.kernels.group_rows import group_rows
from windrow.shuffle.kernels.nested_columns import NestedColumn, Targets, can_move_nested, move_nested
from windrow.shuffle.kernels.place_rows import MapOutputs, place_rows

LEAVES = (
    *(pa.int8(), pa.uint16(), pa.int32(), pa.uint64(), pa.bool_(), pa.binary(3)),
    *(pa.decimal128(20, 2), pa.decimal256(50, 3), pa.string(), pa.binary(), pa.large_string()),
    *(pa.large_binary(), pa.fixed_shape_tensor(pa.int16(), [2])),
)


def draw_type(rng: np.random.Generator, depth: int) -> pa.DataType:
    """A type that the kernels can move; a leaf at depth 0."""
    how = rng.integers(5) if depth else 4
    if how == 0:
        names = "abc"[: rng.integers(1, 4)]
        return pa.struct([pa.field(name, draw_type(rng, depth - 1)) for name in names])
    if how == 4:
        return LEAVES[rng.integers(len(LEAVES))]
    inner = draw_type(rng, depth - 1)
    return (pa.list_(inner), pa.large_list(inner), pa.list_(inner, int(rng.integers(0, 4))))[how - 1]


def draw_array(kind: pa.DataType, items: int, rng: np.random.Generator) -> pa.Array:
    """An array whose buffers hold more than its items at every level, and also below nulls."""
    if isinstance(kind, pa.BaseExtensionType):
        return kind.wrap_array(draw_array(kind.storage_type, items, rng))
    before, after = (int(number) for number in rng.integers(0, 4, 2))
    count = before + items + after
    valid = None
    if rng.integers(2):
        bits = rng.random(count) < rng.choice([0.0, 0.5, 0.9])
        valid = pa.py_buffer(np.packbits(bits, bitorder="little"))
    return make_array(kind, count, valid, rng).slice(before, items)


def make_array(kind: pa.DataType, count: int, valid: pa.Buffer | None, rng: np.random.Generator) -> pa.Array:
    if pa.types.is_struct(kind):
        fields = [draw_array(field.type, count, rng) for field in kind]
        return pa.Array.from_buffers(kind, count, [valid], children=fields)
    if pa.types.is_fixed_size_list(kind):
        children = [draw_array(kind.value_type, count * kind.list_size, rng)]
        return pa.Array.from_buffers(kind, count, [valid], children=children)
    width = fixed_width_bytes(kind)
    if width:
        # the values of a byte are decimals of any precision
        size = -(-count // 8) if pa.types.is_boolean(kind) else width * count
        values = rng.integers(0, 256, size, np.uint8)
        if pa.types.is_decimal(kind):
            values.reshape(count, width)[:, 1:] = 0
        return pa.Array.from_buffers(kind, count, [valid, pa.py_buffer(values)])
    is_large = pa.types.is_large_list(kind) or offset_width(kind) == 8
    lengths = rng.integers(0, 20 if offset_width(kind) else 3, count) * (rng.random(count) < 0.8)
    if rng.random() < 0.5:
        # codes and hashes are moved in another way
        lengths[:] = rng.choice([1, 2, 3, 4, 8, 16]) if offset_width(kind) else 3
    offsets = np.cumsum([rng.integers(0, 3), *lengths], dtype=np.int64 if is_large else np.int32)
    total = int(offsets[-1]) + int(rng.integers(0, 3))
    buffers = [valid, pa.py_buffer(offsets)]
    if offset_width(kind):
        return pa.Array.from_buffers(
            kind, count, [*buffers, pa.py_buffer(rng.integers(97, 123, total, np.uint8))]
        )
    return pa.Array.from_buffers(kind, count, buffers, children=[draw_array(kind.value_type, total, rng)])


def cut(targets: NDArray[np.uint32], firsts: Sequence[int], counts: Sequence[int]) -> list[Targets]:
    ends = np.cumsum([0, *counts]).tolist()
    return [
        Targets(first, count, address_of(targets) + 4 * end)
        for first, count, end in zip(firsts, counts, ends, strict=False)
    ]


@needs_library
@by_day(30)
@given(seed=st.integers(0, 2**32), depth=st.integers(0, 4))
def test_rows_move_to_their_targets(seed: int, depth: int) -> None:
    rng = np.random.default_rng(seed)
    kind = draw_type(rng, depth)
    parts = [draw_array(kind, int(rng.integers(0, 30)), rng) for _ in range(rng.integers(1, 4))]
    firsts = [int(rng.integers(0, len(part) + 1)) * int(rng.integers(2)) for part in parts]
    counts = [len(part) - first for part, first in zip(parts, firsts, strict=True)]
    targets = rng.permutation(sum(counts)).astype(np.uint32)
    # as in a run: of every part the rows from some row on
    whole = pa.concat_arrays([part.slice(first) for part, first in zip(parts, firsts, strict=True)])
    low, high = sorted(rng.integers(0, len(targets) + 1, 2).tolist())
    columns, pool = [NestedColumn.of(part, "name") for part in parts], GuardedPool()
    moved = move_nested(columns, kind, cut(targets, firsts, counts), slice(low, high), pool, "name")
    pool.assert_guarded()
    assert moved is not None
    moved.validate(full=True)
    # not by Arrow's take: version 26 takes other values of lists of fixed size in such lists that are sliced
    rows = whole.to_pylist()
    assert moved.to_pylist() == [rows[at] for at in np.argsort(targets)[low:high]]


@needs_library
@by_day(30)
@given(seed=st.integers(0, 2**32))
def test_no_moved_byte_depends_on_earlier_contents_of_memory(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kind = draw_type(rng, 3)
    array, targets = draw_array(kind, 30, rng), rng.permutation(30).astype(np.uint32)
    first, second = (
        move_nested(
            [NestedColumn.of(array, "name")],
            kind,
            cut(targets, [0], [30]),
            slice(3, 29),
            FilledPool(byte),
            "name",
        )
        for byte in (0, 0xFF)
    )
    assert first is not None
    assert second is not None
    assert contents_of(first) == contents_of(second)


@needs_library
@pytest.mark.parametrize("kind", [pa.list_(pa.int32()), pa.struct({"a": pa.bool_()})], ids=str)
def test_values_below_nulls_are_not_kept(kind: pa.DataType) -> None:
    leaf = kind.field(0).type
    valid = pa.py_buffer(b"\5")
    values = [
        pa.py_buffer(content)
        for content in (bytes(range(16)), bytes([0, 1, 2, 3] + [99] * 4) + bytes(range(8, 16)))
    ]
    if pa.types.is_boolean(leaf):
        values = [pa.py_buffer(bytes([content])) for content in (0b101, 0b111)]
    moved = []
    for content in values:
        inner = pa.Array.from_buffers(leaf, 3, [valid, content])
        column = pa.StructArray.from_arrays([inner], "a") if pa.types.is_struct(kind) else None
        column = pa.ListArray.from_arrays([0, 1, 2, 3], inner) if column is None else column
        to = [Targets(0, 3, address_of(np.arange(3, dtype=np.uint32)))]
        moved.append(
            move_nested([NestedColumn.of(column, "name")], column.type, to, slice(0, 3), BufferPool(0), "n")
        )
    assert moved[0] is not None
    assert moved[1] is not None
    assert contents_of(moved[0]) == contents_of(moved[1])


@by_day(30)
@given(seed=st.integers(0, 2**32))
def test_grouped_and_placed_rows_are_the_same_without_the_library(seed: int) -> None:
    rng = np.random.default_rng(seed)
    kinds = [draw_type(rng, int(rng.integers(1, 4))) for _ in range(2)]
    counts = rng.integers(1, 30, 3).tolist()
    tables = [
        pa.table([draw_array(kind, count, rng) for kind in kinds], names=["0", "1"]) for count in counts
    ]
    positions = rng.permutation(sum(counts))
    ends = np.cumsum([0, *counts]).tolist()
    rows = [row for table in tables for row in table.to_pylist()]
    expected = [rows[at] for at in np.argsort(positions)]

    def place() -> list[dict[str, Any]]:
        outputs = []
        for table, start in zip(tables, ends, strict=False):
            places = positions[start : start + len(table)].astype(np.uint32)
            order, runs = np.array([0, 1]), np.zeros(len(table), np.uint16)
            outputs += group_rows(table, None, runs, places, order, BufferPool(0))
        placed = place_rows(MapOutputs(outputs), 0, len(rows), BufferPool(0))
        placed.validate(full=True)
        return list(placed.to_pylist())

    assert place() == expected
    with without_library():
        assert place() == expected


# --- what cannot be moved


def move_all(array: Any, rows: int | None = None) -> pa.Array | None:
    count = len(array) if rows is None else rows
    targets, pool = np.arange(count, dtype=np.uint32), GuardedPool()
    try:
        to = cut(targets, [0], [count])
        return move_nested([NestedColumn.of(array, "name")], array.type, to, slice(0, count), pool, "name")
    finally:
        pool.assert_guarded()


LEVELS = {
    "text in a list": pa.list_(pa.string()),
    "lists in a list": pa.list_(pa.list_(pa.int8())),
    "lists in a list of fixed size": pa.list_(pa.large_list(pa.int64()), 2),
    "lists in a struct in a list": pa.large_list(pa.struct({"a": pa.list_(pa.bool_())})),
}


def with_offsets(kind: pa.DataType, kept: list[NDArray[Any]]) -> pa.Array:
    """Four rows of two items each, whose offsets are kept at every level."""
    return _with_offsets(kind, 4, kept)


def _with_offsets(kind: pa.DataType, items: int, kept: list[NDArray[Any]]) -> pa.Array:
    if pa.types.is_struct(kind):
        return pa.StructArray.from_arrays([_with_offsets(kind.field(0).type, items, kept)], "a")
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(_with_offsets(kind.value_type, 2 * items, kept), 2)
    if fixed_width_bytes(kind):
        return pa.array([None] * items, kind)
    offsets = np.arange(items + 1, dtype=np.int64 if pa.types.is_large_list(kind) else np.int32) * 2
    kept.append(offsets)
    if offset_width(kind):
        return pa.Array.from_buffers(
            kind, items, [None, pa.py_buffer(offsets), pa.py_buffer(b"x" * 2 * items)]
        )
    child = _with_offsets(kind.value_type, 2 * items, kept)
    return pa.Array.from_buffers(kind, items, [None, pa.py_buffer(offsets)], children=[child])


@needs_library
@pytest.mark.parametrize("kind", LEVELS.values(), ids=LEVELS)
@pytest.mark.parametrize("at", [0, 2, -1])
@pytest.mark.parametrize("offset", [-1, -(2**31), 1, 2**31 - 1])
def test_wrong_offsets_at_any_level_raise(kind: pa.DataType, at: int, offset: int) -> None:
    kept: list[NDArray[Any]] = []
    with_offsets(kind, kept)
    for level in range(len(kept)):
        kept = []
        array = with_offsets(kind, kept)
        assert move_all(array) == array
        if (at, offset) == (0, 1):
            continue  # a first offset above 0 leaves out values, which is no error
        kept[level][at] = offset
        with pytest.raises(SourceError, match=r"the values of column 'name' are corrupt: offsets decrease"):
            move_all(array)


class Shorter:
    """An array with one of its buffers shortened after Arrow has seen it."""

    def __init__(self, array: pa.Array, buffer: int, size: int) -> None:
        self._array, self._buffer, self._size = array, buffer, size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._array, name)

    def __len__(self) -> int:
        return len(self._array)

    def buffers(self) -> list[pa.Buffer | None]:
        buffers = self._array.buffers()
        buffers[self._buffer] = buffers[self._buffer].slice(0, self._size)
        return list(buffers)


@needs_library
@pytest.mark.parametrize(
    ("array", "buffer", "size", "what"),
    [
        (pa.array([1, 2, 3]), 1, 23, "23 bytes are too few for 3 values"),
        (pa.array([True] * 9), 1, 1, "1 bytes are too few for 9 values"),
        (pa.array(["a", None] * 5), 0, 1, "1 bytes of validity are too few"),
        (pa.array([[1], [2]]), 1, 11, "11 bytes of offsets are too few"),
    ],
    ids=["values", "bits", "validity", "offsets"],
)
def test_buffers_that_are_too_short_raise(array: pa.Array, buffer: int, size: int, what: str) -> None:
    with pytest.raises(SourceError, match=what):
        move_all(Shorter(array, buffer, size))


@needs_library
def test_struct_with_too_few_values_raises() -> None:
    class Short:
        type, offset, null_count = pa.struct({"a": pa.int64()}), 0, 0

        def __len__(self) -> int:
            return 3

        def buffers(self) -> list[None]:
            return [None]

        def field(self, number: int) -> pa.Array:
            return pa.array([1, 2])

    with pytest.raises(SourceError, match="a field has fewer values than its structs"):
        move_all(Short())


@needs_library
@pytest.mark.parametrize("length", [1, 2, 3, 4, 8, 16])
def test_texts_of_one_length_start_anywhere(length: int) -> None:
    texts = [b"abc", *(bytes([row]) * length for row in range(5))]
    column = pa.array(texts, pa.binary()).slice(1)
    places = np.array([4, 2, 0, 1, 3], np.uint32)
    to = [Targets(0, 5, address_of(places))]
    moved = move_nested([NestedColumn.of(column, "x")], column.type, to, slice(0, 5), BufferPool(0), "x")
    assert moved is not None
    assert moved.take(pa.array(places)).equals(column)


@needs_library
def test_rows_beyond_the_column_have_no_targets() -> None:
    with pytest.raises(ValueError, match="rows 0 to 3 of 2 cannot have targets"):
        move_all(pa.array(["a", "b"]), 3)
    column = NestedColumn.of(pa.array([[1], [2]]), "name")
    for first, rows in ((1, 2), (-1, 1), (0, -1), (3, 0)):
        with pytest.raises(ValueError, match="cannot have targets"):
            move_nested(
                [column], pa.list_(pa.int64()), [Targets(first, rows, 0)], slice(0, 0), BufferPool(0), "n"
            )


@needs_library
@pytest.mark.parametrize(
    "array",
    [pa.array([[1, 2, 3], [4, 5, 6]]), pa.array([[["a"], ["bc", "def"]]]), pa.array([[{"a": "abcdef"}]])],
)
def test_too_many_values_for_4_bytes_are_left_to_arrow(
    monkeypatch: pytest.MonkeyPatch, array: pa.Array
) -> None:
    assert move_all(array) == array
    monkeypatch.setattr("windrow.core.text_types._MAX_BYTES", 5)
    assert move_all(array) is None


@needs_library
def test_only_types_that_are_ranges_at_every_level_are_moved() -> None:
    assert can_move_nested(pa.list_(pa.struct({"a": pa.large_list(pa.string()), "b": pa.bool_()}), 3))
    views = [pa.string_view(), pa.list_view(pa.int8())]
    others = [
        pa.null(),
        pa.map_(pa.string(), pa.int8()),
        pa.dictionary(pa.int8(), pa.string()),
        pa.struct([]),
    ]
    for kind in (*views, *others):
        assert not can_move_nested(kind)
        assert not can_move_nested(pa.list_(kind))
        assert not can_move_nested(pa.struct({"a": pa.int8(), "b": kind}))


def test_arrow_moves_views_beside_fixed_lists_of_fixed_lists_of_a_slice() -> None:
    """Arrow 26 alone ignores the offset of the slice in the inner lists, and takes the values of other rows."""
    kind = pa.struct({"text": pa.string_view(), "matrix": pa.list_(pa.list_(pa.int64(), 2), 2)})
    rows = [{"text": str(i), "matrix": [[i, i], [i, -i]]} for i in range(9)]
    column = pa.array(rows, kind).slice(4)
    moved = move_column(column, np.array([3, 0, 4], np.int64), "name", BufferPool(2**20))
    assert moved.to_pylist() == [rows[7], rows[4], rows[8]]

"""Parts of sequences: together they are the whole, at the positions that they state."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.pipeline.delivery.sequence_slice import SequenceLayout, SequenceSlice
from windrow.pipeline.delivery.to_numpy import column_to_numpy

LAYOUTS = st.sampled_from(["contiguous", "head_tail"])


def _lists(values: NDArray[Any], make: str) -> Any:
    if make == "tensors":
        return pa.FixedShapeTensorArray.from_numpy_ndarray(values)
    array = pa.array(values.ravel())
    outer = values.size
    for size in reversed(values.shape[1:]):
        outer //= size
        if make == "fixed":
            array = pa.FixedSizeListArray.from_arrays(array, size)
        elif make == "large lists":
            array = pa.LargeListArray.from_arrays(pa.array(np.arange(outer + 1) * size), array)
        else:
            array = pa.ListArray.from_arrays(pa.array(np.arange(outer + 1, dtype=np.int32) * size), array)
    return array


def _values(column: Any) -> NDArray[Any]:
    if isinstance(column.type, pa.FixedShapeTensorType):
        return np.asarray(column_to_numpy(column, writable=False))
    return np.array(column.to_pylist())


@given(
    data=st.data(),
    layout=LAYOUTS,
    count=st.integers(1, 4),
    make=st.sampled_from(["lists", "large lists", "fixed", "tensors"]),
    dtype=st.sampled_from([np.int32, np.float64, np.bool_]),
)
def test_parts_join_to_the_whole(
    data: st.DataObject, layout: SequenceLayout, count: int, make: str, dtype: type
) -> None:
    rows, chunk = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    length = chunk * count * (2 if layout == "head_tail" else 1)
    dim = data.draw(st.integers(1, 3))
    shape = [data.draw(st.integers(1, 3)) for _ in range(dim - 1)] + [length]
    shape += [data.draw(st.integers(1, 3)) for _ in range(data.draw(st.integers(0, 2)))]
    # Arrow has no tensors of booleans
    dtype = np.int32 if make == "tensors" else dtype
    whole: NDArray[Any] = np.arange(rows * np.prod(shape)).reshape(rows, *shape).astype(dtype)
    skipped = data.draw(st.integers(0, rows - 1))
    batch = pa.record_batch({"x": _lists(whole, make), "y": pa.array(range(rows))}).slice(skipped)
    whole = whole[skipped:]
    joined = np.zeros_like(whole)
    seen = []
    for index in range(count):
        cut = SequenceSlice(dim, index, count, layout).cut(batch)
        assert cut.column("y").equals(batch.column("y"))
        positions = np.array(cut.column("position_ids").to_pylist())
        assert (positions == positions[0]).all()
        part = _values(cut.column("x"))
        np.moveaxis(joined, dim, 0)[positions[0]] = np.moveaxis(part, dim, 0)
        seen += positions[0].tolist()
    assert sorted(seen) == list(range(length))
    assert (joined == whole).all()


def test_head_and_tail() -> None:
    batch = pa.record_batch({"x": [list(range(8))]})
    parts = [SequenceSlice(1, index, 2, "head_tail").cut(batch).column("x").to_pylist() for index in (0, 1)]
    assert parts == [[[0, 1, 6, 7]], [[2, 3, 4, 5]]]


def test_own_positions_are_kept() -> None:
    batch = pa.record_batch({"x": [[5, 6]], "position_ids": [[0, 0]]})
    cut = SequenceSlice(1, 1, 2).cut(batch)
    assert cut.to_pylist() == [{"x": [6], "position_ids": [0]}]


def test_only_named_columns_are_cut() -> None:
    batch = pa.record_batch({"x": [[1, 2]], "embedding": [[1.0, 2.0, 3.0]]})
    cut = SequenceSlice(1, 0, 2, columns=["x"]).cut(batch)
    assert cut.to_pylist() == [{"x": [1], "embedding": [1.0, 2.0, 3.0], "position_ids": [0]}]


def test_a_slice_of_lists_within_fixed_lists() -> None:
    # Arrow 26 itself takes the values of other rows
    whole: NDArray[Any] = np.arange(3 * 4 * 2 * 2).reshape(3, 4, 2, 2)
    batch = pa.record_batch({"x": _lists(whole, "fixed")}).slice(1)
    for layout in ("contiguous", "head_tail"):
        part = SequenceSlice(1, 0, 2, layout)
        found = np.array(part.cut(batch).column("x").to_pylist())
        assert found.tolist() == whole[1:, part.positions(4)].tolist()


def test_strings_within_lists() -> None:
    batch = pa.record_batch({"x": [["a", None, "c", "d"], ["e", "f", "g", "h"]]})
    cut = SequenceSlice(1, 1, 2).cut(batch)
    assert cut.column("x").to_pylist() == [["c", "d"], ["g", "h"]]
    assert cut.column("x").type == batch.column("x").type


@pytest.mark.parametrize(
    ("columns", "part", "message"),
    [
        ({"x": [[1, 2, 3]]}, SequenceSlice(1, 0, 2), "'x': sequences of 3 elements.*into 2 equal"),
        ({"x": [[1, 2]]}, SequenceSlice(1, 0, 2, "head_tail"), "of 2 elements.*into 4 equal.*'head_tail'"),
        ({"x": [[1, 2], [1, 2, 3, 4]]}, SequenceSlice(1, 0, 2), "'x' has lists of 2 to 4 elements"),
        ({"x": [[1, 2], None]}, SequenceSlice(1, 0, 2), "'x' has rows that are null"),
        ({"x": [1]}, SequenceSlice(1, 0, 2), "no column has a dimension 1.*'x' of type int64"),
        ({"x": [1]}, SequenceSlice(1, 0, 2, columns=["x"]), "'x' of type int64 has no dimension 1"),
        ({"x": [1]}, SequenceSlice(1, 0, 2, columns=["y"]), "no column 'y'"),
        ({"x": [[1]], "y": [[1, 2]]}, SequenceSlice(1, 0, 1), "'y' has sequences of 2.*'x' of 1"),
    ],
)
def test_rows_that_cannot_be_cut(columns: dict[str, Any], part: SequenceSlice, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        part.cut(pa.record_batch(columns))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 0, 1), "dim=0.*rows"),
        ((1, 2, 2), "index=2.*count - 1 = 1"),
        ((1, 0, 0), "count=0"),
        ((1, 0, 1, "tail"), "layout='tail' must be one of 'contiguous', 'head_tail'"),
        ((1, 0, 1, "contiguous", "x"), r"columns='x'.*\['x'\]"),
    ],
)
def test_invalid_arguments(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        SequenceSlice(*arguments)

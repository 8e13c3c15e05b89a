"""Addresses inside columns that others have made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.core.offsets import check_layout


def view_of(buffer: int, offset: int) -> pa.Array:
    """A text whose second value lies in some buffer, of which there is one, with 8 bytes."""
    views = np.zeros((2, 4), np.int32)
    views[1] = [8_000 if offset else 100, 0, buffer, offset]
    return pa.Array.from_buffers(pa.string_view(), 2, [None, pa.py_buffer(views), pa.py_buffer(b"abcdefgh")])


@pytest.mark.parametrize("column", [view_of(7, 0), view_of(0, 0), view_of(0, 9), view_of(-1, 0)])
@pytest.mark.parametrize("start", [0, 1])
def test_views_outside_of_their_buffers_raise(column: pa.Array, start: int) -> None:
    table = pa.table({"views": column.slice(start)})
    with pytest.raises(pa.ArrowInvalid, match="column 'views'"):
        check_layout(table)
    with pytest.raises(windrow.SourceError, match="views"):
        windrow.from_arrow(table)


def dictionary_of(indices: list[int | None]) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int8()), ["a", "b"], safe=False)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda array: array,
        # Arrow would concatenate these two, and read beyond the dictionary of the first
        lambda array: pa.chunked_array([array.slice(0, 4), dictionary_of([1] * (len(array) - 4))]),
        lambda array: pa.StructArray.from_arrays([array], ["inner"]),
        lambda array: pa.ListArray.from_arrays(range(len(array) + 1), array),
    ],
    ids=["plain", "chunked", "struct", "list"],
)
@pytest.mark.parametrize("index", [2, -1])
@pytest.mark.parametrize("shuffled_first", [False, True])
def test_wrong_dictionary_indices_of_a_transform_are_its_error(
    wrap: Callable[[pa.DictionaryArray], Any], index: int, shuffled_first: bool
) -> None:
    def add(table: pa.Table) -> pa.Table:
        return table.append_column("added", wrap(dictionary_of([0, None, index] + [1] * (len(table) - 3))))

    pipe = windrow.from_arrow(pa.table({"x": range(20)})).window(blocks_per_window=1)
    if shuffled_first:
        pipe = pipe.random_shuffle_each_window().map_batches(add, batch_format="pyarrow")
    else:
        pipe = pipe.map_batches(add, batch_format="pyarrow").random_shuffle_each_window()
    with pytest.raises(
        windrow.TransformError, match=r"add\).*index.*column 'added': .*from_arrays\(indices, dictionary\)"
    ):
        list(pipe.iter_batches(batch_size=5))


def test_dictionary_indices_that_exist_are_no_error() -> None:
    table = pa.table({"x": dictionary_of([0, None, 1])})
    (batch,) = (
        windrow.from_arrow(table)
        .window(blocks_per_window=1)
        .map_batches(lambda rows: rows, batch_format="pyarrow")
        .iter_batches(batch_size=3, batch_format="pyarrow")
    )
    assert batch.column("x").to_pylist() == ["a", None, "b"]

"""Rows whose lists are cut, against lists that Python cuts."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.errors import TransformError
from windrow.pipeline.tasks.list_limit import ListLimit

VALUES = st.lists(st.integers(0, 9), max_size=9)
ROWS = st.lists(st.tuples(VALUES, VALUES | st.none(), st.booleans()), max_size=20)
KINDS = st.sampled_from([pa.list_(pa.int8()), pa.large_list(pa.int8())])


def slice_apart(column: pa.ChunkedArray, borders: list[int]) -> pa.ChunkedArray:
    """The same column in slices of one array, behind rows that do not belong to it."""
    array = pa.concat_arrays([pa.array([[5] * 7], column.type), *column.chunks]).slice(1)
    stops = sorted({min(border, len(array)) for border in borders} | {len(array)})
    parts = [array.slice(first, stop - first) for first, stop in zip([0, *stops], stops, strict=False)]
    return pa.chunked_array(parts, column.type)


@given(
    rows=ROWS,
    items=st.integers(1, 9),
    kinds=st.tuples(KINDS, KINDS),
    borders=st.tuples(*[st.lists(st.integers(0, 20), max_size=3)] * 2),
)
def test_long_rows_and_the_other_lists_of_their_length_are_cut(
    rows: list[tuple[list[int], list[int] | None, bool]],
    items: int,
    kinds: tuple[Any, Any],
    borders: tuple[list[int], list[int]],
) -> None:
    tokens = [values for values, _, _ in rows]
    others = [values[::-1] if is_same else other for values, other, is_same in rows]
    table = pa.table(
        {
            "id": pa.array(range(len(rows)), pa.int64()),
            "tokens": slice_apart(pa.chunked_array([pa.array(tokens, kinds[0])]), borders[0]),
            "other": slice_apart(pa.chunked_array([pa.array(others, kinds[1])]), borders[1]),
            "fixed": pa.array(
                [values or [0] * 4 for values in [[1, 2, 3, 4]] * len(rows)], pa.list_(pa.int8(), 4)
            ),
            "text": pa.array(["x" * len(values) for values in tokens], pa.string()),
        }
    )
    found: Any = ListLimit("tokens", items).cut(table, "a")
    found.validate(full=True)
    assert found.schema == table.schema
    is_cut = [
        len(values) > items and other is not None and len(other) == len(values)
        for values, other in zip(tokens, others, strict=True)
    ]
    assert found.to_pydict() == {
        **table.to_pydict(),
        "tokens": [values[:items] for values in tokens],
        "other": [
            other[:items] if cut and other is not None else other
            for other, cut in zip(others, is_cut, strict=True)
        ],
    }


def test_rows_that_are_short_enough_are_not_copied() -> None:
    tokens = pa.chunked_array([[[1, 2]], [[1, 2, 3]]])
    table = pa.table({"tokens": tokens, "other": [[[1]], [[2]]]})
    found = ListLimit("tokens", 2).cut(table, "a").select([0, 1])
    assert found["other"] == table["other"]
    # the first chunk has no long row
    assert found["tokens"].chunk(0).values.buffers()[1].address == tokens.chunk(0).values.buffers()[1].address
    assert ListLimit("tokens", 3).cut(table, "a") is table


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (pa.array([3, 9]), "does not tell which lists"),
        (pa.array([1.5, 9.0]), "does not tell which lists"),
        (pa.array(["abc", "d"]), "within a character"),
        (pa.array([b"abc", b"d"], pa.large_binary()), "within a character"),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), "all its lists have one length"),
    ],
)
def test_columns_that_cannot_be_cut(values: pa.Array, reason: str) -> None:
    with pytest.raises(TransformError, match=f"^file 1: long_rows=.*column 'x'.*{reason}.*drop"):
        ListLimit("x", 1).cut(pa.table({"x": values}), "file 1")

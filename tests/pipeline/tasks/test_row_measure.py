"""What rows measure by a column: numbers, or the lengths of values."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from windrow.core.errors import TransformError
from windrow.pipeline.tasks.row_measure import measure_rows

LISTS = [[1, 2, 3], [], [4]]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (pa.array([3, 0, 2**40]), [3, 0, 2**40]),
        (pa.array([1.5, 0, 2], pa.float32()), [1.5, 0, 2]),
        (pa.array(LISTS, pa.list_(pa.int32())), [3, 0, 1]),
        (pa.array(LISTS, pa.large_list(pa.int32())), [3, 0, 1]),
        (pa.array(["äb", "", "c"]), [3, 0, 1]),
        (pa.array([b"abc", b"", b"c"], pa.large_binary()), [3, 0, 1]),
        (pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int32(), 2)), [2, 2, 2]),
    ],
)
def test_measures(values: pa.Array, expected: list[float]) -> None:
    table = pa.table({"x": values})
    assert measure_rows(table, "x", "a").tolist() == expected
    # also of parts, whose values begin in the middle of a buffer
    parts = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    assert measure_rows(parts, "x", "a").tolist() == expected
    assert measure_rows(table.slice(1), "x", "a").tolist() == expected[1:]
    # a skipped block has no columns
    assert measure_rows(pa.table({}), "x", "a").tolist() == []


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None], "block 3: column 'x' has nulls"),
        ([1.0, float("nan")], "block 3: column 'x' holds nan"),
        ([1, -2], "block 3: column 'x' holds -2"),
        ([{"a": 1}, {"a": 2}], "block 3: column 'x' is struct<a: int64>: Balance takes a column of numbers"),
    ],
)
def test_what_cannot_be_measured(values: list[Any], message: str) -> None:
    with pytest.raises(TransformError, match=message):
        measure_rows(pa.table({"x": pa.array(values)}), "x", "block 3")


def test_missing_column() -> None:
    with pytest.raises(TransformError, match="there is no column 'y' to balance by, but there are 'x'"):
        measure_rows(pa.table({"x": [1]}), "y", "block 3")

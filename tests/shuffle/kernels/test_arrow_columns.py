"""Columns that only Arrow moves: views of text and lists at every level, also of slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from windrow.core.buffer_pool import BufferPool
from windrow.shuffle.kernels.arrow_columns import move_column

LONG = "longer than twelve bytes"
TEXT_VIEWS = pa.list_view(pa.string_view())

CASES: list[tuple[Any, list[Any]]] = [
    (pa.string_view(), ["a", None, LONG, ""]),
    (TEXT_VIEWS, [["a", LONG], None, [], [LONG]]),
    (pa.large_list_view(pa.binary_view()), [[b"a"], None, [], [None, b"c" * 20]]),
    (pa.list_view(TEXT_VIEWS), [[["a"], None, []], None, [], [["b", LONG], [None]]]),
    (pa.list_(pa.string_view(), 2), [["a", LONG], None, ["b", None], [LONG, ""]]),
    (pa.struct([("v", TEXT_VIEWS)]), [{"v": ["a"]}, None, {"v": None}, {"v": [LONG, "c"]}]),
    (pa.map_(pa.string_view(), TEXT_VIEWS), [[("a", ["b", LONG])], None, [], [(LONG, None)]]),
    (
        pa.list_(pa.struct([("s", pa.string_view()), ("v", TEXT_VIEWS)])),
        [[{"s": "a", "v": ["q"]}, None], None, [], [{"s": LONG, "v": None}]],
    ),
]


@pytest.mark.parametrize(("kind", "values"), CASES, ids=lambda case: str(case)[:30])
@pytest.mark.parametrize("start", [0, 1])
def test_views_at_every_level_keep_their_type_and_values(kind: Any, values: list[Any], start: int) -> None:
    column = pa.array(values, kind).slice(start, 3)
    rows = np.array([2, 0, 1, 1], np.int64)
    moved = move_column(column, rows, "name", BufferPool(2**20))
    moved.validate(full=True)
    assert moved.type == kind
    assert moved.to_pylist() == [values[start + row] for row in rows]

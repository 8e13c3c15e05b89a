"""A part with its rows' numbers decodes its stored columns where they go, and leaves the numbers to be asked for."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.shuffle.test_packing import ToldPart
from windrow.io.numbered import _NumberedPart


@pytest.mark.parametrize("columns", [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2], [1, 0]])
def test_the_number_is_the_one_column_that_is_not_decoded(columns: list[int]) -> None:
    rows = 50
    table = pa.table({"a": np.arange(rows), "b": np.arange(rows) * 7})
    schema = table.schema.append(pa.field("number", pa.int64()))
    part = _NumberedPart(ToldPart(table, scatters=(0, 1)), schema, 5)
    targets = np.random.default_rng(2).permutation(rows).astype(np.uint32)
    outs = [np.zeros(8 * rows, np.uint8) for _ in columns]
    assert list(part.scatter(columns, targets, outs)) == [column != 2 for column in columns]
    for column, out in zip(columns, outs, strict=True):
        if column != 2:
            assert np.array_equal(out.view(np.int64)[targets], table.column(column).to_numpy())

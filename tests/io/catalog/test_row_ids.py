"""A part with row ids scatters its stored columns in place, and provides row ids through `select` only."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from tests.shuffle.kernels.test_bit_packing import ToldPart
from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.frame_of_reference import Packing
from windrow.io.catalog.row_ids import _RowIdPart


@pytest.mark.parametrize("columns", [[0, 1, 2], [2, 0, 1], [1, 2, 0], [2], [1, 0]])
def test_every_column_is_scattered_except_the_row_id(columns: list[int]) -> None:
    rows = 50
    table = pa.table({"a": np.arange(rows), "b": np.arange(rows) * 7})
    schema = table.schema.append(pa.field("number", pa.int64()))
    part = _RowIdPart(ToldPart(table, scatters=(0, 1)), schema, 5)
    targets = np.random.default_rng(2).permutation(rows).astype(np.uint32)
    packings = np.array([(Packing(1, 0), Packing(2, 0), Packing(8, 0))[column] for column in columns])
    sizes = packings[:, 0] * rows
    outs = ColumnMemory.take(BufferPool(0), sizes)
    found = part.scatter_values(columns, packings, targets, outs, BufferPool(0))
    assert found.done.tolist() == [column != 2 for column in columns]
    assert not found.valid
    for at, column in enumerate(columns):
        if column != 2:
            words = outs.column(at, sizes[at]).view(f"u{packings[at, 0]}")
            assert np.array_equal(words[targets], table.column(column).to_numpy())

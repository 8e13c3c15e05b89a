"""Columns that the C decoder decodes, moved by the shuffle, equal those that Arrow reads."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.io.chunks import needs_library
from tests.io.files import open_parquet
from tests.shuffle.tables import rows_of
from windrow.core.buffer_pool import BufferPool
from windrow.core.source import can_scatter
from windrow.shuffle.kernels.group_rows import group_rows


class Watched:
    """A part that notes the columns that are read by way of Arrow."""

    def __init__(self, part: Any) -> None:
        self.part = part
        self.read: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.part, name)

    def select(self, columns: list[int]) -> pa.Table:
        self.read |= {self.part.schema.field(column).name for column in columns}
        return self.part.select(columns)


def group_file(path: Path, table: pa.Table, rng: np.random.Generator) -> set[str]:
    """Group the rows of a file as decoded, and as Arrow reads them; returns the columns that C did not decode."""
    source = open_parquet(str(path))
    (address,) = source.addresses([0])
    # the file is open while the generator is suspended
    parts = source.reader.parts(address)
    part = next(parts)
    assert can_scatter(part)
    rows, watched = len(table), Watched(part)
    runs, places = rng.integers(0, 6, rows).astype(np.uint16), np.arange(rows, dtype=np.uint32)
    slices = np.array([0, 2, 2, 6])
    decoded = group_rows(watched, None, runs, places, slices, BufferPool(0))
    expected = group_rows(table, None, runs, places, slices, BufferPool(0))
    for one, other in zip(decoded, expected, strict=True):
        found = rows_of(one)
        found.validate(full=True)
        assert found.equals(rows_of(other))
    assert list(parts) == []
    return watched.read


DECODED: dict[str, tuple[pa.Array, dict[str, Any]]] = {
    "nulls": (pa.array([1, None, 3], pa.int64()), {}),
    "nulls without statistics": (pa.array([1, None, 3], pa.int64()), {"write_statistics": False}),
    "nulls, second version": (
        pa.array([1, None, 3], pa.int64()),
        {"write_statistics": False, "data_page_version": "2.0"},
    ),
    "zstd": (pa.array([1, 2, 3], pa.int64()), {"compression": "zstd"}),
    "lz4": (pa.array([1, 2, 3], pa.int64()), {"compression": "lz4"}),
    "delta": (
        pa.array([1, 2, 3], pa.int64()),
        {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"},
    ),
    "byte stream split": (
        pa.array([1.0, 2, 3], pa.float64()),
        {"use_dictionary": False, "column_encoding": "BYTE_STREAM_SPLIT"},
    ),
    "boolean": (pa.array([True, False, True]), {}),
    "decimal": (pa.array([Decimal("1.23"), Decimal("-4.50"), None], pa.decimal128(9, 2)), {}),
    "list": (pa.array([[1], [2, 3], []], pa.list_(pa.int64())), {}),
    "list of structs": (pa.array([[{"x": 1, "y": 2.0}], None, []]), {}),
    "struct": (pa.array([{"x": 1}, {"x": 2}, {"x": 3}]), {}),
    "text": (pa.array(["a", None, "b"]), {}),
    "text without statistics": (pa.array(["a", None, "b"]), {"write_statistics": False}),
    "text in zstd": (pa.array(["a", "b", "c"]), {"compression": "zstd"}),
}


@needs_library
@pytest.mark.parametrize("case", DECODED)
def test_supported_columns_are_decoded(tmp_path: Path, case: str) -> None:
    column, options = DECODED[case]
    table = pa.table({"x": column})
    pq.write_table(table, tmp_path / "x.parquet", **options)
    assert not group_file(tmp_path / "x.parquet", table, np.random.default_rng(0))

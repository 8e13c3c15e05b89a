"""Small data for the subcommands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Return a folder of 12 files sorted by label: 12,000 rows in 120 row groups, compressed with zstd."""
    folder = tmp_path / "data"
    folder.mkdir()
    schema = pa.schema(
        [pa.field("row", pa.int64(), metadata={"unit": "1"}), ("label", pa.int32()), ("text", pa.string())],
        metadata={"made by": "a test"},
    )
    for label in range(12):
        rows = np.arange(label * 1_000, (label + 1) * 1_000)
        columns = [rows, np.full(1_000, label, np.int32), [f"row {row}" for row in rows]]
        table = pa.table(columns, schema=schema)
        pq.write_table(table, folder / f"part-{label:02}.parquet", row_group_size=100, compression="zstd")
    return folder

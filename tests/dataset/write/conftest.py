from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.io.files import write


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Three files of 10, 20 and 30 rows, in row groups of 10."""
    first = 0
    for at, rows in enumerate((10, 20, 30)):
        table = pa.table({"x": np.arange(first, first + rows), "k": [f"k{row % 3}" for row in range(rows)]})
        write(tmp_path / "in" / f"{at}.parquet", table, row_group_size=10)
        first += rows
    return tmp_path / "in"

"""read_parquet: its arguments, and that it reads only footers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.io.parquet.block_reader import ParquetReader


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    for part in range(3):
        rows = list(range(part * 10, part * 10 + 10))
        pq.write_table(pa.table({"x": rows, "y": rows}), tmp_path / f"{part}.parquet", row_group_size=5)
    return tmp_path


def test_arguments(directory: Path) -> None:
    path = str(directory)
    assert windrow.read_parquet(path).num_blocks() == 6
    assert windrow.read_parquet(path, target_block_bytes="1MiB").num_blocks() == 1
    assert windrow.read_parquet(path, columns=["y"]).columns() == ["y"]
    assert windrow.read_parquet(path, filter=pc.field("x") >= 25).count() == 5
    assert windrow.read_parquet([f"{path}/1.parquet", f"{path}/0.parquet"]).take(1) == [{"x": 10, "y": 10}]


def test_planning_reads_only_footers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, address: Any) -> Any:
        raise AssertionError("data is read")

    monkeypatch.setattr(ParquetReader, "read", refuse)
    pipe = windrow.read_parquet(str(directory)).window().repeat(2).random_shuffle_each_window(seed=1)
    assert pipe.count() == 30
    assert pipe.schema().names == ["x", "y"]
    assert pipe.explain().rows == 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"target_block_bytes": "64"}, "target_block_bytes='64' has no unit"),
        ({"target_block_bytes": 0}, "target_block_bytes=0 must be at least 1 byte"),
        ({"partitioning": "dates"}, "partitioning='dates'"),
        ({"columns": ["z"]}, "no column 'z'"),
        ({"columns": []}, "selects nothing"),
    ],
)
def test_bad_arguments(directory: Path, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(windrow.PlanError, match=message):
        windrow.read_parquet(str(directory), **arguments)


def test_no_match(tmp_path: Path) -> None:
    with pytest.raises(windrow.SourceError, match="nowhere"):
        windrow.read_parquet(str(tmp_path / "nowhere"))

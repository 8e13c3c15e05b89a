"""Counting rows: from the manifest if possible, else by reading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.dataset.example_sources import make_source
from tests.io.files import open_parquet
from windrow.core.errors import TransformError
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.readable import count_rows
from windrow.io.parquet.block_reader import ParquetReader
from windrow.pipeline.tasks.map_batches import MapBatches


def _even(batch: Any) -> Any:
    return {"x": batch["x"][batch["x"] % 2 == 0]}


def _fail(batch: Any) -> Any:
    raise ZeroDivisionError("no")


def test_rows_are_counted_from_the_manifest() -> None:
    plan = LogicalPlan(make_source(2, 3, refuses=True)).mapped(MapBatches(_fail)).repeated(5)
    assert count_rows(plan) == 5


def test_unknown_counts_are_read() -> None:
    source = make_source(2, 3, rows_known=False)
    assert count_rows(LogicalPlan(source)) == 5
    assert sorted(source.reader.reads) == [0, 1]


def test_row_changing_transforms_run_and_later_ones_do_not() -> None:
    plan = (
        LogicalPlan(make_source(3, 3))
        .mapped(MapBatches(_even, preserves_rows=False))
        .mapped(MapBatches(_fail))
    )
    assert count_rows(plan) == 3


def test_error_of_a_transform_is_reported() -> None:
    plan = LogicalPlan(make_source(3)).mapped(MapBatches(_fail, preserves_rows=False))
    with pytest.raises(TransformError, match="table 0") as raised:
        count_rows(plan)
    assert isinstance(raised.value.__cause__, ZeroDivisionError)


def test_a_filter_reads_one_narrow_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"wide": ["a"] * 6, "x": list(range(6)), "flag": pa.array([1] * 6, pa.int8())})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=2)
    source = open_parquet(str(tmp_path), filter=pc.field("x") > 2, columns=["wide", "x", "flag"])
    read: list[list[str]] = []
    original = ParquetReader.read

    def spy(self: ParquetReader, address: Any) -> Any:
        got = original(self, address)
        read.append(got.column_names)
        return got

    monkeypatch.setattr(ParquetReader, "read", spy)
    assert count_rows(LogicalPlan(source)) == 3
    assert {tuple(names) for names in read} == {("flag",)}

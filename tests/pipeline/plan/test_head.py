"""Reading the first rows reads no more blocks than needed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from tests.dataset.example_sources import TableReader, TableSource, make_source
from windrow.core.errors import TransformError
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.plan.head import find_schema, read_head
from windrow.pipeline.tasks.map_batches import MapBatches


def _head(plan: LogicalPlan, limit: int) -> pa.Table:
    return read_head(plan.read_source, plan.maps, limit)


def _schema(plan: LogicalPlan) -> pa.Schema:
    return find_schema(plan.job())


def _doubled(batch: Any) -> Any:
    return {"y": batch["x"] * 2.0}


def _late(batch: Any) -> Any:
    return {"x": batch["x"][batch["x"] >= 4]}


@pytest.mark.parametrize(
    ("limit", "blocks"), [(1, [1]), (2, [1]), (3, [1, 3]), (5, [1, 3]), (6, [1, 3, 4]), (99, [1, 3, 4])]
)
def test_head_reads_only_the_blocks_that_hold_its_rows(limit: int, blocks: list[int]) -> None:
    source = make_source(0, 2, 0, 3, 4)
    table = _head(LogicalPlan(source), limit)
    assert table["x"].to_pylist() == list(range(min(limit, 9)))
    assert source.reader.reads == blocks


def test_through_transforms() -> None:
    plan = LogicalPlan(make_source(2, 3)).mapped(MapBatches(_doubled)).shuffled(1)
    assert _head(plan.mapped(MapBatches(lambda batch: {"z": batch["y"] + 1})), 3).to_pydict() == {
        "z": [1, 3, 5]
    }


def test_blocks_that_a_transform_empties_do_not_count() -> None:
    plan = LogicalPlan(make_source(2, 2, 2)).mapped(MapBatches(_late, preserves_rows=False))
    assert _head(plan, 1)["x"].to_pylist() == [4]


def test_schema_without_transforms_reads_nothing() -> None:
    assert _schema(LogicalPlan(make_source(2, refuses=True))).names == ["x"]


def test_schema_with_transforms_reads_one_block() -> None:
    source = make_source(0, 2, 2)
    assert _schema(LogicalPlan(source).mapped(MapBatches(_doubled))) == pa.schema([("y", pa.float64())])
    assert source.reader.reads == [1]


@pytest.mark.parametrize("sizes", [(0,), (0, 0)])
def test_no_rows(sizes: tuple[int, ...]) -> None:
    plan = LogicalPlan(make_source(*sizes)).mapped(MapBatches(_doubled))
    assert _head(plan, 5).num_rows == 0
    assert _schema(plan).names == ["x"]


def test_transform_whose_columns_vary_raises() -> None:
    tables = (pa.table({"x": [1]}), pa.table({"x": [2]}))
    source = TableSource(TableReader(tables))

    def fickle(batch: Any) -> Any:
        return {"x" if batch["x"][0] == 1 else "y": batch["x"]}

    with pytest.raises(TransformError, match=r"table 1: the columns differ.*'x' is missing"):
        _head(LogicalPlan(source).mapped(MapBatches(fickle)), 2)

"""Row lineage from the plan and from a row id column, both checked against the delivered rows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from windrow import DatasetPipeline, PlanError, RowOrigin

# rows per row group of each file; some row groups are empty
FILES = {"year=1/b": [30, 0, 41], "year=1/c": [], "year=2/a": [1, 100, 7, 0], "year=3/a": [0, 60]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files whose column x numbers all rows; group and row locate each row within its file."""
    path, first = tmp_path_factory.mktemp("stored"), 0
    schema = pa.schema([("x", pa.int64()), ("group", pa.int32()), ("row", pa.int64()), ("name", pa.string())])
    for name, groups in FILES.items():
        file = path / f"{name}.parquet"
        file.parent.mkdir(exist_ok=True)
        with pq.ParquetWriter(file, schema) as writer:
            for group, rows in enumerate(groups):
                x = np.arange(first, first + rows)
                columns = [x, np.full(rows, group, np.int32), np.arange(rows), [str(k) for k in x]]
                writer.write_table(pa.table(columns, schema=schema))
                first += rows
    return path


ROW_FILTER = (
    (pc.field("x") % 3 != 1)
    if hasattr(pc.Expression, "__mod__")
    else (pc.bit_wise_and(pc.field("x"), 3) != 1)
)
FILTERS: dict[str, Any] = {
    "none": None,
    "rows": ROW_FILTER,
    "by path": pc.field("year") >= 2,
    "both": (pc.field("year") <= 2) & ROW_FILTER,
    "null": pc.if_else(pc.field("x") > 100, None, True),
}


def chain(folder: Path, row_filter: Any = None, **given: Any) -> DatasetPipeline:
    ds = windrow.read_parquet(
        str(folder), target_block_bytes=given.pop("block_bytes", 400), filter=row_filter
    )
    return ds.window(blocks_per_window=2).repeat(2).random_shuffle_each_window(seed=8).options(**given)


def _file_of(x: int) -> str:
    ends = np.cumsum([sum(groups) for groups in FILES.values()])
    return list(FILES)[int(np.searchsorted(ends, x, side="right"))]


def assert_origins(folder: Path, origins: list[RowOrigin], rows: list[dict[str, Any]]) -> None:
    assert len(origins) == len(rows)
    for origin, row in zip(origins, rows, strict=True):
        assert (origin.row_group, origin.row) == (row["group"], row["row"])
        assert origin.path == str(folder / f"{_file_of(row['x'])}.parquet")


@pytest.mark.parametrize("what", FILTERS)
@pytest.mark.parametrize("seed", [8, None])
def test_planned_lineage_is_what_is_delivered(folder: Path, what: str, seed: int | None) -> None:
    pipe = chain(folder, FILTERS[what], executor="threads")
    if seed is None:
        pipe = windrow.read_parquet(str(folder), target_block_bytes=400, filter=FILTERS[what]).repeat(2)
    for epoch in pipe.iter_epochs():
        rows = list(epoch.iter_rows())
        assert len(rows) > 60
        assert_origins(folder, pipe.epoch_lineage(epoch.number, 0, len(rows)), rows)
        assert (
            pipe.epoch_lineage(epoch.number, 17, 41) == pipe.epoch_lineage(epoch.number, 0, len(rows))[17:41]
        )
        assert pipe.epoch_lineage(epoch.number, 5, 5) == []


@pytest.mark.parametrize(
    ("equal", "drop_last"), [(False, False), (True, False), ("pad", False), (False, True)]
)
@pytest.mark.parametrize("what", ["none", "rows"])
def test_step_lineage_matches_batches_of_each_shard(
    folder: Path, what: str, equal: Any, drop_last: bool
) -> None:
    pipe = chain(folder, FILTERS[what], executor="threads")
    with pipe.iterator() as first:
        batches = first.iter_batches(25)
        next(batches)
        state = first.state_dict()
    for given in (None, state):
        shards = pipe.split(3, equal=equal, state_dict=given)
        readings = [shard.iter_batches(8, drop_last=drop_last, batch_format="pyarrow") for shard in shards]
        start = readings[0].start
        for shard, reading in zip(shards, readings, strict=True):
            steps = list(reading)
            for step, batch in enumerate(steps):
                assert_origins(folder, shard.step_lineage(start + step), batch.to_pylist())
            with pytest.raises(PlanError, match="has no step"):
                shard.step_lineage(start + len(steps))
            with pytest.raises(PlanError, match="has no step"):
                shard.step_lineage(start - 1)
            shard.close()


def test_unread_shard_has_no_lineage(folder: Path) -> None:
    with chain(folder).iterator() as shard, pytest.raises(PlanError, match="read an epoch first"):
        shard.step_lineage(0)


@pytest.mark.parametrize("what", FILTERS)
@pytest.mark.parametrize("cache", [None, "memory"])
def test_row_ids_match_stored_rows(folder: Path, what: str, cache: Any) -> None:
    pipe = chain(folder, FILTERS[what], executor="threads", row_id_column="id", cache=cache)
    plain = chain(folder, FILTERS[what], executor="threads")
    for epoch, other in zip(pipe.iter_epochs(), plain.iter_epochs(), strict=True):
        rows = [row for batch in epoch.iter_batches(16, batch_format="pyarrow") for row in batch.to_pylist()]
        assert [row["id"] for row in rows] == [row["x"] for row in rows]
        assert [row["x"] for row in rows] == [row["x"] for row in other.iter_rows()]
        assert list(rows[0])[-1] == "id"
        assert_origins(folder, pipe.row_lineage(row["id"] for row in rows), rows)


def test_row_id_column_does_not_change_windows_sized_in_bytes(folder: Path) -> None:
    ds = windrow.read_parquet(str(folder), target_block_bytes=400, columns=["x"])
    pipe = ds.window(bytes_per_window=500).random_shuffle_each_window(seed=2)
    expected = [row["x"] for row in pipe.iter_rows()]
    assert [row["x"] for row in pipe.options(row_id_column="id").iter_rows()] == expected
    plan, numbered = pipe.explain(), pipe.options(row_id_column="id").explain()
    assert numbered.decoded_bytes == plan.decoded_bytes
    assert numbered.budget.window_bytes > plan.budget.window_bytes


def _without_text(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {"x": batch["x"], "id": batch["id"]}


def test_columns_and_take_include_row_ids(folder: Path) -> None:
    ds = windrow.read_parquet(str(folder)).options(row_id_column="id")
    assert ds.columns() == ["x", "group", "row", "name", "year", "id"]
    assert [row["id"] for row in ds.take(40)] == list(range(40))
    assert ds.count() == 239


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda pipe: pipe.epoch_lineage(0, 0, 240), r"rows \[0, 240\) do not lie in an epoch of 239 rows"),
        (lambda pipe: pipe.epoch_lineage(0, 5, 4), r"rows \[5, 4\) do not lie"),
        (lambda pipe: pipe.epoch_lineage(2, 0, 1), "the pipeline has 2 epochs"),
        (lambda pipe: pipe.epoch_lineage(-1, 0, 1), "epoch=-1 must be an integer of 0 or more"),
        (lambda pipe: pipe.epoch_lineage(0, 0.5, 1), "start=0.5 must be"),
        (lambda pipe: pipe.row_lineage([3, 239]), "there is no row 239: 239 rows are stored"),
        (lambda pipe: pipe.row_lineage([-3]), "row id=-3 must be"),
        (
            lambda pipe: pipe.options(row_id_column="x").iter_rows(),
            "row_id_column='x' is a column of the data",
        ),
        (lambda pipe: pipe.options(row_id_column=7).iter_rows(), "row_id_column=7 must be the name"),
    ],
)
def test_invalid_arguments_are_rejected(
    folder: Path, call: Callable[[DatasetPipeline], Any], told: str
) -> None:
    with pytest.raises(PlanError, match=told):
        call(chain(folder))


def test_rows_created_by_transforms_have_lineage_only_by_row_id(folder: Path) -> None:
    ds = windrow.read_parquet(str(folder)).map_batches(_without_text, preserves_rows=False)
    pipe = ds.repeat(1).random_shuffle_each_window(seed=1).options(executor="threads")
    with pytest.raises(
        PlanError, match=r"_without_text\) changes which rows there are.* options\(row_id_column="
    ):
        pipe.epoch_lineage(0, 0, 1)
    kept = [row["id"] for row in pipe.options(row_id_column="id").iter_rows()]
    assert [origin.row for origin in pipe.row_lineage(sorted(kept))][:3] == [0, 1, 2]


def test_rows_of_listed_blocks_have_the_number_of_their_block_and_place() -> None:
    ds = windrow.from_arrow(pa.table({"x": pa.array(range(12), pa.int64())}), target_block_bytes=32)
    assert ds.num_blocks() == 3
    found = [(origin[1], origin[2]) for origin in ds.row_lineage([0, 3, 4, 6, 7, 11])]
    assert found == [(0, 0), (0, 3), (1, 0), (1, 2), (1, 3), (2, 3)]

"""Delta Lake tables: partitions, deletion vectors, mapped columns, pruning, time travel."""

from __future__ import annotations

import datetime
import json
import os
import pickle
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.files import read_all
from tests.io.tables.makers import delete_from_delta, map_delta_columns, rewrite_delta_log
from windrow.io.catalog.file_format import Format
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.tables import delta_table
from windrow.io.tables.data_files import TableFiles

deltalake = pytest.importorskip("deltalake")


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose footers are read while a table is opened."""
    paths: list[str] = []
    look = ParquetFormat.look

    def noted(self: Format, files: Any, path: str) -> Any:
        paths.append(path)
        return look(self, files, path)  # type: ignore[arg-type]

    monkeypatch.setattr(ParquetFormat, "look", noted)
    return paths


def table_of(dataset: windrow.Dataset) -> pa.Table:
    return read_all(dataset._plan.source)  # type: ignore[arg-type]


def test_partition_columns_have_the_types_and_order_of_the_table(tmp_path: Path) -> None:
    moment = datetime.datetime(2020, 1, 1, 1, 2, 3, 456789, datetime.timezone.utc)
    data = pa.table(
        {
            "p": pa.array(["a b", "c/d=é%", None]),
            "x": pa.array([1, 2, 3], pa.int64()),
            "d": pa.array([datetime.date(2020, 1, day) for day in (1, 2, 3)]),
            "t": pa.array([moment] * 3, pa.timestamp("us", "UTC")),
            "n": pa.array([Decimal("1.50")] * 3, pa.decimal128(10, 2)),
            "b": pa.array([b"x", b"\xff", b""]),
            "i": pa.array([7, 8, None], pa.int32()),
        }
    )
    deltalake.write_deltalake(tmp_path / "t", data, partition_by=["p", "d", "t", "n", "i"])
    dataset = windrow.read_delta(tmp_path / "t")
    assert dataset.schema().equals(data.schema)
    assert table_of(dataset).sort_by("x").equals(data)
    assert dataset.take_batch(3)["p"].tolist() != [None] * 3
    only = windrow.read_delta(tmp_path / "t", columns=["i", "p"])
    assert {(row["i"], row["p"]) for row in only.iter_rows()} == {(7, "a b"), (8, "c/d=é%"), (None, None)}
    null = windrow.read_delta(tmp_path / "t", filter=pc.field("p").is_null())
    # partition values alone decide, so row counts are known
    assert null._plan.source.blocks.rows_known
    assert [row["x"] for row in null.iter_rows()] == [3]


def test_footers_of_pruned_files_are_not_read(tmp_path: Path, looked_at: list[str]) -> None:
    for start in range(0, 40, 10):
        rows = list(range(start, start + 10))
        data = pa.table({"x": rows, "f": [float(row) for row in rows], "p": [f"p{start // 20}"] * 10})
        deltalake.write_deltalake(tmp_path / "t", data, mode="append", partition_by=["p"])

    def read(condition: pc.Expression) -> tuple[int, int]:
        looked_at.clear()
        return windrow.read_delta(tmp_path / "t", filter=condition).count(), len(looked_at)

    assert read(pc.field("x") >= 35) == (5, 1)
    assert read(pc.field("p") == "p1") == (20, 2)
    assert read((pc.field("p") == "p0") & (pc.field("x") > 9)) == (10, 1)
    assert read(pc.field("x") > 99) == (0, 0)
    # statistics ignore NaN
    assert read(pc.field("f") >= 35) == (5, 4)


def test_pruning_allows_for_timestamp_bounds_in_milliseconds(tmp_path: Path) -> None:
    moment = datetime.datetime(2020, 1, 1, 0, 0, 0, 456789, datetime.timezone.utc)
    data = pa.table({"t": pa.array([moment], pa.timestamp("us", "UTC"))})
    deltalake.write_deltalake(tmp_path / "t", data)
    assert windrow.read_delta(tmp_path / "t", filter=pc.field("t") >= pa.scalar(moment)).count() == 1
    assert windrow.read_delta(tmp_path / "t", filter=pc.field("t") > pa.scalar(moment)).count() == 0


@pytest.mark.parametrize("row_group", [None, 3])
def test_deletion_vectors(tmp_path: Path, row_group: int | None) -> None:
    path = tmp_path / "t"
    data = pa.table({"x": range(10), "s": [f"s{row}" for row in range(10)]})
    deltalake.write_deltalake(path, data)
    if row_group is not None:
        (file,) = path.glob("*.parquet")
        pq.write_table(data, file, row_group_size=row_group)

        def resize(actions: list[dict[str, Any]]) -> None:
            for action in actions:
                if "add" in action:
                    action["add"]["size"] = file.stat().st_size

        rewrite_delta_log(path, 0, resize)
    delete_from_delta(path, [1, 3, 4, 5, 8])
    live = [0, 2, 6, 7, 9]
    dataset = windrow.read_delta(path, target_block_bytes=1)
    assert dataset.count() == 5
    assert dataset._plan.source.blocks.rows.tolist() == ([5] if row_group is None else [2, 0, 2, 1])
    assert table_of(dataset).to_pydict() == {"x": live, "s": [f"s{row}" for row in live]}
    assert sorted(row["x"] for row in dataset.window().random_shuffle_each_window(seed=1).iter_rows()) == live
    numbered = dataset.options(row_id_column="id").take()
    assert [(row["id"], row["x"]) for row in numbered] == list(enumerate(live))
    kept = windrow.read_delta(path, filter=pc.field("x") > 2, columns=["s"])
    assert [row["s"] for row in kept.options(row_id_column="id").iter_rows()] == ["s6", "s7", "s9"]
    assert [row["id"] for row in kept.options(row_id_column="id").iter_rows()] == [2, 3, 4]
    assert windrow.read_delta(path, version=0).count() == 10


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "t"
    field_ids = [pa.field(name, kind, metadata={"PARQUET:field_id": str(number)}) for number, (name, kind) in
                 enumerate([("c1", pa.int64()), ("c2", pa.string()), ("x", pa.int64())], 1)]  # fmt: skip
    data = pa.table([[0, 1, 2, 3], ["a", "a", "b", "b"], [9, 9, 9, 9]], schema=pa.schema(field_ids))
    deltalake.write_deltalake(path, data, partition_by=["c2"])
    # column x of the file is column y of the table
    map_delta_columns(path, {"c1": "x", "c2": "part", "x": "y"}, mode)
    dataset = windrow.read_delta(path)
    assert dataset.columns() == ["x", "part", "y"]
    assert table_of(dataset).sort_by("x").to_pydict() == {
        "x": [0, 1, 2, 3],
        "part": ["a", "a", "b", "b"],
        "y": [9, 9, 9, 9],
    }
    shuffled = dataset.window().random_shuffle_each_window(seed=1)
    assert sorted(row["x"] for row in shuffled.iter_rows()) == [0, 1, 2, 3]
    kept = windrow.read_delta(path, filter=(pc.field("x") > 0) & (pc.field("part") == "a"), columns=["y"])
    assert kept.take() == [{"y": 9}]


def test_versions_by_time_and_by_table_object(tmp_path: Path) -> None:
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"x": [1]}))
    deltalake.write_deltalake(path, pa.table({"x": [2]}), mode="append")
    for version, moment in enumerate(("2026-01-01T00:00:00Z", "2026-02-01T00:00:00Z")):

        def date(actions: list[dict[str, Any]], at: str = moment) -> None:
            for action in actions:
                if "commitInfo" in action:
                    action["commitInfo"]["timestamp"] = int(
                        datetime.datetime.fromisoformat(at[:-1] + "+00:00").timestamp() * 1000
                    )

        rewrite_delta_log(path, version, date)
        stamp = datetime.datetime.fromisoformat(moment[:-1] + "+00:00").timestamp()
        os.utime(path / "_delta_log" / f"{version:020}.json", (stamp, stamp))
    january = datetime.datetime(2026, 1, 15, tzinfo=datetime.timezone.utc)
    assert windrow.read_delta(path, version=january).count() == 1
    assert windrow.read_delta(path, version="2026-01-15T00:00:00Z").count() == 1
    table = deltalake.DeltaTable(path, version=0)
    assert windrow.read_delta(table).count() == 1
    assert windrow.read_delta(table, version=1).count() == 2
    assert table.version() == 0


def test_vacuumed_files_are_reported(tmp_path: Path) -> None:
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"x": range(10)}))
    dataset = windrow.read_delta(path)
    table = deltalake.DeltaTable(path)
    table.delete("x < 5")
    table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False)
    with pytest.raises(windrow.SourceError, match=r"missing.*version 0 of the Delta table.*vacuumed"):
        dataset.take()
    with pytest.raises(windrow.SourceError, match="vacuumed"):
        windrow.read_delta(path, version=0)


def test_file_with_another_type_raises(tmp_path: Path) -> None:
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"x": pa.array([1], pa.int64())}))
    (file,) = path.glob("*.parquet")
    pq.write_table(pa.table({"x": ["text"]}), file)
    with pytest.raises(windrow.SourceError, match=r"column 'x' is string in .* but int64 in the table"):
        windrow.read_delta(path)


def test_unknown_table_features_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"x": [1]}))
    log = path / "_delta_log" / f"{1:020}.json"
    features = ["variantType"]
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": features,
        "writerFeatures": features,
    }
    log.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(windrow.SourceError, match="variantType"):
        windrow.read_delta(path)
    with pytest.raises(windrow.SourceError, match="cannot be opened"):
        windrow.read_delta(tmp_path / "nothing")
    with pytest.raises(windrow.PlanError, match="path or URL"):
        windrow.read_delta(3)
    with pytest.raises(windrow.PlanError, match="version=True"):
        windrow.read_delta(path, version=True)


def test_errors_contain_no_secrets(tmp_path: Path) -> None:
    options = {"AWS_ACCESS_KEY_ID": "KEYKEY", "AWS_SECRET_ACCESS_KEY": "HUSHHUSH", "AWS_ALLOW_HTTP": "true"}
    options |= {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "max_retries": "0", "AWS_REGION": "us-east-1"}
    with pytest.raises(windrow.SourceError) as caught:
        windrow.read_delta("s3://HUSHHUSH/t", storage_options=options)
    assert "HUSHHUSH" not in str(caught.value)
    assert "KEYKEY" not in str(caught.value)


def test_remote_files_are_read_through_the_client_of_deltalake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files are read as from object storage, through deltalake's own filesystem."""
    import pyarrow.fs as pa_fs
    from deltalake.fs import DeltaStorageHandler

    path = tmp_path / "t"
    deltalake.write_deltalake(path, pa.table({"x": range(10), "p": ["a b", "c"] * 5}), partition_by=["p"])
    local = table_of(windrow.read_delta(path))
    store = pa_fs.PyFileSystem(DeltaStorageHandler(str(path), {"secret": "HUSH"}))
    files = TableFiles("", store, display_root="s3://bucket/t", snapshot="version 0", secrets=("HUSH",))
    monkeypatch.setattr(delta_table, "_locate", lambda *_: files)
    dataset = pickle.loads(pickle.dumps(windrow.read_delta(path)))
    assert table_of(dataset).equals(local)
    assert dataset._plan.source.addresses([0])[0].origin.startswith("s3://bucket/t/p=a%20b/part-")
    shuffled = dataset.window().random_shuffle_each_window(seed=1)
    assert sorted(row["x"] for row in shuffled.iter_rows()) == list(range(10))
    assert windrow.read_delta(path, filter=pc.field("x") > 6).count() == 3
    for file in path.rglob("*.parquet"):
        file.unlink()
    with pytest.raises(
        windrow.SourceError, match=r"s3://bucket/t/p=.*the file is missing.*vacuumed"
    ) as caught:
        dataset.take()
    assert "\x1b" not in str(caught.value)

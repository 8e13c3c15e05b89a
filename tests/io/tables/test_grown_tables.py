"""Tables whose schema grew: columns added, renamed and widened, in files with deleted rows; old timestamps."""

from __future__ import annotations

from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.files import read_all
from tests.io.tables.makers import commit_delta_file, delete_from_delta, delete_from_iceberg
from tests.library_versions import is_older

# Python, Arrow and Delta have them, timestamps in nanoseconds do not
TIMES = [
    datetime(1, 1, 1, tzinfo=timezone.utc),
    datetime(2020, 1, 1, 0, 0, 0, 5, tzinfo=timezone.utc),
    None,
    datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=timezone.utc),
]


def rows_of(dataset: windrow.Dataset) -> list[dict[str, Any]]:
    """The rows in stored order, which a shuffle must deliver too."""
    rows = read_all(dataset._plan.source).to_pylist()  # type: ignore[arg-type]
    shuffled = list(dataset.window().random_shuffle_each_window(seed=1).iter_rows())
    assert sorted(map(str, shuffled)) == sorted(map(str, rows))
    return rows


def old_rows() -> pa.Table:
    return pa.table(
        {
            "i": pa.array([1, 2, 3, 4], pa.int32()),
            "f": pa.array([0.5, 1.5, 2.5, None], pa.float32()),
            "d": pa.array([Decimal("1.00"), None, Decimal("3.25"), Decimal("-4.50")], pa.decimal128(9, 2)),
            "old": ["a", "b", None, "d"],
        }
    )


def new_rows() -> pa.Table:
    return pa.table(
        {
            "i": [2**40],
            "f": [1e300],
            "d": pa.array([Decimal("1234567890.12")], pa.decimal128(18, 2)),
            "new": ["e"],
            "added": [[7, 8]],
        }
    )


OLD: list[dict[str, Any]] = [
    {"i": 1, "f": 0.5, "d": Decimal("1.00"), "new": "a", "added": None},
    {"i": 2, "f": 1.5, "d": None, "new": "b", "added": None},
    {"i": 3, "f": 2.5, "d": Decimal("3.25"), "new": None, "added": None},
    {"i": 4, "f": None, "d": Decimal("-4.50"), "new": "d", "added": None},
]
NEW: list[dict[str, Any]] = [
    {"i": 2**40, "f": 1e300, "d": Decimal("1234567890.12"), "new": "e", "added": [7, 8]}
]
FILTERS: list[tuple[pc.Expression, list[int]]] = [
    (pc.field("i") >= 3, [3, 4, 2**40]),
    (pc.field("f") > 1.0, [2, 3, 2**40]),
    (pc.field("d") < Decimal("2.00"), [1, 4]),
    (pc.field("new") == "b", [2]),
    (pc.field("added").is_null(), [1, 2, 3, 4]),
]


def check_grown(read: Any, deleted: list[int]) -> None:
    """Check all rows, each column and filters; files are in the order of their names."""
    live = [row for place, row in enumerate(OLD) if place not in deleted]
    rows = rows_of(read())
    assert rows in (live + NEW, NEW + live)
    assert rows_of(read(target_block_bytes="1MiB")) == rows
    for name in OLD[0]:
        assert rows_of(read(columns=[name])) == [{name: row[name]} for row in rows]
    for condition, numbers in FILTERS:
        kept = sorted(row["i"] for row in rows_of(read(columns=["i"], filter=condition)))
        assert kept == sorted(set(numbers) & {row["i"] for row in rows}), str(condition)


@pytest.mark.parametrize("deleted", [[], [1, 2]])
def test_delta_columns_added_renamed_and_widened(tmp_path: Path, deleted: list[int]) -> None:
    pytest.importorskip("deltalake")
    commit_delta_file(tmp_path, 0, old_rows().schema, old_rows(), row_group_size=2)
    if deleted:
        delete_from_delta(tmp_path, deleted)
    renamed = pa.field("new", pa.string(), metadata={"physical": "old"})
    stored = new_rows().rename_columns(["i", "f", "d", "old", "added"])
    commit_delta_file(tmp_path, 1 + bool(deleted), new_rows().schema.set(3, renamed), stored)
    check_grown(lambda **options: windrow.read_delta(tmp_path, **options), deleted)
    source: Any = windrow.read_delta(tmp_path)._plan.source
    assert source.schema_changes[0] == "i: another type in 1 of 2 files, read as int64"


@pytest.mark.parametrize("deleted", [[], [1, 2]])
def test_iceberg_columns_added_renamed_and_widened(catalog: Any, deleted: list[int]) -> None:
    pytest.importorskip("pyiceberg")
    from pyiceberg.types import DecimalType, DoubleType, ListType, LongType

    table = catalog.create_table("db.t", schema=old_rows().schema)
    table.append(old_rows())
    if deleted:
        (task,) = table.scan().plan_files()
        delete_from_iceberg(table, {task.file.file_path: deleted})
    with table.update_schema() as update:
        update.update_column("i", LongType())
        update.update_column("f", DoubleType())
        update.update_column("d", DecimalType(18, 2))
        update.rename_column("old", "new")
        update.add_column("added", ListType(99, LongType(), element_required=False))
    table.append(new_rows())
    check_grown(lambda **options: windrow.read_iceberg(table, **options), deleted)


@pytest.mark.parametrize("deleted", [[], [1]])
def test_delta_timestamps_as_old_versions_of_spark_write_them(tmp_path: Path, deleted: list[int]) -> None:
    pytest.importorskip("deltalake")
    if deleted and is_older("deltalake", 1, 6):
        pytest.skip("deltalake before 1.6 rejects ids of columns in a table without column mapping")
    naive = pa.array(
        [None if time is None else time.replace(tzinfo=None) for time in TIMES], pa.timestamp("us")
    )
    content = pa.table({"t": naive, "x": pa.array([0, 1, 2, 3])})
    options = {"use_deprecated_int96_timestamps": True, "store_schema": False, "row_group_size": 2}
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("x", pa.int64())])
    commit_delta_file(tmp_path, 0, schema, content, **options)
    assert pq.read_schema(tmp_path / "part-0.parquet").types[0] == pa.timestamp("ns")
    if deleted:
        delete_from_delta(tmp_path, deleted)
    live = [place for place in range(4) if place not in deleted]
    dataset = windrow.read_delta(tmp_path)
    assert dataset.schema().types == schema.types
    assert rows_of(dataset) == [{"t": TIMES[place], "x": place} for place in live]
    late = windrow.read_delta(tmp_path, filter=pc.field("t") > pa.scalar(TIMES[1]), columns=["x"])
    assert rows_of(late) == [{"x": 3}]


def test_iceberg_timestamps_as_old_versions_of_spark_write_them(catalog: Any, tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    schema = pa.schema([("t", pa.timestamp("us", "UTC")), ("x", pa.int64())])
    table = catalog.create_table("db.t", schema=schema)
    naive = pa.array(
        [None if time is None else time.replace(tzinfo=None) for time in TIMES], pa.timestamp("us")
    )
    fields = [pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})
              for number, (name, kind) in enumerate([("t", pa.timestamp("us")), ("x", pa.int64())], 1)]  # fmt: skip
    content = pa.table([naive, pa.array(range(4), pa.int64())], schema=pa.schema(fields))
    table.append(pa.table({"t": pa.array(TIMES, schema.types[0]), "x": pa.array(range(4), pa.int64())}))
    # in the place of the file that pyiceberg wrote
    (task,) = table.scan().plan_files()
    path = task.file.file_path.removeprefix("file://")
    pq.write_table(content, path, use_deprecated_int96_timestamps=True, store_schema=False)
    assert pq.read_schema(path).types[0] == pa.timestamp("ns")
    assert rows_of(windrow.read_iceberg(table)) == [{"t": time, "x": x} for x, time in enumerate(TIMES)]


def test_fields_of_structs_are_read_alone_from_tables(tmp_path: Path, catalog: Any) -> None:
    pytest.importorskip("pyiceberg")
    structs = [{"a": 1, "b": "x"}, None, {"a": 3, "b": None}]
    table = catalog.create_table("db.t", schema=pa.table({"s": structs, "x": [1, 2, 3]}).schema)
    table.append(pa.table({"s": structs, "x": [1, 2, 3]}))
    (task,) = table.scan().plan_files()
    for expected in ([{"s": {"a": 1}}, {"s": None}, {"s": {"a": 3}}], [{"s": {"a": 1}}, {"s": {"a": 3}}]):
        assert rows_of(windrow.read_iceberg(table, columns=["s.a"])) == expected
        kept = windrow.read_iceberg(table, columns=["s.a"], filter=pc.field("s", "b") == "x")
        assert rows_of(kept) == expected[:1]
        delete_from_iceberg(table, {task.file.file_path: [1]})

"""Iceberg tables: field ids, deletes, pruning, tags, metadata files."""

from __future__ import annotations

import datetime
import struct
from collections.abc import Sequence
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.files import read_all
from tests.io.tables.makers import delete_from_iceberg
from tests.library_versions import is_older
from windrow.core.source import BlockAddress
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.tables.iceberg_table import read_positions
from windrow.io.tables.snapshot_source import TableFilesReader

pytest.importorskip("pyiceberg")


def table_of(dataset: windrow.Dataset) -> dict[str, Any]:
    rows: dict[str, Any] = read_all(dataset._plan.source).to_pydict()  # type: ignore[arg-type]
    return rows


def create(catalog: Any, data: pa.Table, *more: pa.Table, **options: Any) -> Any:
    table = catalog.create_table("db.t", schema=data.schema, **options)
    for part in (data, *more):
        table.append(part)
    return table


def test_columns_are_matched_by_field_id(catalog: Any) -> None:
    table = create(catalog, pa.table({"x": [1, 2], "a": ["p", "q"], "b": [0.5, 1.5]}))
    with table.update_schema() as update:
        update.rename_column("a", "name")
    with table.update_schema() as update:
        update.delete_column("b")
    with table.update_schema() as update:
        from pyiceberg.types import DoubleType, StringType

        # old files have other columns of these names
        update.add_column("a", StringType())
        update.add_column("b", DoubleType())
    table.append(pa.table({"x": [3], "name": ["r"], "a": ["new"], "b": [9.0]}))
    dataset = windrow.read_iceberg(table)
    assert dataset.columns() == ["x", "name", "a", "b"]
    by_x = {row["x"]: row for row in dataset.iter_rows()}
    assert by_x[1] == {"x": 1, "name": "p", "a": None, "b": None}
    assert by_x[3] == {"x": 3, "name": "r", "a": "new", "b": 9.0}
    assert dataset._plan.source.null_counts == {"x": 0, "name": 0, "a": 2, "b": 2}
    shuffled = dataset.window().random_shuffle_each_window(seed=1)
    assert {row["x"]: row for row in shuffled.iter_rows()} == by_x
    assert windrow.read_iceberg(table, filter=pc.field("name") == "q").take() == [by_x[2]]
    assert windrow.read_iceberg(table, filter=pc.field("a").is_null(), columns=["name"]).count() == 2
    assert table_of(windrow.read_iceberg(table, columns=["b"]))["b"].count(None) == 2
    first = windrow.read_iceberg(table, snapshot_id=table.snapshots()[0].snapshot_id)
    assert first.columns() == ["x", "a", "b"]
    assert first.take(1) == [{"x": 1, "a": "p", "b": 0.5}]


def test_widened_types(catalog: Any) -> None:
    from pyiceberg.types import DecimalType, DoubleType, LongType

    money = pa.array([Decimal("1.00"), Decimal("2.00")], pa.decimal128(9, 2))
    table = create(
        catalog,
        pa.table({"i": pa.array([1, 2], pa.int32()), "f": pa.array([0.5, 1.5], pa.float32()), "d": money}),
    )
    with table.update_schema() as update:
        update.update_column("i", LongType())
        update.update_column("f", DoubleType())
        update.update_column("d", DecimalType(18, 2))
    more = pa.table({"i": [2**40], "f": [2.5], "d": pa.array([Decimal("3.00")], pa.decimal128(18, 2))})
    table.append(more)
    dataset = windrow.read_iceberg(table)
    assert dataset.schema().types == [pa.int64(), pa.float64(), pa.decimal128(18, 2)]
    assert sorted(table_of(dataset)["i"]) == [1, 2, 2**40]
    assert sorted(table_of(dataset)["d"]) == [1, 2, 3]
    for condition in (pc.field("i") >= 2, pc.field("f") > 1.0, pc.field("d") >= Decimal("2.00")):
        assert windrow.read_iceberg(table, filter=condition).count() == 2


def test_added_nested_fields_are_null_and_renamed_ones_raise(catalog: Any) -> None:
    table = create(catalog, pa.table({"s": [{"a": 1, "b": 2.5}]}))
    with table.update_schema() as update:
        from pyiceberg.types import StringType

        update.add_column(("s", "c"), StringType())
    table.append(pa.table({"s": [{"a": 2, "b": 3.5, "c": "new"}]}))
    found = table_of(windrow.read_iceberg(table))["s"]
    assert sorted(found, key=lambda value: value["a"]) == [
        {"a": 1, "b": 2.5, "c": None},
        {"a": 2, "b": 3.5, "c": "new"},
    ]
    with table.update_schema() as update:
        update.rename_column(("s", "a"), "z")
    # a cast by name would return nulls
    with pytest.raises(windrow.SourceError, match="nested field 'a' has another name"):
        windrow.read_iceberg(table)


def test_position_deletes(catalog: Any) -> None:
    data = pa.table({"x": range(10), "s": [f"s{row}" for row in range(10)]})
    table = create(catalog, data)
    (task,) = table.scan().plan_files()
    before = windrow.read_iceberg(table)
    delete_from_iceberg(table, {task.file.file_path: [1, 3]})
    delete_from_iceberg(table, {task.file.file_path: [3, 8], "file:///elsewhere": [0]})
    table.append(data)
    dataset = windrow.read_iceberg(table)
    live = [0, 2, 4, 5, 6, 7, 9]
    assert dataset.count() == 17
    assert sorted(row["x"] for row in dataset.iter_rows()) == sorted([*live, *range(10)])
    assert before.count() == 10
    assert windrow.read_iceberg(table, filter=pc.field("x") < 4).count() == 2 + 4
    assert windrow.read_iceberg(table, filter=pc.field("x") < 4, columns=["s"]).count() == 2 + 4
    numbers = [row["id"] for row in dataset.options(row_id_column="id").iter_rows()]
    assert numbers == list(range(17))


def test_blocks_that_are_read_as_one_keep_their_rows(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files as stored, with another column and with deleted rows, in one task."""
    table = create(catalog, *(pa.table({"x": range(10 * at, 10 * at + 10)}) for at in range(4)))
    with table.update_schema() as update:
        update.rename_column("x", "y")
    for at in range(4, 8):
        table.append(pa.table({"y": range(10 * at, 10 * at + 10)}))
    paths = sorted(task.file.file_path for task in table.scan().plan_files())
    delete_from_iceberg(table, {paths[2]: [0, 3], paths[5]: [9]})

    def deliver() -> list[int]:
        dataset = windrow.read_iceberg(table.refresh(), target_block_bytes=1)
        pipe = (
            dataset.repeat(1).random_shuffle_each_window(seed=1).options(executor="threads", progress=False)
        )
        return [number for batch in pipe.iter_batches() for number in batch["y"].tolist()]

    joined, join = [], TableFilesReader.join_blocks

    def note(reader: TableFilesReader, addresses: Sequence[BlockAddress]) -> BlockAddress | None:
        joined.append(len(addresses))
        return join(reader, addresses)

    monkeypatch.setattr(TableFilesReader, "join_blocks", note)
    found = deliver()
    assert len(found) == len(set(found)) == 77
    assert joined == [8]
    monkeypatch.setattr(TableFilesReader, "join_blocks", lambda reader, addresses: None)
    assert deliver() == found


def test_equality_deletes_raise(catalog: Any) -> None:
    table = create(catalog, pa.table({"x": [1]}))
    delete_from_iceberg(table, {"any": [0]}, equality=True)
    with pytest.raises(windrow.SourceError, match=r"equality deletes.*compact the table"):
        windrow.read_iceberg(table)


def test_deletion_vectors_of_puffin_files() -> None:
    from pyroaring import BitMap

    def blob(positions: Sequence[int]) -> bytes:
        vector = struct.pack("<QI", 1, 0) + BitMap(positions).serialize()
        body = b"\xd1\xd3\x39\x64" + vector
        return struct.pack(">I", len(body)) + body + b"\0\0\0\0"

    first, second = blob([1, 5]), blob([7])
    blobs = [
        {
            "type": "deletion-vector-v1",
            "fields": [],
            "snapshot-id": 1,
            "sequence-number": 1,
            "offset": offset,
            "length": len(content),
            "properties": {"referenced-data-file": name},
        }
        for name, offset, content in (("b", 4 + len(first), second), ("a", 4, first))
    ]
    footer = str({"blobs": blobs, "properties": {}}).replace("'", '"').encode()
    end = struct.pack("<I", len(footer)) + b"\0\0\0\0" + b"PFA1"
    content = b"PFA1" + first + second + b"PFA1" + footer + end
    io = SimpleNamespace(new_input=lambda path: SimpleNamespace(open=lambda: BytesIO(content)))
    delete = SimpleNamespace(file_path="d", file_format="PUFFIN")
    tasks = [
        SimpleNamespace(file=SimpleNamespace(file_path=name), delete_files=some)
        for name, some in (("a", [delete]), ("b", []))
    ]
    if is_older("pyiceberg", 0, 12):
        with pytest.raises(NotImplementedError, match=r"before pyiceberg 0\.12"):
            read_positions(io, tasks)
        return
    found = read_positions(io, tasks)
    # no delete file is assigned to the second data file
    assert {path: positions.tolist() for path, positions in found.items()} == {"a": [1, 5]}


def test_partitions_and_pruning(catalog: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    days = [datetime.date(2020, 1, day) for day in (1, 2, 3)]
    data = pa.table({"p": ["a", "b", None], "x": [1, 2, 3], "d": days, "n": [1.0, 2.0, float("nan")]})
    schema = catalog.create_table("db.schema", schema=data.schema).schema()
    spec = PartitionSpec(PartitionField(source_id=1, field_id=1000, transform=IdentityTransform(), name="p"))
    table = catalog.create_table("db.t", schema=schema, partition_spec=spec)
    table.append(data)
    looked_at: list[str] = []
    look = ParquetFormat.look

    def noted(self: ParquetFormat, files: Any, path: str) -> Any:
        looked_at.append(path)
        return look(self, files, path)

    monkeypatch.setattr(ParquetFormat, "look", noted)
    for condition, rows, files in (
        (pc.field("p") == "a", 1, 1),
        (pc.field("p").is_null(), 1, 1),
        (pc.field("x") > 2, 1, 1),
        (pc.field("d") < datetime.date(2020, 1, 2), 1, 1),
        (pc.field("n") > 1.5, 1, 3),
        (pc.field("x") > 9, 0, 0),
    ):
        looked_at.clear()
        assert windrow.read_iceberg(table, filter=condition).count() == rows
        assert len(looked_at) == files


def test_column_known_only_from_the_manifest(catalog: Any, tmp_path: Path) -> None:
    """Files added to the table by path, without field ids and without their partition column."""
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.transforms import IdentityTransform

    data = pa.table({"x": [1, 2], "p": ["a", "a"]})
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="p"))
    schema = catalog.create_table("db.schema", schema=data.schema).schema()
    table = catalog.create_table("db.t", schema=schema, partition_spec=spec)
    pq.write_table(data, tmp_path / "given.parquet")
    table.add_files([f"file://{tmp_path}/given.parquet"])
    assert table_of(windrow.read_iceberg(table)) == {"x": [1, 2], "p": ["a", "a"]}
    pq.write_table(data.select(["x"]), tmp_path / "given.parquet")
    assert table_of(windrow.read_iceberg(table)) == {"x": [1, 2], "p": ["a", "a"]}
    with table.transaction() as transaction:
        transaction.remove_properties("schema.name-mapping.default")
    with pytest.raises(windrow.SourceError, match="no field ids"):
        windrow.read_iceberg(table)


def test_snapshots_by_tag_time_and_metadata_file(catalog: Any) -> None:
    table = create(catalog, pa.table({"x": [1]}))
    first = table.current_snapshot()
    table.append(pa.table({"x": [2]}))
    with table.manage_snapshots() as manage:
        manage.create_tag(first.snapshot_id, "first")
    assert windrow.read_iceberg(table, snapshot_id="first").count() == 1
    moment = datetime.datetime.fromtimestamp(first.timestamp_ms / 1000, datetime.timezone.utc)
    assert windrow.read_iceberg(table, snapshot_id=moment).count() == 1
    by_path = windrow.read_iceberg(table.metadata_location)
    assert by_path.count() == 2
    assert by_path._plan.source.fingerprint == windrow.read_iceberg(table)._plan.source.fingerprint
    assert windrow.read_iceberg(Path(table.metadata_location.removeprefix("file://"))).count() == 2
    properties = {**catalog.properties, "name": "test"}
    assert windrow.read_iceberg("db.t", catalog=properties).count() == 2


def test_errors_name_the_problem(catalog: Any, tmp_path: Path) -> None:
    table = create(catalog, pa.table({"x": [1]}))
    for given, options, error, message in (
        ("db.t", {}, windrow.PlanError, "catalog="),
        ("db.none", {"catalog": catalog}, windrow.SourceError, "does not exist"),
        (3, {}, windrow.PlanError, "db.trips"),
        (f"{tmp_path}/none.metadata.json", {}, windrow.SourceError, "none.metadata.json"),
        (table, {"snapshot_id": True}, windrow.PlanError, "tag or branch"),
        (table, {"snapshot_id": "none"}, windrow.SourceError, "no snapshot none"),
    ):
        with pytest.raises(error, match=message):
            windrow.read_iceberg(given, **options)
    assert "snapshot" in repr(windrow.read_iceberg(table))

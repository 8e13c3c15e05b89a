"""The argument ``schema=``: which columns it selects, the types it decides, and the values that do not fit."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import windrow
from tests.io.catalog.test_grown_schemas import write_tables
from tests.io.files import open_parquet, read_all, write
from windrow.core.errors import PlanError, SourceError


def test_schema_selects_orders_and_types(tmp_path: Path) -> None:
    write_tables(
        tmp_path,
        [
            pa.table({"x": [1], "y": ["7"], "z": [0.1]}),
            pa.table({"y": [8], "x": [2**40]}),
            pa.table({"z": [9.5]}),
        ],
    )
    schema = pa.schema([("y", pa.string()), ("z", pa.float32()), ("x", pa.int64())])
    assert windrow.read_parquet(tmp_path, schema=schema).take() == [
        {"y": "7", "z": pa.scalar(0.1, pa.float32()).as_py(), "x": 1},
        {"y": "8", "z": None, "x": 2**40},
        {"y": None, "z": 9.5, "x": None},
    ]
    chosen = windrow.read_parquet(tmp_path, schema=schema, columns=["x"], filter=pc.field("y") == "8")
    assert chosen.take() == [{"x": 2**40}]
    numbers = open_parquet(tmp_path, schema=pa.schema([("y", pa.int8())]))
    assert read_all(numbers).to_pylist() == [{"y": 7}, {"y": 8}, {"y": None}]
    with pytest.raises(PlanError, match=r"columns= has no column 'z'"):
        open_parquet(tmp_path, schema=pa.schema([("y", pa.string())]), columns=["z"])


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"x": pa.int8()}, "schema= is a dict"),
        (pa.schema([]), "schema= has no columns"),
        (pa.schema([("x", pa.int8()), ("x", pa.int8())]), "schema= names 'x' more than once"),
        (pa.schema([("xx", pa.int8())]), "schema= has a column 'xx', but no file has it: did you mean 'x'"),
        (
            pa.schema([("x", pa.list_(pa.int8()))]),
            r"gives list<.*> for 'x', which is int64 in .*0\.parquet and cannot be cast",
        ),
    ],
    ids=str,
)
def test_wrong_schema_raises(tmp_path: Path, schema: Any, message: str) -> None:
    write_tables(tmp_path, [pa.table({"x": [1]})])
    with pytest.raises(PlanError, match=message):
        windrow.read_parquet(tmp_path, schema=schema)


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        (pa.array([1, 300]), pa.int8(), "300"),
        (pa.array([1.0, 1.5]), pa.int64(), "1.5"),
        (pa.array([1.0, 1e300]), pa.float32(), "1e\\+300"),
        (
            pa.array([Decimal("1.25"), Decimal("1.251")], pa.decimal128(5, 3)),
            pa.decimal128(5, 2),
            r"Decimal\('1\.251'\)",
        ),
        (pa.array([1000, 1001], pa.timestamp("us")), pa.timestamp("ms"), "datetime"),
        (pa.array(["1", "a" * 100]), pa.int64(), "'a{59}\\.\\.\\."),
        (pa.array([1, 1234]), pa.decimal128(5, 2), "1234"),
    ],
    ids=str,
)
def test_overflow_of_a_given_type_names_the_value(
    tmp_path: Path, values: pa.Array, kind: pa.DataType, shown: str
) -> None:
    write(tmp_path / "t.parquet", pa.table({"x": values}), row_group_size=1)
    source = open_parquet(tmp_path, schema=pa.schema([("x", kind)]))
    with pytest.raises(
        SourceError, match=rf"t\.parquet, row group 1: column 'x' .*cannot hold the value {shown}"
    ):
        read_all(source)
    first = source.reader.read(source.addresses([0])[0]) if len(source.blocks.rows) > 1 else None
    assert first is None or first.num_rows == 1


def test_directories_give_way_to_the_schema(tmp_path: Path) -> None:
    write(tmp_path / "day=01" / "a.parquet", pa.table({"x": [1]}))
    write(tmp_path / "day=02" / "b.parquet", pa.table({"x": [2]}))
    schema = pa.schema([("day", pa.string()), ("x", pa.int64())])
    assert read_all(open_parquet(tmp_path, schema=schema)).to_pylist() == [
        {"day": "01", "x": 1},
        {"day": "02", "x": 2},
    ]
    coded = pa.schema([("day", pa.dictionary(pa.int8(), pa.string()))])
    assert read_all(open_parquet(tmp_path, schema=coded)).to_pylist() == [{"day": "01"}, {"day": "02"}]
    assert open_parquet(tmp_path, schema=pa.schema([("x", pa.int8())])).schema.names == ["x"]
    with_paths = open_parquet(tmp_path, schema=pa.schema([("x", pa.int8())]), include_paths=True)
    assert with_paths.schema.names == ["x", "path"]
    chosen = open_parquet(tmp_path, schema=schema, filter=pc.field("day") == "02")
    assert read_all(chosen).to_pylist() == [{"day": "02", "x": 2}]
    with pytest.raises(
        SourceError, match=r"day=01/a\.parquet: its directory states '01', which is not a bool"
    ):
        read_all(open_parquet(tmp_path, schema=pa.schema([("day", pa.bool_()), ("x", pa.int64())])))


def test_what_decides_types_is_part_of_the_identity(tmp_path: Path) -> None:
    write_tables(tmp_path, [pa.table({"x": [1]})])
    plain, same = open_parquet(tmp_path), open_parquet(tmp_path, schema=pa.schema([("x", pa.int64())]))
    other = open_parquet(tmp_path, schema=pa.schema([("x", pa.int8())]))
    assert len({source.identity().schema for source in (plain, same, other)}) == 3
    assert len({source.contents for source in (plain, same, other)}) == 3


def test_int96_timestamps_outside_the_range_of_nanoseconds(tmp_path: Path) -> None:
    times = [datetime(9999, 12, 31), datetime(1, 1, 1), datetime(2020, 1, 1, 0, 0, 0, 5), None]
    table = pa.table(
        {"t": pa.array(times, pa.timestamp("us")), "n": pa.array(times[2:3] * 4, pa.timestamp("us"))}
    )
    path = write(tmp_path / "t.parquet", table, use_deprecated_int96_timestamps=True, store_schema=False)
    assert read_all(open_parquet(path)).schema.types == [pa.timestamp("ns")] * 2
    schema = pa.schema([("n", pa.timestamp("ns")), ("t", pa.timestamp("us", "UTC"))])
    read = read_all(open_parquet(path, schema=schema))
    assert read["t"].cast(pa.timestamp("us")).to_pylist() == times
    assert read["n"].cast(pa.timestamp("us")).to_pylist() == times[2:3] * 4

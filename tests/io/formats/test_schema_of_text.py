"""The argument ``schema=`` of ``read_csv`` and ``read_json``: it selects and types columns, and values have to fit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pytest

import windrow
from windrow.core.errors import PlanError, SourceError
from windrow.dataset.dataset import Dataset

Rows = Sequence[dict[str, Any]]


def write_csv(path: Path, rows: Rows) -> None:
    lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
    path.with_suffix(".csv").write_text("\n".join(lines) + "\n")


def write_json(path: Path, rows: Rows) -> None:
    path.with_suffix(".json").write_text("".join(json.dumps(row) + "\n" for row in rows))


TEXT: list[Any] = [
    pytest.param(write_csv, windrow.read_csv, id="csv"),
    pytest.param(write_json, windrow.read_json, id="json"),
]
Write: TypeAlias = Callable[[Path, Rows], None]
Read: TypeAlias = Callable[..., Dataset]
ROWS = [{"x": 1, "y": 7, "z": 0.5}, {"x": 2, "y": 8, "z": 1.5}]


@pytest.mark.parametrize(("store", "read"), TEXT)
def test_schema_selects_orders_and_types(tmp_path: Path, store: Write, read: Read) -> None:
    store(tmp_path / "a", ROWS)
    store(tmp_path / "b", [{"x": 3, "y": 9}])
    schema = pa.schema([("z", pa.float32()), ("x", pa.int8())])
    ds = read(tmp_path, schema=schema)
    assert ds.schema() == schema
    assert ds.take() == [{"z": 0.5, "x": 1}, {"z": 1.5, "x": 2}, {"z": None, "x": 3}]
    assert read(tmp_path, schema=schema, columns=["x"]).take() == [{"x": 1}, {"x": 2}, {"x": 3}]
    with pytest.raises(PlanError, match=r"columns= has no column 'y'"):
        read(tmp_path, schema=schema, columns=["y"])


@pytest.mark.parametrize(("store", "read"), TEXT)
def test_types_of_the_schema_replace_those_of_the_values(tmp_path: Path, store: Write, read: Read) -> None:
    store(tmp_path / "a", ROWS)
    ds = read(tmp_path, schema=pa.schema([("x", pa.float64()), ("y", pa.decimal128(6, 2))]))
    assert [str(field.type) for field in ds.schema()] == ["double", "decimal128(6, 2)"]
    assert ds.to_arrow()["x"].to_pylist() == [1.0, 2.0]
    # without it, integers
    assert read(tmp_path).schema().field("x").type == pa.int64()


def test_numbers_of_csv_can_be_text(tmp_path: Path) -> None:
    write_csv(tmp_path / "a", [{"zip": "00501"}])
    assert windrow.read_csv(tmp_path, schema=pa.schema([("zip", pa.string())])).take() == [{"zip": "00501"}]


@pytest.mark.parametrize(("store", "read"), TEXT)
@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [("x", pa.int8(), 300), ("x", pa.uint8(), -1), ("z", pa.int64(), 0.5), ("x", pa.int64(), "three")],
    ids=str,
)
def test_value_that_does_not_fit_names_file_and_column(
    tmp_path: Path, store: Write, read: Read, name: str, kind: pa.DataType, value: Any
) -> None:
    store(tmp_path / "a", [{name: 5}])
    store(tmp_path / "b", [{name: 6}, {name: value}])
    schema = pa.schema([(name, kind)])
    with pytest.raises(
        SourceError, match=rf"{tmp_path}/b\..*column '{name}'.* schema= states its type"
    ) as caught:
        read(tmp_path, schema=schema).take()
    assert "dtypes=" not in str(caught.value)


@pytest.mark.parametrize(("store", "read"), TEXT)
def test_wrong_schema_raises(tmp_path: Path, store: Write, read: Read) -> None:
    store(tmp_path / "a", ROWS)
    with pytest.raises(PlanError, match="schema= is a dict"):
        read(tmp_path, schema={"x": pa.int8()})
    with pytest.raises(PlanError, match="leave out dtypes="):
        read(tmp_path, schema=pa.schema([("x", pa.int8())]), dtypes={"x": pa.int8()})
    # a type that no text is parsed as
    kind = pa.list_(pa.int8(), 2)
    with pytest.raises(PlanError, match="schema= gives fixed_size_list"):
        read(tmp_path, schema=pa.schema([("x", kind)]))


def test_column_that_no_csv_file_has_raises(tmp_path: Path) -> None:
    write_csv(tmp_path / "a", ROWS)
    with pytest.raises(PlanError, match="schema= has a column 'xx', but no file has it: did you mean 'x'"):
        windrow.read_csv(tmp_path, schema=pa.schema([("xx", pa.int8())]))


def test_key_that_no_beginning_of_a_json_file_has_is_null(tmp_path: Path) -> None:
    """Later objects can have it, so it is no error."""
    write_json(tmp_path / "a", ROWS)
    ds = windrow.read_json(tmp_path, schema=pa.schema([("x", pa.int8()), ("late", pa.string())]))
    assert ds.take(1) == [{"x": 1, "late": None}]

"""groupby and aggregates: equal to Polars on every type, and errors that name the column."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.dataset.operations.example_tables import VALUES, in_blocks, plain, tables
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.exchange import exchange as exchange_module

ALL: dict[str, Any] = {
    "rows": "count",
    "n": ("x", "count"),
    "total": ("x", "sum"),
    "mean": ("x", "mean"),
    "least": ("x", "min"),
    "most": ("x", "max"),
    "spread": ("x", "std"),
}


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every few rows a task of their own."""
    monkeypatch.setattr(exchange_module, "_TASK_BYTES", 300)


def _expected(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Aggregate x in Python."""
    values = [row["x"] for row in rows if row["x"] is not None]
    count = len(values)
    mean = math.fsum(values) / count if count else None
    squares = math.fsum((value - mean) ** 2 for value in values) if mean is not None else 0.0
    return {
        "rows": len(rows),
        "n": count,
        "total": math.fsum(values) if count else None,
        "mean": mean,
        "least": min(values, default=None),
        "most": max(values, default=None),
        "spread": math.sqrt(squares / (count - 1)) if count > 1 else None,
    }


def _close(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if isinstance(value, float):
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-6), name
        else:
            assert found[name] == value, name


def _group(table: pa.Table, keys: list[str]) -> dict[Any, list[dict[str, Any]]]:
    groups: dict[Any, list[dict[str, Any]]] = {}
    rows = table.to_pylist()
    for row, key in zip(rows, plain(rows), strict=True):
        groups.setdefault(tuple(key[name] for name in keys), []).append(row)
    return groups


@settings(max_examples=15)
@given(
    table=tables(),
    keys=st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3, unique=True),
    block_bytes=st.integers(100, 3_000),
    target=st.integers(50, 3_000),
)
def test_groups_are_those_of_python(table: pa.Table, keys: list[str], block_bytes: int, target: int) -> None:
    grouped = in_blocks(table, block_bytes).groupby(keys, target_block_bytes=target)
    found = grouped.aggregate(**ALL).to_arrow()
    groups = _group(table, keys)
    order = in_blocks(table, 10**6).sort(keys).to_arrow()
    in_order = list(dict.fromkeys(tuple(row[name] for name in keys) for row in plain(order.to_pylist())))
    rows = plain(found.to_pylist())
    assert [tuple(row[name] for name in keys) for row in rows] == in_order
    for row, key in zip(found.to_pylist(), in_order, strict=True):
        _close({name: row[name] for name in ALL}, _expected(groups[key]))
    assert found.column_names == [*keys, *ALL]


@settings(max_examples=8)
@given(table=tables(), block_bytes=st.integers(100, 3_000))
def test_whole_datasets_and_unique(table: pa.Table, block_bytes: int) -> None:
    ds = in_blocks(table, block_bytes)
    _close(ds.aggregate(**ALL), _expected(table.to_pylist()))
    for name in VALUES:
        values = ds.unique(name)
        assert len(values) == len(plain_set := {str(v) for v in _flat(values)})
        assert plain_set == {str(v) for v in _flat(table[name].to_pylist())}


def _flat(values: list[Any]) -> list[Any]:
    return [row["v"] for row in plain([{"v": value} for value in values])]


@settings(max_examples=10)
@given(table=tables(), key=st.sampled_from(list(VALUES)), target=st.integers(100, 3_000))
def test_sums_and_extremes_of_other_types_are_polars(table: pa.Table, key: str, target: int) -> None:
    ds = in_blocks(table, 500)
    found = ds.aggregate(
        a=("integer", "sum"), b=("decimal", "sum"), c=("flag", "sum"), d=("text", "max"), e=("moment", "min")
    )
    rows = table.to_pylist()
    for name, column, combine in (
        ("a", "integer", sum),
        ("b", "decimal", sum),
        ("c", "flag", sum),
        ("d", "text", max),
        ("e", "moment", min),
    ):
        values = [row[column] for row in rows if row[column] is not None]
        assert found[name] == (combine(values) if values else None)


def test_short_forms_and_names() -> None:
    table = pa.table({"k": [1, 1, 2], "x": [1.0, 4.0, None], "y": [1, 2, 3]})
    grouped = in_blocks(table, 16).groupby("k")
    assert grouped.count().take() == [{"k": 1, "count()": 2}, {"k": 2, "count()": 1}]
    assert grouped.mean(["x", "y"]).take()[0] == {"k": 1, "mean(x)": 2.5, "mean(y)": 1.5}
    assert grouped.sum("y").take()[1] == {"k": 2, "sum(y)": 3}
    assert grouped.std("x", ddof=0).take() == [{"k": 1, "std(x)": 1.5}, {"k": 2, "std(x)": None}]
    assert grouped.min("x").take()[1] == {"k": 2, "min(x)": None}
    assert grouped.max("y").schema() == pa.schema([("k", pa.int64()), ("max(y)", pa.int64())])
    ds = in_blocks(table, 16)
    assert (ds.sum("y"), ds.mean("x"), ds.min("x"), ds.max("y"), ds.std("y")) == (6, 2.5, 1.0, 3, 1.0)


def test_std_of_large_numbers_does_not_cancel() -> None:
    values = 1e9 + np.arange(1_000) % 7
    assert in_blocks(pa.table({"x": values}), 200).std("x") == pytest.approx(values.std(ddof=1), rel=1e-9)


def test_map_groups_gets_whole_groups_in_stored_order() -> None:
    table = pa.table({"k": np.arange(900) % 7, "row": np.arange(900)})
    ds = in_blocks(table, 700)

    def check(group: dict[str, Any]) -> dict[str, Any]:
        assert (np.diff(group["row"]) == 7).all()
        return {"k": group["k"][:1], "n": [len(group["row"])]}

    found = ds.groupby("k").map_groups(check).take()
    assert found == [{"k": k, "n": 129 if k < 4 else 128} for k in range(7)]

    def fail(group: Any) -> Any:
        raise ValueError("no")

    with pytest.raises(TransformError, match=r"map_groups\(.*fail\).*no"):
        ds.groupby("k").map_groups(fail, batch_format="pandas").take()


def test_errors_name_the_column() -> None:
    ds = windrow.from_items([{"x": 1, "s": "a", "list": [1]}])
    with pytest.raises(PlanError, match="'y'"):
        ds.groupby("y")
    with pytest.raises(PlanError, match="'list' is list"):
        ds.groupby("list")
    with pytest.raises(PlanError, match="sum of column 's' needs numbers"):
        ds.groupby("x").sum("s")
    with pytest.raises(PlanError, match="median"):
        ds.groupby("x").aggregate(m=("x", "median"))
    with pytest.raises(PlanError, match="at least one"):
        ds.aggregate()
    with pytest.raises(PlanError, match="name of a key"):
        ds.groupby("x").aggregate(x="count")
    with pytest.raises(PlanError, match="ddof"):
        ds.std("x", ddof=-1)
    late = ds.map_batches(lambda batch: {"z": batch["x"]})
    with pytest.raises(PlanError, match="'x'"):
        late.groupby("x").count().take()


def test_flights_group_as_polars(flights_path: Path) -> None:
    schema = pl.read_parquet_schema(flights_path)
    numbers = [name for name, kind in schema.items() if kind.is_numeric()]
    key, value = numbers[0], numbers[1]
    ds = windrow.read_parquet(flights_path, target_block_bytes="8MiB").options(executor="threads")
    found = ds.groupby(key).aggregate(mean=(value, "mean"), spread=(value, "std"), rows="count").to_arrow()
    rows = pl.scan_parquet(flights_path).group_by(key)
    expected = rows.agg(mean=pl.mean(value), spread=pl.std(value), rows=pl.len()).sort(key, nulls_last=True)
    wanted = expected.collect()
    assert found[key].to_pylist() == wanted[key].to_list()
    assert found["rows"].to_pylist() == wanted["rows"].to_list()
    for name in ("mean", "spread"):
        pairs = zip(found[name].to_pylist(), wanted[name].to_list(), strict=True)
        # Polars computes means of float32 in float32
        assert all(a is b is None or a == pytest.approx(b, rel=1e-4, nan_ok=True) for a, b in pairs)

"""distinct: of equal rows the first one, on every type, and whatever the blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.dataset.operations.example_tables import VALUES, in_blocks, plain, tables
from windrow.core.errors import PlanError
from windrow.pipeline.exchange import exchange as exchange_module


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every few rows a task of their own."""
    monkeypatch.setattr(exchange_module, "_TASK_BYTES", 300)


def _first_rows(table: pa.Table, names: list[str]) -> list[dict[str, Any]]:
    rows = table.to_pylist()
    first: dict[Any, dict[str, Any]] = {}
    for row, key in zip(rows, plain(rows), strict=True):
        first.setdefault(tuple(key[name] for name in names), row)
    return list(first.values())


@settings(max_examples=20)
@given(
    table=tables(),
    names=st.lists(st.sampled_from(list(VALUES)), min_size=1, max_size=3, unique=True),
    block_bytes=st.integers(100, 3_000),
    target=st.integers(50, 3_000),
)
def test_the_first_of_equal_rows_is_kept(
    table: pa.Table, names: list[str], block_bytes: int, target: int
) -> None:
    expected = plain(_first_rows(table, names))
    ds = in_blocks(table, block_bytes)
    whole = ds.distinct(names).to_arrow()
    assert plain(whole.to_pylist()) == expected
    assert whole.schema == table.schema
    found = ds.distinct(names, target_block_bytes=target)
    blocks = [found._plan.source.reader.read(each) for each in _addresses(found)]
    for block in blocks:
        rows = block["row"].to_pylist()
        assert rows == sorted(rows)
    together = pa.concat_tables(blocks).sort_by("row")
    assert plain(together.to_pylist()) == expected
    assert found.to_arrow()["row"].to_pylist() == [
        row for block in blocks for row in block["row"].to_pylist()
    ]


def _addresses(ds: windrow.Dataset) -> Any:
    return ds._plan.source.addresses(range(ds.num_blocks()))


@settings(max_examples=10)
@given(table=tables(), block_bytes=st.integers(100, 3_000), target=st.integers(100, 3_000))
def test_all_columns_are_those_of_pandas(table: pa.Table, block_bytes: int, target: int) -> None:
    pytest.importorskip("pandas")
    chosen = table.select(["integer", "text", "flag"])
    twice = pa.concat_tables([chosen, chosen])
    found = in_blocks(twice, block_bytes).distinct(target_block_bytes=target).to_arrow()
    expected = chosen.to_pandas().drop_duplicates()
    assert found.num_rows == len(expected)
    order = [(name, "ascending") for name in chosen.column_names]
    by_pandas = pa.Table.from_pandas(expected, schema=chosen.schema, preserve_index=False)
    assert found.sort_by(order).equals(by_pandas.sort_by(order))


def test_few_rows_of_each_task_are_spilled() -> None:
    table = pa.table({"k": np.arange(4_000) % 3, "row": np.arange(4_000)})
    ds = in_blocks(table, 1_000).distinct("k", target_block_bytes=8_000)
    assert ds.num_blocks() == 8
    source = ds._plan.source
    spilled = source.exchange.run().rows  # type: ignore[attr-defined]
    assert len(spilled) > 10
    assert spilled.sum(axis=1).max() == 3
    assert sorted(row["row"] for row in ds.iter_rows()) == [0, 1, 2]


def test_row_ids_do_not_make_rows_distinct() -> None:
    table = pa.table({"x": [1, 1, 2]})
    ds = in_blocks(table, 8).options(row_id_column="id")
    assert ds.distinct().take() == [{"x": 1, "id": 0}, {"x": 2, "id": 2}]
    assert ds.distinct(["x", "id"]).count() == 3


def test_transforms_run_before_and_are_checked_then() -> None:
    ds = windrow.range(100).options(executor="threads").map_batches(lambda batch: {"y": batch["id"] % 7})
    assert [row["y"] for row in ds.distinct().iter_rows()] == list(range(7))
    assert ds.distinct().count() == 7
    with pytest.raises(PlanError, match="'id'"):
        ds.distinct("id").take()


@pytest.mark.parametrize("key", ["k", "row"])
def test_dictionaries_can_hold_nulls_and_repeat_values(key: str) -> None:
    index = pa.array([0, 1, 2, 3, None] * 20, pa.int8())
    dictionary = pa.array(["a", "a", None, "b"])
    table = pa.table({"k": pa.DictionaryArray.from_arrays(index, dictionary), "row": range(100)})
    ds = in_blocks(table, 100)
    assert ds.num_blocks() > 3
    expected = [{"k": "a", "row": 0}, {"k": None, "row": 2}, {"k": "b", "row": 3}]
    found = ds.distinct(key).to_arrow()
    assert found.to_pylist() == (expected if key == "k" else table.to_pylist())
    assert found.schema == table.schema
    assert ds.sort("row").to_arrow().to_pylist() == table.to_pylist()


def test_no_rows() -> None:
    ds = in_blocks(pa.table({"x": pa.array([], pa.int64())}), 10)
    assert ds.distinct().to_arrow().num_rows == 0
    assert "\n  .distinct('x')\n" in repr(ds.distinct("x"))


def test_errors_name_the_column() -> None:
    ds = windrow.from_items([{"x": 1, "list": [1], "s": "a"}])
    with pytest.raises(PlanError, match=r"'list' is list<.*compare others, as in distinct\(\['x', 's'\]\)"):
        ds.distinct()
    with pytest.raises(PlanError, match=r"'list' is list<.*cannot be compared here: use map_batches"):
        ds.distinct(["x", "list"])
    with pytest.raises(PlanError, match=r"distinct\('y'\).*'y'"):
        ds.distinct("y")
    with pytest.raises(PlanError, match="list of names"):
        ds.distinct([])
    with pytest.raises(PlanError, match="twice"):
        ds.distinct(["x", "x"])
    with pytest.raises(PlanError, match="target_block_bytes"):
        ds.distinct("x", target_block_bytes=0)
    assert ds.distinct(["x", "s"]).take() == [{"x": 1, "list": [1], "s": "a"}]

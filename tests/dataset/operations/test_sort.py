"""sort and random_shuffle: equal to Polars, stable, and a function of data and seed alone."""

from __future__ import annotations

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
from windrow.core.errors import PlanError
from windrow.pipeline.exchange import exchange as exchange_module


@pytest.fixture(autouse=True)
def small_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give every few rows a task of their own."""
    monkeypatch.setattr(exchange_module, "_TASK_BYTES", 300)


def _order(value: Any, *, down: bool) -> Any:
    """Return a sort key in ascending order: values, NaN, nulls."""
    if value is None:
        return (2, 0)
    if value != value:
        return (1, 0)
    return (0, _Reversed(value) if down else value)


class _Reversed:
    def __init__(self, value: Any) -> None:
        self.value = value

    def __lt__(self, other: _Reversed) -> bool:
        return bool(other.value < self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Reversed) and bool(self.value == other.value)

    __hash__ = None  # type: ignore[assignment]


@settings(max_examples=15)
@given(
    table=tables(),
    keys=st.lists(st.tuples(st.sampled_from(list(VALUES)), st.booleans()), min_size=1, max_size=3),
    block_bytes=st.integers(100, 3_000),
    target=st.integers(100, 5_000),
)
def test_sort_is_stable_with_nan_and_nulls_last(
    table: pa.Table, keys: list[tuple[str, bool]], block_bytes: int, target: int
) -> None:
    names = list(dict.fromkeys(name for name, _ in keys))
    down = [dict(keys)[name] for name in names]
    found = in_blocks(table, block_bytes).sort(names, down, target_block_bytes=target).to_arrow()
    expected = table.to_pylist()
    # Python's sort is stable
    expected.sort(key=lambda row: [_order(row[name], down=d) for name, d in zip(names, down, strict=True)])
    assert plain(found.to_pylist()) == plain(expected)
    assert found.schema == table.schema


def test_equal_keys_are_divided_between_partitions() -> None:
    table = pa.table({"k": np.zeros(4_000, np.int64), "row": np.arange(4_000)})
    ds = in_blocks(table, 1_000).sort("k", target_block_bytes=8_000)
    assert ds.num_blocks() == 8
    source = ds._plan.source
    counts = source.count_blocks()  # type: ignore[attr-defined]
    assert counts.max() < 1_000
    assert ds.to_arrow()["row"].to_pylist() == list(range(4_000))


def test_sorted_data_fills_partitions_evenly() -> None:
    rows = np.arange(20_000)
    ds = in_blocks(pa.table({"row": rows}), 2_000).sort("row", descending=True, target_block_bytes=16_000)
    counts = ds._plan.source.count_blocks()  # type: ignore[attr-defined]
    assert len(counts) == 10
    assert counts.max() < 1.5 * counts.mean()
    assert ds.to_arrow()["row"].to_pylist() == rows[::-1].tolist()


@settings(max_examples=10)
@given(table=tables(), block_bytes=st.integers(100, 3_000), seed=st.integers(0, 2**40))
def test_shuffle_is_a_permutation_whatever_the_blocks(table: pa.Table, block_bytes: int, seed: int) -> None:
    found = in_blocks(table, block_bytes).random_shuffle(seed=seed, target_block_bytes=700)
    assert found.count() == table.num_rows
    whole = in_blocks(table, 10**6).random_shuffle(seed=seed).to_arrow()
    shuffled = found.to_arrow()
    assert plain(shuffled.to_pylist()) == plain(whole.to_pylist())
    assert sorted(shuffled["row"].to_pylist()) == list(range(table.num_rows))
    by_row = sorted(shuffled.to_pylist(), key=lambda row: row["row"])
    assert plain(by_row) == plain(table.to_pylist())


def test_golden_shuffle_and_other_seeds() -> None:
    ds = windrow.range(8)
    orders = [[row["id"] for row in ds.random_shuffle(seed=seed).iter_rows()] for seed in (7, 8)]
    assert orders[0] == [3, 5, 1, 0, 7, 4, 6, 2]
    assert orders[1] != orders[0]
    assert "random_shuffle(seed=" in repr(ds.random_shuffle())


def test_transforms_and_filters_run_before() -> None:
    ds = windrow.range(100).options(executor="threads")
    even = ds.map_batches(lambda batch: {"y": -batch["id"][batch["id"] % 2 == 0]}, preserves_rows=False)
    assert [row["y"] for row in even.sort("y").iter_rows()] == list(range(-98, 2, 2))
    assert sorted(row["y"] for row in even.random_shuffle(seed=1).iter_rows()) == list(range(-98, 2, 2))
    with pytest.raises(PlanError, match="'id'"):
        even.sort("id").take()


def test_errors() -> None:
    ds = windrow.from_items([{"x": 1, "list": [1]}])
    with pytest.raises(PlanError, match="'y'"):
        ds.sort("y")
    with pytest.raises(PlanError, match=r"'list' is list<.*no order"):
        ds.sort("list")
    with pytest.raises(PlanError, match="descending"):
        ds.sort(["x"], [True, False])
    with pytest.raises(PlanError, match="twice"):
        ds.sort(["x", "x"])
    with pytest.raises(PlanError, match="seed"):
        ds.random_shuffle(seed="a")  # type: ignore[arg-type]


def test_flights_sort_as_polars(flights_path: Path) -> None:
    names = pl.read_parquet_schema(flights_path)
    numbers = [name for name, kind in names.items() if kind.is_numeric()][:3]
    ds = windrow.read_parquet(flights_path, columns=numbers, target_block_bytes="8MiB").limit(300_000)
    found = ds.options(executor="threads").sort(numbers, target_block_bytes="2MiB").to_arrow()
    rows = pl.read_parquet(flights_path, columns=numbers).head(300_000)
    expected = rows.sort(numbers, nulls_last=True, maintain_order=True)
    assert pl.DataFrame(found).equals(expected)

"""union, zip, limit, repartition and splits: the same rows in other blocks, as slices of a list."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windrow
from tests.dataset.example_sources import make_source
from tests.dataset.operations.example_tables import in_blocks
from windrow.core.errors import PlanError, SourceError
from windrow.dataset.logical_plan import LogicalPlan

SIZES = st.lists(st.integers(0, 9), min_size=1, max_size=6)


def _dataset(sizes: list[int], *, rows_known: bool = True) -> windrow.Dataset:
    ds = windrow.Dataset(LogicalPlan(make_source(*sizes, rows_known=rows_known)))
    return ds.options(executor="threads", progress=False)


def _rows(ds: windrow.Dataset) -> list[int]:
    return [row["x"] for row in ds.iter_rows()]


def _only_even(batch: Any) -> Any:
    return {"x": batch["x"][batch["x"] % 2 == 0]}


@settings(max_examples=15)
@given(sizes=SIZES, known=st.booleans(), filtered=st.booleans(), n=st.integers(1, 60))
def test_limit_union_and_repartition(sizes: list[int], known: bool, filtered: bool, n: int) -> None:
    ds = _dataset(sizes, rows_known=known)
    rows = list(range(sum(sizes)))
    if filtered:
        ds, rows = ds.map_batches(_only_even, preserves_rows=False), rows[::2]
    assert _rows(ds.limit(n)) == rows[:n]
    assert ds.limit(n).count() == len(rows[:n])
    assert _rows(ds.union(ds.limit(n), ds)) == rows + rows[:n] + rows
    parts = ds.repartition(n)
    assert parts.num_blocks() == n
    assert _rows(parts) == rows
    counts = parts._plan.source.blocks.rows
    assert counts.max() - counts.min() <= 1
    assert _rows(ds.repartition(target_bytes=n)) == rows


@settings(max_examples=12)
@given(sizes=SIZES, known=st.booleans(), places=st.lists(st.integers(0, 50), min_size=1, max_size=4))
def test_splits_are_slices(sizes: list[int], known: bool, places: list[int]) -> None:
    rows, borders = list(range(sum(sizes))), sorted(places)
    parts = _dataset(sizes, rows_known=known).split_at_indices(borders)
    cut = [0, *borders, len(rows)]
    assert [_rows(part) for part in parts] == [rows[a:b] for a, b in pairwise(cut)]
    train, test = _dataset(sizes, rows_known=known).train_test_split(0.3)
    assert _rows(train) + _rows(test) == rows
    assert test.count() == -(-len(rows) * 3 // 10)


def test_limit_reads_only_the_blocks_that_it_needs() -> None:
    for known, expected in ((True, [0, 1]), (False, [0, 1, 2, 3])):
        source = make_source(*[3] * 40, rows_known=known)
        ds = windrow.Dataset(LogicalPlan(source)).options(executor="threads")
        assert _rows(ds.limit(5)) == list(range(5))
        # where rows are counted, as many blocks are read ahead as there are cores
        assert set(source.reader.reads) <= set(expected) or (not known and max(source.reader.reads) < 16)


def test_proportions_are_as_written() -> None:
    assert [part.count() for part in windrow.range(10).split_proportionately([0.1, 0.2, 0.3])] == [1, 2, 3, 4]
    for wrong in ([0.5, 0.5], [], [-0.1], [1.2]):
        with pytest.raises(PlanError, match="split_proportionately"):
            windrow.range(10).split_proportionately(wrong)
    for places in ([], [3, 2], [-1]):
        with pytest.raises(PlanError, match="split_at_indices"):
            windrow.range(10).split_at_indices(places)


@settings(max_examples=12)
@given(left=SIZES, right=SIZES, known=st.booleans())
def test_zip_is_row_by_row(left: list[int], right: list[int], known: bool) -> None:
    rows = min(sum(left), sum(right))
    if not rows:
        return
    pair = [_dataset(sizes, rows_known=known).limit(rows) for sizes in (left, right)]
    zipped = pair[0].zip(pair[1]).zip(pair[1].map_batches(lambda batch: {"y": batch["x"] * 2}))
    assert zipped.columns() == ["x", "x_1", "y"]
    assert [tuple(row.values()) for row in zipped.iter_rows()] == [(i, i, 2 * i) for i in range(rows)]


def test_zip_and_union_refuse_what_does_not_fit() -> None:
    with pytest.raises(PlanError, match="4 and 5"):
        windrow.range(4).zip(windrow.range(5))
    with pytest.raises(PlanError, match="give it a Dataset"):
        windrow.range(4).zip([1])  # type: ignore[arg-type]
    with pytest.raises(SourceError, match=r"column 'id' is string.*int64"):
        windrow.range(4).union(windrow.from_items([{"id": "a"}]))
    wide = windrow.range(1).union(windrow.from_arrow(pa.table({"id": pa.array([7], pa.int8())})))
    assert _ids(wide) == [0, 7]
    for wrong in ((None, None), (2, 3), (0, None)):
        with pytest.raises(PlanError, match=r"repartition|n=0"):
            windrow.range(4).repartition(wrong[0], target_bytes=wrong[1])


def _ids(ds: windrow.Dataset) -> list[int]:
    return [row["id"] for row in ds.iter_rows()]


def test_repartition_by_keeps_values_together() -> None:
    table = pa.table({"k": [f"v{i % 23}" for i in range(500)], "row": np.arange(500)})
    ds = in_blocks(table, 400).repartition(4, by="k")
    source = ds._plan.source
    blocks = [source.reader.read(address) for address in source.addresses(range(4))]
    values = [set(block["k"].to_pylist()) for block in blocks]
    assert sum(map(len, values)) == 23
    assert all(block["row"].to_pylist() == sorted(block["row"].to_pylist()) for block in blocks)
    assert sorted(row["row"] for row in ds.iter_rows()) == list(range(500))
    with pytest.raises(PlanError, match="'j'"):
        in_blocks(table, 400).repartition(by="j")
    with pytest.raises(PlanError, match="no hash"):
        windrow.from_items([{"x": [1]}]).repartition(2, by="x")


def test_train_test_split_by_value_is_stable_as_data_grows() -> None:
    small, large = (windrow.range(n).train_test_split(0.25, by="id") for n in (1_000, 3_000))
    before, after = set(_ids(small[1])), set(_ids(large[1]))
    assert before == {row for row in after if row < 1_000}
    assert set(_ids(small[0])) | before == set(range(1_000))
    assert 200 < len(before) < 300
    other = set(_ids(windrow.range(1_000).train_test_split(0.25, by="id", seed=3)[1]))
    assert other != before
    # golden: which rows are test rows never changes
    assert sorted(before)[:8] == [0, 4, 5, 16, 20, 25, 26, 31]
    for wrong in (0, 1, 1.5, "a"):
        with pytest.raises(PlanError, match="test_size"):
            windrow.range(4).train_test_split(wrong)  # type: ignore[arg-type]


def test_train_test_split_with_a_seed_shuffles_once() -> None:
    train, test = windrow.range(100).train_test_split(0.2, seed=5)
    shuffled = _ids(windrow.range(100).random_shuffle(seed=5))
    assert (_ids(train), _ids(test)) == (shuffled[:80], shuffled[80:])
    assert train._plan.source.parents[0].source is test._plan.source.parents[0].source  # type: ignore[attr-defined]


def test_derived_rows_have_ids_and_lineage() -> None:
    ds = windrow.range(20).repartition(4).options(row_id_column="row")
    assert [row["row"] for row in ds.iter_rows()] == list(range(20))
    assert ds.row_lineage([7])[0][1:] == (1, 2)
    # the column of row ids is data for what comes after
    assert windrow.range(3).options(row_id_column="row").sort("row", descending=True).take()[0]["row"] == 2

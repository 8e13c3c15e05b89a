"""The ``to_*`` methods: values, order of rows, and errors."""

from __future__ import annotations

import datetime

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import windrow
from tests.dataset.same_rows_sources import make_rows
from windrow import PlanError
from windrow.dataset.export import conversions

ROWS = make_rows(50)


def _pipe(dataset: windrow.Dataset) -> windrow.DatasetPipeline:
    pipe = dataset.window(blocks_per_window=2).repeat(3).random_shuffle_each_window(seed=3)
    return pipe.options(executor="threads", progress=False)


@pytest.fixture
def dataset() -> windrow.Dataset:
    return windrow.from_arrow(ROWS, target_block_bytes=300)


def test_one_pass_in_order(dataset: windrow.Dataset) -> None:
    assert dataset.to_arrow().equals(ROWS)
    assert dataset.to_arrow(limit=3).equals(ROWS.slice(0, 3))
    (order,) = ([row["x"] for row in epoch.iter_rows()] for epoch in _pipe(dataset).iter_epochs(max_epoch=1))
    assert sorted(order) == list(range(50)) != order
    assert _pipe(dataset).to_numpy()["x"].tolist() == order
    assert _pipe(dataset).to_pandas(limit=20)["x"].tolist() == order[:20]
    arrays = dataset.to_numpy()
    assert arrays["vector"].shape == (50, 3)
    assert arrays["vector"].flags.writeable


def test_transforms_and_no_rows(dataset: windrow.Dataset) -> None:
    even = dataset.map_batches(lambda b: {"y": b["x"][b["x"] % 2 == 0]}, preserves_rows=False)
    assert even.to_pandas()["y"].tolist() == list(range(0, 50, 2))
    none = windrow.range(0)
    assert none.to_arrow().schema == none.schema()
    assert none.to_pandas().columns.tolist() == ["id"]
    assert none.to_numpy()["id"].shape == (0,)


def test_more_than_free_memory_raises(dataset: windrow.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversions, "free_memory_bytes", lambda: 1500)
    assert dataset.to_arrow().num_rows == 50  # 50 rows of 29 bytes
    for convert in (dataset.to_pandas, dataset.to_numpy, _pipe(dataset).to_pandas):
        with pytest.raises(PlanError, match=r"would hold about 2\.8 KiB in memory, and 1\.5 KiB are free"):
            convert()
        assert len(convert(limit=5)) in (4, 5)
    with pytest.raises(PlanError, match="limit=0"):
        dataset.to_arrow(limit=0)


def test_dask_has_one_partition_per_block_and_common_types() -> None:
    dd = pytest.importorskip("dask.dataframe")
    table = pa.table({"x": [1, 2, None, 4], "y": [True, False, True, True], "z": ["a", None, "b", "c"]})
    frame = windrow.from_arrow(table, target_block_bytes=20).to_dask()
    assert frame.npartitions > 1
    kinds = {
        str(frame.partitions[i].compute(scheduler="synchronous")["x"].dtype) for i in range(frame.npartitions)
    }
    assert kinds == {"Int64"} == {str(frame.dtypes["x"])}
    assert str(frame.dtypes["y"]) == "bool"
    whole = frame.compute(scheduler="synchronous")
    assert whole["z"].isna().tolist() == [False, True, False, False]
    rows = windrow.from_dask(dd.from_pandas(pd.DataFrame({"x": range(10)}), npartitions=3))
    shuffled = _pipe(rows)
    expected = shuffled.to_numpy()["x"].tolist()
    assert shuffled.to_dask().compute(scheduler="synchronous")["x"].tolist() == expected
    doubled = rows.map_batches(lambda b: {"x": b["x"] * 2}).to_dask()
    assert int(doubled["x"].sum().compute(scheduler="synchronous")) == 90


@pytest.mark.parametrize("shuffled", [False, True])
def test_dask_keeps_arrays_dates_and_bytes(shuffled: bool) -> None:
    pytest.importorskip("dask.dataframe")
    row = {"x": np.ones((2, 2)), "day": datetime.date(2020, 1, 1), "raw": b"\xff", "text": "t"}
    ds = windrow.from_items([row] * 4, target_block_bytes=60)
    frame = (ds.repeat(1).random_shuffle_each_window(seed=1) if shuffled else ds).to_dask()
    for found in frame.compute().to_dict("records"):
        assert found["x"].tolist() == [[1, 1], [1, 1]]
        assert (found["day"], found["raw"], found["text"]) == (row["day"], b"\xff", "t")


def test_huggingface_round_trip(dataset: windrow.Dataset) -> None:
    datasets = pytest.importorskip("datasets")
    found = dataset.to_huggingface()
    assert isinstance(found, datasets.Dataset)
    assert found.with_format("numpy")[:]["vector"].tolist() == dataset.to_numpy()["vector"].tolist()
    back = windrow.from_huggingface(found)
    assert back.to_numpy()["vector"].tolist() == dataset.to_numpy()["vector"].tolist()
    assert _pipe(dataset).to_huggingface(limit=4)["x"][:] == _pipe(dataset).to_numpy()["x"][:4].tolist()

"""XGBoost and LightGBM: every row in every pass, the model of data in memory, several processes, clear errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xgboost

import windrow
from tests.conftest import REPOSITORY
from tests.library_versions import is_older
from windrow import PlanError

ROWS = 2_000
PARAMS = {"max_depth": 3, "tree_method": "hist", "nthread": 1}
LIGHT = {"verbose": -1, "num_threads": 1, "min_data_in_bin": 1}


@pytest.fixture(scope="module")
def table() -> pa.Table:
    """A key, features with few values and with missing ones, and a label that follows from them."""
    key = np.arange(ROWS)
    sparse = [None if k % 7 == 0 else int(k % 11) for k in key]
    label = (key * 37 % 100 + key % 11).astype(np.float64)
    return pa.table(
        {"key": key, "a": (key * 37 % 100).astype(np.float32), "b": sparse, "y": label, "w": 1.0 + key % 3}
    )


@pytest.fixture(scope="module")
def dataset(table: pa.Table, tmp_path_factory: pytest.TempPathFactory) -> windrow.Dataset:
    """The same rows in several blocks."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    pq.write_table(table, path, row_group_size=300)
    return windrow.read_parquet(str(path), target_block_bytes=1)


def _in_memory(table: pa.Table) -> np.ndarray[Any, Any]:
    b = [np.nan if v is None else v for v in table["b"].to_pylist()]
    return np.column_stack([table["a"].to_numpy(), b])


def test_xgboost_model_is_that_of_data_in_memory(dataset: windrow.Dataset, table: pa.Table) -> None:
    columns: Any = {"feature_columns": ["a", "b"], "weight_column": "w", "batch_size": 170}
    streamed = xgboost.QuantileDMatrix(dataset.to_xgboost("y", **columns))
    memory = xgboost.QuantileDMatrix(
        _in_memory(table), label=table["y"].to_numpy(), weight=table["w"].to_numpy()
    )
    assert streamed.feature_names == ["a", "b"]
    assert np.array_equal(streamed.get_label(), memory.get_label())
    assert np.array_equal(streamed.get_weight(), memory.get_weight())
    found, expected = (xgboost.train(PARAMS, matrix, 5).predict(matrix) for matrix in (streamed, memory))
    assert np.allclose(found, expected)


@pytest.mark.skipif(is_older("xgboost-cpu", 3), reason="XGBoost before 3.0 has no ExtMemQuantileDMatrix")
def test_xgboost_in_external_memory(dataset: windrow.Dataset, tmp_path: Path) -> None:
    rows = dataset.to_xgboost("key", feature_columns=["a"], batch_size=170, cache_prefix=str(tmp_path / "x"))
    matrix = xgboost.ExtMemQuantileDMatrix(rows)
    assert matrix.num_row() == ROWS
    assert sorted(matrix.get_label().tolist()) == list(range(ROWS))


def test_categories(tmp_path: Path) -> None:
    words = pa.array(["red", "blue", "green"] * 40).dictionary_encode()
    data = windrow.from_arrow(pa.table({"c": words, "y": list(range(120))}))
    matrix = xgboost.QuantileDMatrix(data.to_xgboost("y", batch_size=50), enable_categorical=True)
    assert matrix.feature_types == ["c"]


def test_xgboost_in_two_processes(dataset: windrow.Dataset, table: pa.Table, tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    pq.write_table(table, path, row_group_size=300)
    script = """
import json, sys, xgboost, windrow
from xgboost.collective import CommunicatorContext
rank, port, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
with CommunicatorContext(dmlc_tracker_uri="127.0.0.1", dmlc_tracker_port=port, dmlc_task_id=str(rank)):
    shard = windrow.read_parquet(path).options(executor="threads").split(2)[rank]
    matrix = xgboost.QuantileDMatrix(shard.to_xgboost("key", feature_columns=["a"], batch_size=170))
    model = xgboost.train({"max_depth": 2, "nthread": 1}, matrix, 2)
    print(json.dumps([matrix.get_label().tolist(), model.get_dump()]))
"""
    from xgboost.tracker import RabitTracker

    tracker = RabitTracker(2, host_ip="127.0.0.1")
    tracker.start()
    port = str(tracker.worker_args()["dmlc_tracker_port"])
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(rank), port, str(path)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (first, model), (second, other) = (
        json.loads(each.communicate(timeout=120)[0].splitlines()[-1]) for each in processes
    )
    tracker.wait_for(timeout=60)
    assert sorted(first + second) == list(range(ROWS))
    assert len(first) == len(second)
    assert model == other


@pytest.mark.parametrize("batch_size", [170, 10_000])
def test_lightgbm_model_is_that_of_data_in_memory(
    dataset: windrow.Dataset, table: pa.Table, batch_size: int
) -> None:
    shard = dataset.split(1)[0]
    for rows in (dataset, shard):
        streamed = rows.to_lightgbm(
            "y", feature_columns=["a", "b"], weight_column="w", batch_size=batch_size, params=LIGHT
        )
        memory = lightgbm.Dataset(
            _in_memory(table), table["y"].to_numpy(), weight=table["w"].to_numpy(), params=LIGHT
        )
        found, expected = (lightgbm.train(LIGHT, data, 5) for data in (streamed, memory))
        assert streamed.feature_name == ["a", "b"]
        assert np.array_equal(streamed.get_label(), table["y"].to_numpy())
        assert np.array_equal(found.predict(_in_memory(table)), expected.predict(_in_memory(table)))
    shard.close()


def test_lightgbm_validation_data_has_the_bins_of_the_training_data(dataset: windrow.Dataset) -> None:
    training = dataset.to_lightgbm("y", feature_columns=["a"], params=LIGHT)
    valid = dataset.to_lightgbm("y", feature_columns=["a"], params=LIGHT, reference=training)
    scores: dict[str, Any] = {}
    lightgbm.train(
        LIGHT | {"objective": "l2"},
        training,
        2,
        [training, valid],
        ["a", "b"],
        callbacks=[lightgbm.record_evaluation(scores)],
    )
    assert scores["a"] == scores["b"]


def test_bad_use(dataset: windrow.Dataset) -> None:
    pipe = dataset.repeat(2).random_shuffle_each_window(seed=1)
    with (
        pipe.iterator() as shard,
        pytest.raises(PlanError, match=r"to_xgboost\(\) reads the rows in several passes"),
    ):
        shard.to_xgboost("y")
    with pytest.raises(PlanError, match="label_column names columns that do not exist: 'z'"):
        dataset.to_lightgbm("z")
    with pytest.raises(PlanError, match="feature_columns names columns that do not exist: 'z'"):
        xgboost.QuantileDMatrix(dataset.to_xgboost("y", feature_columns=["z"]))
    with pytest.raises(PlanError, match="feature_columns='a' must be a list"):
        dataset.to_xgboost("y", feature_columns="a")
    with pytest.raises(PlanError, match="batch_size=0"):
        dataset.to_xgboost("y", batch_size=0)
    text = windrow.from_items([{"t": "a", "y": 1}])
    with pytest.raises(PlanError, match=r"column 't' \(.*string\) does not hold numbers"):
        text.to_lightgbm("y")

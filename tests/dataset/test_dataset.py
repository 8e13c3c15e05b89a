"""Dataset: first rows, laziness, pickling, and the arguments it passes on."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.dataset.example_sources import make_source
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan


def _doubled(batch: Any, by: int = 2, *, more: int = 0) -> Any:
    return {"x": batch["x"] * by + more}


@pytest.fixture
def dataset() -> Dataset:
    return Dataset(LogicalPlan(make_source(3, 0, 4)))


def test_facts(dataset: Dataset) -> None:
    assert dataset.columns() == ["x"]
    assert dataset.schema() == pa.schema([("x", pa.int64())])
    assert dataset.count() == 7
    assert dataset.num_blocks() == 3
    assert dataset.size_bytes() == 7 * 8


def test_take(dataset: Dataset) -> None:
    assert dataset.take(2) == [{"x": 0}, {"x": 1}]
    assert dataset.take() == [{"x": x} for x in range(7)]
    assert Dataset(LogicalPlan(make_source(0))).take() == []


def test_take_batch(dataset: Dataset) -> None:
    batch = dataset.take_batch(4)
    assert batch["x"].tolist() == [0, 1, 2, 3]
    batch["x"][0] = 9  # batches are copies
    assert dataset.take_batch(1)["x"].tolist() == [0]
    assert dataset.take_batch(2, batch_format="pyarrow").to_pydict() == {"x": [0, 1]}
    assert dataset.take_batch(batch_format="pandas")["x"].tolist() == list(range(7))
    assert Dataset(LogicalPlan(make_source(0))).take_batch()["x"].dtype == np.int64


def test_small_batch_does_not_keep_its_block_in_memory() -> None:
    table = Dataset(LogicalPlan(make_source(10_000))).take_batch(2, batch_format="pyarrow")
    assert table.get_total_buffer_size() < 1_000


def test_show(dataset: Dataset, capsys: pytest.CaptureFixture[str]) -> None:
    dataset.show(2)
    assert capsys.readouterr().out == "{'x': 0}\n{'x': 1}\n"


def test_map_batches(dataset: Dataset) -> None:
    mapped = dataset.map_batches(_doubled, fn_args=(3,), fn_kwargs={"more": 1})
    assert mapped.take(3) == [{"x": 1}, {"x": 4}, {"x": 7}]
    assert dataset.take(1) == [{"x": 0}]


def test_every_iteration_is_in_stored_order(dataset: Dataset) -> None:
    for _ in range(2):
        assert [batch["x"].tolist() for batch in dataset.iter_batches(5)] == [[0, 1, 2, 3, 4], [5, 6]]
    assert [row["x"] for row in dataset.iter_rows()] == list(range(7))
    assert len(dataset.iter_batches(5)) == 2


def test_iterating_never_starts_ray(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert sum(1 for _ in dataset.options(executor="ray").iter_rows()) == 7


def test_torch(dataset: Dataset) -> None:
    pytest.importorskip("torch")
    (batch,) = dataset.iter_torch_batches()
    assert batch["x"].tolist() == list(range(7))
    ((features, label),) = dataset.map_batches(lambda b: {"a": b["x"], "b": b["x"]}).to_torch(
        label_column="b"
    )
    assert features.shape == (7, 1)
    assert label.shape == (7, 1)


def test_each_call_of_a_split_shard_starts_one_pass(dataset: Dataset) -> None:
    left, right = dataset.options(executor="threads").split(2)
    for _ in range(2):
        rows = [[b["x"].tolist() for b in shard.iter_batches(2)] for shard in (left, right)]
        assert rows == [[[0, 1], [4, 5]], [[2, 3], [6]]]
    left.close()
    right.close()


@pytest.mark.parametrize("chain_step", ["window", "repeat"])
def test_building_a_pipeline_reads_nothing(chain_step: str) -> None:
    dataset = Dataset(LogicalPlan(make_source(3, 4, refuses=True)))
    pipe = dataset.map_batches(_doubled).window() if chain_step == "window" else dataset.repeat(2)
    pipe = pipe.random_shuffle_each_window(seed=1).map_batches(_doubled).options(memory_limit="1GiB")
    assert repr(pipe)
    assert pipe.count() == 7
    assert pipe.explain(2, batch_size=2).steps == 2
    assert pickle.loads(pickle.dumps(pipe)).count() == 7
    with pytest.raises(AssertionError, match="table 0 is read"):
        dataset.take()


def test_immutable_and_picklable(dataset: Dataset) -> None:
    with pytest.raises(AttributeError):
        dataset._plan = LogicalPlan(make_source(1))  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(dataset.map_batches(_doubled)))
    assert isinstance(copy, Dataset)
    assert copy.take(2) == [{"x": 0}, {"x": 2}]


def test_repr(dataset: Dataset) -> None:
    assert repr(dataset.map_batches(_doubled)) == "Dataset\n  TableSource(3 tables)\n  .map_batches(_doubled)"


BAD_CALLS = {
    "take(0)": r"limit=0 must be an integer of 1 or more",
    "take(-1)": r"limit=-1 must be",
    "take(True)": r"limit=True must be",
    "take(2.5)": r"limit=2.5 must be",
    "show(0)": r"limit=0 must be",
    "take_batch(0)": r"batch_size=0 must be",
    "take_batch(2, batch_format='polars')": r"batch_format='polars' is unknown",
    "map_batches(3)": r"map_batches got 3, which cannot be called",
    "map_batches(len, batch_format='dict')": r"batch_format='dict' is unknown",
    "map_batches(len, batch_size=0)": r"batch_size=0 must be an integer of 1 or more, or None",
    "map_batches(len, fn_args=3)": r"fn_args=3 must be a tuple",
    "map_batches(len, fn_kwargs=3)": r"fn_kwargs=3 must be a dict",
    "map_batches(len, preserves_rows=1)": r"preserves_rows=1 must be True or False",
    "window(blocks_per_window=1, bytes_per_window=1)": r"gives both sizes",
    "repeat(0)": r"times=0 must be",
    "split(0)": r"n=0 must be an integer of 1 or more",
    "split(-2)": r"n=-2 must be",
    "split(True)": r"n=True must be",
    "split(2, equal='yes')": r"equal='yes' must be True, False or 'pad'",
    "split(2, locality_hints=[None])": r"locality_hints has 1 entries for 2 shards",
    "split(2, locality_hints='ab')": r"locality_hints='ab' must be a list",
    "save_manifest('here')": r"TableSource\(3 tables\) has no manifest to save",
    "options(executor='dask')": r"executor='dask' must be one of",
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_bad_calls(dataset: Dataset, call: str) -> None:
    with pytest.raises(PlanError, match=BAD_CALLS[call]):
        eval(f"dataset.{call}", {"dataset": dataset})


def test_manifest_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / "a.parquet")
    given = windrow.read_parquet(str(tmp_path))
    given.save_manifest(tmp_path / "manifest")
    again = windrow.read_parquet(None, manifest=tmp_path / "manifest")
    assert again.take() == given.take()
    assert again.count() == 3

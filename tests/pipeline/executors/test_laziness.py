"""Building a pipeline reads footers and nothing else."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.pipeline.executors.refusing import RefusedError, RefusingExecutor
from windrow.io.parquet.block_reader import ParquetReader


@pytest.fixture
def path(tmp_path: Path) -> Path:
    table = pa.table({"x": np.arange(100), "y": np.arange(100) / 7})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=10)
    return tmp_path / "rows.parquet"


@pytest.fixture
def no_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RefusedError("a block is read")

    monkeypatch.setattr(ParquetReader, "read", refuse)
    monkeypatch.setattr(ParquetReader, "parts", refuse)


def build(path: Path) -> windrow.DatasetPipeline:
    dataset = windrow.read_parquet(path).options(executor=RefusingExecutor())
    return (
        dataset.window(blocks_per_window=1)
        .repeat(3)
        .map_batches(lambda batch: batch)
        .random_shuffle_each_window(seed=7)
        .map_batches(lambda batch: batch)
    )


@pytest.mark.usefixtures("no_reading")
def test_a_chain_is_built_and_explained_without_running(path: Path) -> None:
    pipe = build(path)
    assert "seed=7" in repr(pipe)
    assert pipe.explain().rows == 100
    pickle.dumps(windrow.read_parquet(path).repeat(2).random_shuffle_each_window(seed=1))


@pytest.mark.usefixtures("no_reading")
def test_counts_and_sizes_come_from_footers(path: Path) -> None:
    dataset = windrow.read_parquet(path, columns=["x"])
    assert (dataset.count(), dataset.columns(), dataset.size_bytes()) == (100, ["x"], 800)


@pytest.mark.parametrize("run", ["split", "iterator", "shard"])
def test_iterating_shard_does_not_pickle(path: Path, run: str) -> None:
    pipe = build(path)
    calls: dict[str, Callable[[], object]] = {
        "split": lambda: pipe.split(2),
        "iterator": pipe.iterator,
        "shard": lambda: pipe.shard(rank=0, world_size=2),
    }
    with pytest.raises(RefusedError):
        calls[run]()


def test_guard_against_reading_works(path: Path, no_reading: None) -> None:
    with pytest.raises(RefusedError):
        windrow.read_parquet(path).take(1)


_WITHOUT_PANDAS = """
import importlib, pkgutil, sys
sys.modules["pandas"] = None
import windrow.pipeline.executors.ray as package
# what makes Ray datasets, and what ranks of Ray Train use
other = ("ray_dataset", "train_config")
for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
    if not module.name.endswith(other):
        importlib.import_module(module.name)
print("ray.data" in sys.modules)
"""


def test_runs_on_ray_do_not_need_ray_data() -> None:
    """It needs pandas, which neither Ray nor windrow's extra for it installs."""
    found = subprocess.run(
        [sys.executable, "-c", _WITHOUT_PANDAS], capture_output=True, text=True, timeout=120, check=True
    )
    assert found.stdout == "False\n"

"""Where the objects of classes are made during a write: by its workers, and not once more in the driver."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow.core.errors import PlanError

DRIVER = os.getpid()


class Model:
    """Leaves a file for each object that is made, named by its process and thread."""

    def __init__(self, folder: Path) -> None:
        (folder / f"{os.getpid()}-{threading.get_ident()}-{len(list(folder.iterdir()))}").touch()

    def __call__(self, batch: Any) -> Any:
        return {"y": batch["x"] * 2}


def made_in(folder: Path) -> list[int]:
    return [int(path.name.split("-")[0]) for path in folder.iterdir()]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    return tmp_path / "made"


def scored(made: Path, compute: Any, executor: str = "threads") -> windrow.Dataset:
    rows = windrow.from_arrow(pa.table({"x": np.arange(100)})).options(executor=executor)
    return rows.map_batches(Model, fn_constructor_args=(made,), compute=compute)


@pytest.mark.parametrize("is_pipeline", [False, True])
def test_a_model_in_a_pool_is_loaded_by_its_workers_alone(
    made: Path, tmp_path: Path, is_pipeline: bool
) -> None:
    ds = scored(made, windrow.ActorPool(size=1))
    (ds.repeat(1) if is_pipeline else ds).write_parquet(tmp_path / "out")
    assert len(made_in(made)) == 1
    assert DRIVER not in made_in(made)
    assert windrow.read_parquet(tmp_path / "out").count() == 100


@pytest.mark.parametrize("is_pipeline", [False, True])
def test_a_model_on_threads_is_loaded_once_for_each(made: Path, tmp_path: Path, is_pipeline: bool) -> None:
    ds = scored(made, None)
    (ds.repeat(1) if is_pipeline else ds).write_parquet(tmp_path / "out")
    assert len(made_in(made)) == 1
    assert str(threading.get_ident()) not in next(made.iterdir()).name


def test_a_model_is_never_loaded_in_the_driver_on_ray(ray_local: Any, made: Path, tmp_path: Path) -> None:
    scored(made, None, "ray").write_parquet(tmp_path / "tasks")
    scored(made, windrow.ActorPool(size=1), "ray").write_parquet(tmp_path / "actors")
    assert made_in(made)
    assert DRIVER not in made_in(made)


def test_a_target_that_exists_is_an_error_before_a_model_is_loaded(made: Path, tmp_path: Path) -> None:
    windrow.range(3).write_parquet(tmp_path / "out")
    with pytest.raises(PlanError, match="out"):
        scored(made, None).write_parquet(tmp_path / "out")
    assert not made_in(made)


def test_the_first_epoch_of_a_pipeline_is_written_whole(tmp_path: Path) -> None:
    rows = windrow.range(10).map_batches(lambda batch: {"y": batch["id"] + 1}, batch_size=3)
    rows.repeat(2).random_shuffle_each_window(seed=1).write_parquet(tmp_path / "out")
    for epoch in ("epoch=0", "epoch=1"):
        values = windrow.read_parquet(tmp_path / "out" / epoch).to_arrow()["y"].to_pylist()
        assert sorted(values) == list(range(1, 11))


def test_a_pipeline_without_rows_is_written_with_the_schema_of_its_source(tmp_path: Path) -> None:
    nothing = windrow.range(10).filter(lambda row: row["id"] < 0)
    nothing.repeat(1).write_parquet(tmp_path / "out")
    assert windrow.read_parquet(tmp_path / "out" / "epoch=0").columns() == ["id"]

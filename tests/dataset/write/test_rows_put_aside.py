"""Which rows a write puts aside where functions fail: those that are the reason, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.core.errors import TransformError
from windrow.core.user_functions import ConstructorError

WORKERS: list[Any] = [None, "processes", windrow.ActorPool(size=1)]
PROCESSES: list[Any] = WORKERS[1:]


def write_aside(ds: windrow.Dataset, folder: Path, executor: str = "threads") -> tuple[list[int], list[int]]:
    """The ids of the rows that were written, and of those that were put aside."""
    with pytest.warns(RuntimeWarning, match="transforms failed for"):
        ds.options(executor=executor).write_parquet(folder / "out", failed_rows=folder / "failed")
    return [windrow.read_parquet(folder / name).to_arrow()["id"].to_pylist() for name in ("out", "failed")]  # type: ignore[return-value]


def ends_the_process(row: Any) -> Any:
    if row["id"] == 5:
        sys.exit(3)
    return row


def is_text_once(row: Any) -> Any:
    return {"id": row["id"], "value": "text" if row["id"] == 5 else row["id"]}


def is_an_object_once(row: Any) -> Any:
    return {"id": row["id"], "value": object() if row["id"] == 5 else row["id"]}


class OddError(Exception):
    """Cannot say what it is."""

    def __str__(self) -> str:
        return str(self.args[0].name)


def fails_oddly(row: Any) -> Any:
    if row["id"] == 5:
        raise OddError("x")
    return row


@pytest.mark.parametrize("compute", WORKERS, ids=str)
@pytest.mark.parametrize("fn", [ends_the_process, is_text_once, is_an_object_once, fails_oddly])
def test_the_row_that_is_the_reason_is_put_aside(
    tmp_path: Path, fn: Callable[..., Any], compute: Any
) -> None:
    kept, failed = write_aside(windrow.range(12).map(fn, compute=compute), tmp_path)
    assert (kept, failed) == ([0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11], [5])


def test_rows_of_a_list_that_does_not_fit_are_put_aside_with_the_row_that_made_it(tmp_path: Path) -> None:
    ds = windrow.range(4).flat_map(lambda row: [is_text_once({"id": row["id"] + 3})] * row["id"])
    kept, failed = write_aside(ds, tmp_path)
    assert (kept, failed) == ([4, 6, 6, 6], [2])


@pytest.mark.ray
@pytest.mark.parametrize("compute", WORKERS, ids=str)
def test_a_function_that_ends_the_process_on_ray(tmp_path: Path, compute: Any, ray_local: Any) -> None:
    ds = windrow.range(12).map(ends_the_process, compute=compute, num_cpus=None if compute is None else 0.5)
    assert write_aside(ds, tmp_path, "ray")[1] == [5]


def only_here(maker: int) -> Any:
    if os.getpid() != maker:
        raise ModuleNotFoundError("No module named 'only_here'")
    return Unloadable()


class Unloadable:
    """Can be unpickled in the process that has made it only."""

    def __call__(self, batch: Any) -> Any:
        return batch

    def __reduce__(self) -> Any:
        return only_here, (os.getpid(),)


class Killing:
    """Ends the process that makes an object of it."""

    def __init__(self, maker: int) -> None:
        if os.getpid() != maker:
            os._exit(9)

    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize("executor", ["threads", pytest.param("ray", marks=pytest.mark.ray)])
@pytest.mark.parametrize("compute", PROCESSES, ids=str)
def test_a_function_that_cannot_be_loaded_ends_the_write(
    tmp_path: Path, compute: Any, executor: str, request: pytest.FixtureRequest
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    ds = windrow.range(12).map_batches(Unloadable(), compute=compute, num_cpus=0.5)
    with pytest.raises(ConstructorError, match=r"cannot be loaded .*ModuleNotFoundError: No module named"):
        ds.options(executor=executor).write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")


@pytest.mark.parametrize("executor", ["threads", pytest.param("ray", marks=pytest.mark.ray)])
def test_a_class_that_ends_its_process_ends_the_write(
    tmp_path: Path, executor: str, request: pytest.FixtureRequest
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    ds = windrow.range(12).map_batches(
        Killing, fn_constructor_args=(os.getpid(),), compute=windrow.ActorPool(size=1), num_cpus=0.5
    )
    with pytest.raises(ConstructorError, match="loaded its function or made an object of its class"):
        ds.options(executor=executor).write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")


def test_no_process_that_can_start_ends_the_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    ds = windrow.range(12).map_batches(lambda batch: batch, compute="processes")
    with pytest.raises(ConstructorError, match="no worker process can start: Resource temporarily"):
        ds.options(executor="threads").write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")


def test_columns_that_parquet_does_not_store_are_left_out_of_failed_rows(tmp_path: Path) -> None:
    def add(batch: Any) -> Any:
        return {"id": batch["id"], "none": pa.array([{}] * len(batch["id"]), pa.struct([]))}

    def fail(batch: Any) -> Any:
        if 5 in batch["id"]:
            raise ValueError("five")
        return {"id": batch["id"]}

    kept, failed = write_aside(windrow.range(12).map_batches(add).map_batches(fail, batch_size=4), tmp_path)
    assert (kept, failed) == ([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7])
    assert set(windrow.read_parquet(tmp_path / "failed").schema().names) == {"id", "windrow_error"}


RESUMED = """
import os, sys, pathlib, windrow, windrow.dataset.write.write_plan as write_plan
folder = pathlib.Path(sys.argv[1])
def fail(row, folder):
    if row["id"] == 13 or row["id"] == 3 and not (folder / "died").exists():
        raise OSError("service unavailable")
    return row
if not (folder / "died").exists():
    def die(*_):
        (folder / "died").touch()
        os._exit(9)
    write_plan.mark_finished = die
ds = windrow.read_parquet(folder / "in").map(fail, fn_args=(folder,))
ds.options(executor="threads").write_parquet(folder / "out", mode="resume", failed_rows=folder / "failed")
"""


def test_failed_rows_of_an_attempt_that_was_interrupted_are_removed(tmp_path: Path) -> None:
    """The first attempt puts a row aside, and dies before it has noted that; the row does not fail again."""
    (tmp_path / "in").mkdir()
    for at in range(2):
        pq.write_table(pa.table({"id": range(10 * at, 10 * at + 10)}), tmp_path / "in" / f"{at}.parquet")
    command = [sys.executable, "-c", RESUMED, str(tmp_path)]
    assert subprocess.run(command, check=False, capture_output=True).returncode == 9
    assert list((tmp_path / "failed").glob("*.parquet"))
    # one that fails in the second attempt too stays
    subprocess.run(command, check=True, capture_output=True)
    assert windrow.read_parquet(tmp_path / "failed").to_arrow()["id"].to_pylist() == [13]
    kept = windrow.read_parquet(tmp_path / "out").to_arrow()["id"].to_pylist()
    assert kept == [at for at in range(20) if at != 13]


def test_a_function_adds_nulls_to_a_column_without_some_batches_at_a_time(tmp_path: Path) -> None:
    def add_null(batch: Any) -> Any:
        return {"x": pa.array([None if x == 5 else int(x) for x in batch["x"]], pa.int64())}

    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    pq.write_table(pa.table({"x": range(8)}, schema=schema), tmp_path / "a.parquet")
    expected = [0, 1, 2, 3, 4, None, 6, 7]
    stored = windrow.read_parquet(tmp_path / "a.parquet").options(executor="threads")
    ds = stored.map_batches(add_null, batch_size=2)
    assert [row["x"] for row in ds.take(8)] == expected
    ds.write_parquet(tmp_path / "out")
    assert windrow.read_parquet(tmp_path / "out").to_arrow()["x"].to_pylist() == expected
    shuffled = stored.repeat(1).random_shuffle_each_window(seed=1)
    for pipe in (
        ds.repeat(1).random_shuffle_each_window(seed=1),
        shuffled.map_batches(add_null, batch_size=2),
    ):
        found = [x for batch in pipe.iter_batches(batch_size=3) for x in batch["x"].tolist()]
        assert sorted(found, key=str) == sorted(expected, key=str)


def test_an_error_without_a_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(TransformError, match=r"row 5 of its batch: OddError$"):
        windrow.range(8).map(fails_oddly).options(executor="threads").write_parquet(tmp_path / "out")

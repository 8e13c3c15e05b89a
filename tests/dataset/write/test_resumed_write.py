"""Writes that go on after an interruption, and rows that are written aside because a transform failed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.files import write
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.executors.threads import ThreadsExecutor

BLOCKS = 8


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    for at in range(BLOCKS):
        write(tmp_path / "in" / f"{at}.parquet", pa.table({"x": np.arange(at * 10, at * 10 + 10)}))
    return tmp_path / "in"


class Noting:
    """Notes in a folder which blocks it gets, and fails at one while a file is there."""

    def __init__(self, folder: Path, fails_at: int = -1) -> None:
        self.folder, self.fails_at = folder, fails_at
        folder.mkdir(exist_ok=True)

    def __call__(self, batch: Any) -> Any:
        first = int(batch["x"][0])
        if first == self.fails_at and not (self.folder / "repaired").exists():
            raise OSError("interrupted")
        (self.folder / f"{first}-{len(list(self.folder.iterdir()))}").touch()
        return {"x": batch["x"] + 1}

    def seen(self) -> list[int]:
        """The blocks that it got since the last call."""
        found = sorted(int(path.name.split("-")[0]) for path in self.folder.iterdir() if "-" in path.name)
        for path in self.folder.iterdir():
            path.unlink()
        return found


def read(folder: Path) -> list[int]:
    found: list[int] = sorted(windrow.read_parquet(folder).to_arrow()["x"].to_pylist())
    return found


def dataset(numbers: Path, fn: Any, executor: Any = "threads") -> windrow.Dataset:
    return windrow.read_parquet(numbers).map_batches(fn).options(executor=executor)


def test_a_failed_write_goes_on_where_it_stopped(numbers: Path, tmp_path: Path) -> None:
    out, noting = tmp_path / "out", Noting(tmp_path / "seen", fails_at=40)
    ds = dataset(numbers, noting, ThreadsExecutor(workers=1))
    with pytest.raises(TransformError, match="interrupted"):
        ds.write_parquet(out, mode="resume")
    # a thread can begin the next block before the error stops it
    before = [first for first in noting.seen() if first]
    assert before in ([10, 20, 30], [10, 20, 30, 50])
    (noting.folder / "repaired").touch()
    written = ds.write_parquet(out, mode="resume")
    assert written.rows == BLOCKS * 10
    # the first block is read for the schema each time
    assert [first for first in noting.seen() if first] == sorted({40, 50, 60, 70} - set(before))
    assert read(out) == list(range(1, BLOCKS * 10 + 1))
    assert {path.name.split("-")[0] for path in out.iterdir()} == {"part", "_manifest"}
    again = ds.write_parquet(out, mode="resume")
    assert again == written
    assert [first for first in noting.seen() if first] == []
    for file in written.files:
        assert pq.read_metadata(out / file.path).num_rows == file.rows


def test_files_of_a_part_that_did_not_end_are_replaced(numbers: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ds = windrow.read_parquet(numbers).options(executor="threads")
    written = ds.write_parquet(out, mode="resume", target_file_bytes=300)
    (out / written.manifest).unlink()
    lost = written.files[2].path
    (out / lost).unlink()
    again = ds.write_parquet(out, mode="resume", target_file_bytes=300)
    assert again == written
    assert (out / lost).exists()
    assert read(out) == list(range(BLOCKS * 10))


def test_another_write_is_not_continued(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).options(executor="threads")
    ds.write_parquet(tmp_path / "out", mode="resume")
    fresh = Noting(tmp_path / "seen")
    fewer = windrow.read_parquet(sorted(map(str, numbers.iterdir()))[1:])
    for other, what in (
        (ds.map_batches(fresh), "transforms"),
        (fewer.map_batches(fresh), "data or operations on it and other transforms"),
        (fewer, "data or operations on it"),
    ):
        with pytest.raises(
            PlanError, match=f"does not belong to one, but to one with other {what}: give another"
        ):
            other.write_parquet(tmp_path / "out", mode="resume")
    # it is refused before a transform gets rows
    assert fresh.seen() == []
    with pytest.raises(PlanError, match="to one with other arguments of the write: give"):
        ds.write_parquet(tmp_path / "out", mode="resume", compression="zstd")
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "a.txt").touch()
    with pytest.raises(PlanError, match=r"a\.txt does not belong to one: give another path"):
        ds.write_parquet(tmp_path / "strange", mode="resume")
    with pytest.raises(PlanError, match="write before window"):
        ds.repeat(1).write_parquet(tmp_path / "other", mode="resume")


def test_other_columns_of_the_same_call_are_named(numbers: Path, tmp_path: Path) -> None:
    made = "x"

    class Named:
        def __call__(self, batch: Any) -> Any:
            return {made: batch["x"]}

    ds = windrow.read_parquet(numbers).options(executor="threads").map_batches(Named)
    ds.write_parquet(tmp_path / "out", mode="resume")
    made = "y"
    with pytest.raises(PlanError, match="but to one with other columns or types: give another path"):
        ds.write_parquet(tmp_path / "out", mode="resume")


def _add(batch: Any, number: Any, **others: Any) -> Any:
    return {"x": batch["x"] + number}


class _Opaque:
    """An argument without a value that a later process could compare."""


def test_a_write_with_other_arguments_is_not_continued(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).options(executor="threads")

    def written(number: Any, **others: Any) -> windrow.WriteResult:
        mapped = ds.map_batches(_add, fn_args=(number,), fn_kwargs=others)
        return mapped.write_parquet(tmp_path / "out", mode="resume")

    first = written(np.array([1]), names=["a", tmp_path], other=_Opaque())
    assert written(np.array([1]), names=["a", tmp_path], other=_Opaque()) == first
    for number, names in ((np.array([2]), ["a", tmp_path]), (1, ["a", tmp_path]), (np.array([1]), ["b"])):
        with pytest.raises(PlanError, match="does not belong to one"):
            written(number, names=names, other=_Opaque())


def test_a_killed_write_goes_on(numbers: Path, tmp_path: Path) -> None:
    script = """
        import os, signal, sys, windrow
        from windrow.pipeline.executors.threads import ThreadsExecutor

        def kill_at_last(batch):
            if sys.argv[3] == "kill" and batch["x"][0] == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            if sys.argv[3] != "kill" and batch["x"][0] in (10, 20):
                raise AssertionError("was written before")
            return batch

        ds = windrow.read_parquet(sys.argv[1]).map_batches(kill_at_last)
        ds.options(executor=ThreadsExecutor(1)).write_parquet(sys.argv[2], mode="resume")
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(numbers), str(tmp_path / "out")]
    killed = subprocess.run([*command, "kill"], timeout=120, check=False, env=dict(os.environ))
    assert killed.returncode == -signal.SIGKILL
    subprocess.run([*command, "go on"], timeout=120, check=True)
    assert read(tmp_path / "out") == list(range(BLOCKS * 10))


def _invert(row: Any) -> Any:
    return {"x": row["x"], "inverse": 1.0 / (row["x"] % 7)}


def _refuse(batch: Any) -> Any:
    if 30 in batch["x"]:
        raise ValueError("thirty")
    return batch


@pytest.mark.parametrize("executor", ["threads", pytest.param("ray", marks=pytest.mark.ray)])
def test_failed_rows_are_written_aside(
    numbers: Path, tmp_path: Path, executor: str, request: pytest.FixtureRequest
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_local")
    ds = windrow.read_parquet(numbers).map(_invert).map_batches(_refuse).options(executor=executor)
    with pytest.raises(TransformError, match="ZeroDivisionError"):
        ds.write_parquet(tmp_path / "out")
    with pytest.warns(RuntimeWarning, match="failed for 21 rows"):
        written = ds.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    singular = [x for x in range(BLOCKS * 10) if x % 7 == 0 and not 30 <= x < 40]
    batch = list(range(30, 40))
    assert written.failed_rows == 21
    assert written.rows == BLOCKS * 10 - 21
    assert read(tmp_path / "out") == [x for x in range(BLOCKS * 10) if x not in {*singular, *batch}]
    failed = [row for path in (tmp_path / "failed").iterdir() for row in pq.read_table(path).to_pylist()]
    assert sorted(row["x"] for row in failed) == sorted({*singular, *batch})
    for row in failed:
        expected = "ZeroDivisionError" if row["x"] % 7 == 0 else "thirty"
        assert expected in row["windrow_error"]
        assert f"{row['x'] // 10}.parquet" in row["windrow_error"]
    with pytest.raises(PlanError, match="is not empty"):
        ds.write_parquet(tmp_path / "second", failed_rows=tmp_path / "failed")


def test_all_rows_of_a_batch_can_fail(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).map(_invert).options(executor="threads")
    only = ds.map_batches(_refuse, batch_size=4)
    with pytest.warns(RuntimeWarning, match="failed for"):
        written = only.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed", mode="resume")
    again = only.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed", mode="resume")
    assert again == written
    assert written.rows + written.failed_rows == BLOCKS * 10
    with pytest.raises(PlanError, match="failed_rows= are for a Dataset"):
        ds.repeat(1).write_parquet(tmp_path / "other", failed_rows=tmp_path / "failed")


def _scale(batch: Any, factor: int = 1) -> Any:
    return {"x": batch["x"] * factor}


def test_other_arguments_are_another_write(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).options(executor="threads")
    ds.map_batches(_scale, fn_kwargs={"factor": 2}).write_parquet(tmp_path / "out", mode="resume")
    with pytest.raises(PlanError, match="does not belong to one"):
        ds.map_batches(_scale, fn_kwargs={"factor": 3}).write_parquet(tmp_path / "out", mode="resume")
    sort = ds.map_batches(_scale, fn_kwargs={"factor": 3}).sort("x")
    sort.write_parquet(tmp_path / "sorted", mode="resume")
    other = ds.map_batches(_scale, fn_kwargs={"factor": 4}).sort("x")
    with pytest.raises(PlanError, match="does not belong to one"):
        other.write_parquet(tmp_path / "sorted", mode="resume")


def test_files_that_are_not_whole_are_written_again(numbers: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ds = windrow.read_parquet(numbers).options(executor="threads")
    written = ds.write_parquet(out, mode="resume")
    cut = out / written.files[3].path
    cut.write_bytes(cut.read_bytes()[:50])
    assert ds.write_parquet(out, mode="resume") == written
    assert read(out) == list(range(BLOCKS * 10))
    (out / written.files[5].path).unlink()
    assert ds.write_parquet(out, mode="resume") == written
    assert read(out) == list(range(BLOCKS * 10))
    (out / written.manifest).unlink()
    (out / f"_part-00001-{written.manifest.split('-')[1]}").write_text("{")
    assert ds.write_parquet(out, mode="resume") == written
    ds.write_parquet(out, mode="overwrite")
    assert not list(out.glob("_part*"))


class Unmakeable:
    """A model whose weights are missing, but in the process that looks at the first rows."""

    def __init__(self, maker: int) -> None:
        if os.getpid() != maker:
            raise FileNotFoundError("model.pt")

    def __call__(self, batch: Any) -> Any:
        return batch


@pytest.mark.parametrize(
    ("compute", "only_elsewhere"), [("tasks", False), ("processes", False), ("processes", True)]
)
def test_a_class_that_makes_no_object_fails_the_write_and_no_row(
    numbers: Path, tmp_path: Path, compute: Any, only_elsewhere: bool
) -> None:
    ds = windrow.read_parquet(numbers).options(executor="threads")
    maker = os.getpid() if only_elsewhere else -1
    ds = ds.map_batches(Unmakeable, fn_constructor_args=(maker,), compute=compute)
    with pytest.raises(TransformError, match="making an object of the class: FileNotFoundError"):
        ds.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed", mode="resume")


def test_failed_rows_replace_no_data(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).map(_invert).options(executor="threads")
    with pytest.raises(PlanError, match="would replace what is being read"):
        ds.write_parquet(tmp_path / "out", mode="overwrite", failed_rows=numbers)
    for folder in (tmp_path / "out", tmp_path / "out" / "failed", tmp_path):
        with pytest.raises(PlanError, match="lie in one another"):
            ds.write_parquet(tmp_path / "out", failed_rows=folder)


def _invert_sometimes(row: Any, rng: Any) -> Any:
    return {"x": row["x"], "inverse": 1 // int(rng.random() < 0.8)}


def test_only_the_failing_rows_of_random_functions_are_set_aside(numbers: Path, tmp_path: Path) -> None:
    ds = windrow.read_parquet(numbers).map(_invert_sometimes, rng=True).options(executor="threads")
    with pytest.warns(RuntimeWarning, match="failed for"):
        written = ds.write_parquet(tmp_path / "out", failed_rows=tmp_path / "failed")
    assert 4 <= written.failed_rows <= 32
    assert written.rows + written.failed_rows == BLOCKS * 10
    again = windrow.read_parquet(tmp_path / "failed").map(lambda row: row["none"])
    with pytest.warns(RuntimeWarning, match="failed for"):
        again.options(executor="threads").write_parquet(
            tmp_path / "again", failed_rows=tmp_path / "failed again"
        )
    names = [pq.read_schema(path).names for path in (tmp_path / "failed again").iterdir()]
    assert all(name.count("windrow_error") == 1 for name in names)


def test_a_part_that_is_not_whole_is_written_again(numbers: Path, tmp_path: Path) -> None:
    out, noting = tmp_path / "out", Noting(tmp_path / "seen", fails_at=40)
    ds = dataset(numbers, noting, ThreadsExecutor(workers=1))
    with pytest.raises(TransformError, match="interrupted"):
        ds.write_parquet(out, mode="resume")
    noting.seen()
    cut = next(out.glob("part-00001-*"))
    cut.write_bytes(cut.read_bytes()[:50])
    (noting.folder / "repaired").touch()
    ds.write_parquet(out, mode="resume")
    assert 10 in noting.seen()
    assert read(out) == list(range(1, BLOCKS * 10 + 1))

"""Writing datasets and pipelines: every row once, complete files, and a manifest."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.dataset.example_sources import TableReader, TableSource, make_source
from tests.io.files import write
from tests.laws.examples import examples
from windrow.core.errors import PlanError, SourceError, TransformError
from windrow.core.source import BlockAddress, BlockTable, CorruptBlockError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.write.write_job import WriteRequest
from windrow.dataset.write.write_plan import cut_parts
from windrow.io.sinks.sink import Sink
from windrow.io.sinks.written_manifest import WriteResult
from windrow.pipeline.executors.threads import ThreadsExecutor

METHODS = ["parquet", "csv", "json", "arrow", "numpy", "tfrecords", "webdataset"]


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Three files of 10, 20 and 30 rows, in row groups of 10."""
    first = 0
    for at, rows in enumerate((10, 20, 30)):
        table = pa.table({"x": np.arange(first, first + rows), "k": [f"k{row % 3}" for row in range(rows)]})
        write(tmp_path / "in" / f"{at}.parquet", table, row_group_size=10)
        first += rows
    return tmp_path / "in"


def dataset(numbers: Path, **options: Any) -> Dataset:
    return windrow.read_parquet(numbers, target_block_bytes=1, **options).options(executor="threads")


def call(data: Any, method: str, path: Any, **options: Any) -> WriteResult:
    result: WriteResult = getattr(data, f"write_{method}")(path, **options)
    return result


def visible(folder: Path) -> list[str]:
    names = (str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in names if not Path(name).name.startswith(("_", ".")))


def rows_of(folder: Path) -> list[int]:
    found: list[int] = windrow.read_parquet(folder).take_batch(10_000)["x"].tolist()
    return found


@pytest.mark.parametrize("method", METHODS)
def test_write_makes_one_file_per_block_and_a_manifest(numbers: Path, tmp_path: Path, method: str) -> None:
    pytest.importorskip("google_crc32c")
    data = dataset(numbers, columns=["x"])
    if method == "webdataset":
        data = data.map_batches(lambda batch: {"x.cls": batch["x"]})
    written = call(data, method, tmp_path / "out")
    assert (written.rows, len(written.files)) == (60, 6)
    assert visible(tmp_path / "out") == sorted(file.path for file in written.files)
    assert [file.path[:10] for file in written.files] == [f"part-{at:05d}" for at in range(6)]
    for file in written.files:
        content = (tmp_path / "out" / file.path).read_bytes()
        assert (file.rows, file.bytes) == (10, len(content))
        assert file.sha256 == hashlib.sha256(content).hexdigest()
    manifest = json.loads((tmp_path / "out" / written.manifest).read_text())
    assert manifest["files"] == [vars(file) for file in written.files]
    assert (manifest["rows"], manifest["bytes"]) == (60, written.bytes)
    assert manifest["schema"] == [{"name": data.columns()[0], "type": "int64"}]
    assert repr(written).startswith(f"WriteResult('{tmp_path}/out': 6 files, 60 rows, ")
    assert pickle.loads(pickle.dumps(written)) == written


def test_rows_round_trip_in_order_with_transforms_filters_and_row_ids(numbers: Path, tmp_path: Path) -> None:
    data = dataset(numbers, filter=pc.field("x") != 13).options(row_id_column="id")
    kept = data.map_batches(lambda batch: {**batch, "y": batch["x"] * 2})
    kept.write_parquet(tmp_path / "out", target_file_bytes=200)
    found = windrow.read_parquet(tmp_path / "out")
    assert found.schema() == kept.schema()
    assert found.take(100) == kept.take(100)
    assert found.count() == 59


@examples(25)
@given(
    sizes=st.lists(st.integers(0, 100), max_size=20),
    target=st.none() | st.integers(1, 200),
)
def test_parts_hold_every_block_once_in_order(sizes: list[int], target: int | None) -> None:
    decoded = np.array(sizes, np.int64)
    spans = cut_parts(BlockTable(decoded, decoded, decoded, True, True), target)
    blocks = [block for span in spans for block in span]
    assert blocks == [block for block, size in enumerate(sizes) if target is not None or size]
    for span in spans:
        assert len(span) == 1 or (target is not None and sum(sizes[span.start : span.stop]) <= target)


def test_files_of_a_target_size(numbers: Path, tmp_path: Path) -> None:
    data = dataset(numbers, columns=["x"])
    joined = data.write_parquet(tmp_path / "joined", target_file_bytes=160)
    assert [file.rows for file in joined.files] == [20, 20, 20]
    cut = data.write_parquet(tmp_path / "cut", target_file_bytes="40B")
    assert [file.rows for file in cut.files] == [4, 6] * 6
    assert rows_of(tmp_path / "joined") == rows_of(tmp_path / "cut") == list(range(60))


def test_partition_columns_round_trip_as_directories(numbers: Path, tmp_path: Path) -> None:
    written = dataset(numbers).write_parquet(tmp_path / "out", partition_by="k")
    assert {file.path.partition("/")[0] for file in written.files} == {"k=k0", "k=k1", "k=k2"}
    found = windrow.read_parquet(tmp_path / "out")
    assert found.columns() == ["x", "k"]
    assert {row["x"]: row["k"] for row in found.take(100)} == {
        row["x"]: row["k"] for row in dataset(numbers).take(100)
    }
    few = dataset(numbers).write_csv(tmp_path / "few", partition_by=["k"], target_file_bytes="1MiB")
    assert len(few.files) == 3


@pytest.mark.parametrize("shuffled", [False, True])
def test_pipeline_is_written_in_the_order_of_its_epochs(
    numbers: Path, tmp_path: Path, shuffled: bool
) -> None:
    pipe = dataset(numbers).window(blocks_per_window=2).repeat(3)
    pipe = pipe.random_shuffle_each_window(seed=7) if shuffled else pipe
    written = pipe.write_parquet(tmp_path / "out", target_file_bytes=300)
    assert written.rows == 180
    for epoch in pipe.iter_epochs():
        order = [row["x"] for row in epoch.iter_rows()]
        assert rows_of(tmp_path / "out" / f"epoch={epoch.number}") == order
    sizes = [file.rows for file in written.files if file.path.startswith("epoch=1/")]
    assert len(sizes) > 2
    found = windrow.read_parquet(tmp_path / "out")
    assert (found.count(), found.columns()) == (180, ["x", "k", "epoch"])


def test_endless_pipeline_raises(numbers: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"never ends, and cannot be written: give repeat\(times\)"):
        dataset(numbers).repeat().write_parquet(tmp_path / "out")
    with pytest.raises(PlanError, match="directories called epoch="):
        dataset(numbers).repeat(1).write_parquet(tmp_path / "out", partition_by="epoch")
    assert not (tmp_path / "out").exists()


def test_empty_dataset_is_written_as_a_file_with_the_schema(numbers: Path, tmp_path: Path) -> None:
    none = dataset(numbers, filter=pc.field("x") > 1000)
    for data, name in ((none, "all"), (none.repeat(2), "epochs")):
        assert data.write_parquet(tmp_path / name).rows == 0
        found = windrow.read_parquet(tmp_path / name)
        assert (found.count(), found.columns()[:2]) == (0, ["x", "k"])


@pytest.mark.parametrize(
    ("method", "column", "error"),
    [
        ("csv", pa.array([[1]]), r"CSV cannot carry.*column 'c' is list<.*make a column of each part"),
        ("json", pa.array([b"x"]), r"JSON cannot carry.*column 'c' is binary: cast it"),
        ("numpy", pa.array([{"a": 1}]), r"NumPy cannot carry.*column 'c' is struct"),
        ("tfrecords", pa.array([1.5]), r"TFRecord cannot carry.*column 'c' is double.*pa.float32"),
        ("webdataset", pa.array([1.5]), r"WebDataset cannot carry.*column 'c' is double.*<name>.npy"),
    ],
)
def test_types_that_a_format_cannot_store_raise_before_writing(
    tmp_path: Path, method: str, column: pa.Array, error: str
) -> None:
    write(tmp_path / "in.parquet", pa.table({"c": column}))
    for data in (windrow.read_parquet(tmp_path / "in.parquet"),) * 2:
        with pytest.raises(PlanError, match=error):
            call(data, method, tmp_path / "out")
        with pytest.raises(PlanError, match=error):
            call(data.repeat(2), method, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "new"}, "mode='new' must be"),
        ({"partition_by": ["no"]}, "there is no column 'no'"),
        ({"partition_by": [3]}, "must be a list of column names"),
        ({"target_file_bytes": 0}, "target_file_bytes=0 must be at least 1 byte"),
        ({"compression": "rar"}, "compression='rar' must be one of"),
        ({"filesystem": 3}, "filesystem= is a int"),
    ],
)
def test_wrong_arguments_raise_before_writing(
    numbers: Path, tmp_path: Path, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(PlanError, match=error):
        dataset(numbers).write_parquet(tmp_path / "out", **options)
    with pytest.raises(PlanError, match="give the path of one directory"):
        dataset(numbers).write_parquet([tmp_path])  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_existing_files_raise_or_are_appended_to_or_replaced(numbers: Path, tmp_path: Path) -> None:
    data, out = dataset(numbers), tmp_path / "out"
    first = data.write_parquet(out)
    with pytest.raises(PlanError, match=r"out is not empty \(7 files.*mode='append'.*mode='overwrite'"):
        data.write_parquet(out)
    data.write_parquet(out, mode="append", partition_by="k")
    assert len(list(out.glob("_manifest-*"))) == 2
    assert sorted(path.name for path in out.glob("part-*")) == sorted(file.path for file in first.files)
    last = data.write_parquet(out, mode="overwrite")
    assert visible(out) == sorted(file.path for file in last.files)
    assert [path.name for path in out.glob("_*")] == [last.manifest]
    assert sorted(path.name for path in out.iterdir()) == sorted([*visible(out), last.manifest])
    with pytest.raises(PlanError, match="would replace what is being read"):
        windrow.read_parquet(out).write_parquet(out, mode="overwrite")
    assert rows_of(out) == list(range(60))


@pytest.mark.parametrize(
    ("source", "target"),
    [("out", "link"), ("link", "out"), ("out", "../{}/out"), ("out/a", "inner"), ("out", "link/../out")],
)
def test_input_files_are_not_replaced_under_another_path(tmp_path: Path, source: str, target: str) -> None:
    write(tmp_path / "out" / "a" / "0.parquet", pa.table({"x": [1, 2]}))
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "inner").symlink_to("out/a")
    data = windrow.read_parquet(tmp_path / source).options(executor="threads")
    with pytest.raises(PlanError, match=r"would replace what is being read, .*0\.parquet"):
        data.write_parquet(f"{tmp_path}/{target.format(tmp_path.name)}", mode="overwrite")
    assert rows_of(tmp_path / "out") == [1, 2]


def test_input_table_is_not_replaced_even_if_the_filter_omits_all_its_files(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path / "t", pa.table({"x": [1, 2]}))
    data = windrow.read_delta(tmp_path / "t", filter=pc.field("x") > 9).options(executor="threads")
    with pytest.raises(PlanError, match=r"would replace what is being read, .*\.parquet"):
        data.write_parquet(tmp_path / "t", mode="overwrite")
    assert windrow.read_delta(tmp_path / "t").count() == 2


def test_memory_mapped_input_files_are_not_replaced(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"x": [1, 2]}).save_to_disk(str(tmp_path / "hf"))
    data = windrow.from_huggingface(datasets.load_from_disk(str(tmp_path / "hf"))).options(executor="threads")
    with pytest.raises(PlanError, match=r"would replace what is being read, .*\.arrow"):
        data.write_parquet(tmp_path / "hf", mode="overwrite")
    assert data.count() == 2
    data.write_parquet(tmp_path / "out")
    assert data.write_parquet(tmp_path / "out", mode="overwrite").rows == 2


@pytest.mark.parametrize("partition_by", [(), "k"])
def test_failed_write_leaves_no_new_folders(tmp_path: Path, partition_by: Any) -> None:
    data = windrow.from_items([{"x": 1, "k": 1}, {"x": None, "k": 1}]).options(executor="threads")
    for folder in ("made/a/b", "there/a"):
        (tmp_path / "there").mkdir(exist_ok=True)
        with pytest.raises(PlanError, match="nulls"):
            data.write_numpy(tmp_path / folder, partition_by=partition_by)
        assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")] == ["there"]
    with pytest.raises(PlanError, match="nulls"):
        data.write_numpy(tmp_path / "there", partition_by=partition_by)
    assert (tmp_path / "there").exists()


def test_types_that_parquet_cannot_hold_are_rejected_with_a_fix(tmp_path: Path) -> None:
    data = windrow.from_arrow(pa.table({"r": pa.nulls(1, pa.decimal128(5, -2))}))
    with pytest.raises(PlanError, match=r"column 'r' is decimal128\(5, -2\): .*cast it to another type"):
        data.write_parquet(tmp_path / "out")


def test_failed_write_leaves_no_files_and_replaces_none(numbers: Path, tmp_path: Path) -> None:
    data, out = dataset(numbers), tmp_path / "out"
    before = data.write_parquet(out)

    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["x"][0] == 40:
            raise ValueError("forty")
        return {**batch, "late": batch["x"]}

    for broken in (data.map_batches(fail), data.map_batches(fail).repeat(1)):
        with pytest.raises(TransformError, match="forty") as caught:
            broken.write_parquet(out, mode="overwrite", target_file_bytes=80)
        assert isinstance(caught.value.__cause__, ValueError)
        assert visible(out) == sorted(file.path for file in before.files)
        assert not list(out.rglob(".*"))
    assert rows_of(out) == list(range(60))


def test_columns_that_change_between_blocks_raise(numbers: Path, tmp_path: Path) -> None:
    def widen(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["x"].astype("f4" if batch["x"][0] < 30 else "f8")}

    with pytest.raises(TransformError, match="'x' is double and was float"):
        dataset(numbers).map_batches(widen).write_parquet(tmp_path / "out")
    assert visible(tmp_path / "out") == []


@dataclass(frozen=True)
class FailingSink:
    """A sink whose third file fills the disk."""

    name: str = "Failing"
    suffix: str = ".fail"

    def check(self, schema: pa.Schema) -> None:
        pass

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        stream.write(b"something")
        if label == "00002":
            raise OSError(errno.ENOSPC, "No space left on device")


def test_full_disk_raises_one_error_with_the_path(numbers: Path, tmp_path: Path) -> None:
    sink: Sink = FailingSink()
    with pytest.raises(SourceError, match=r"out/part-00002-\w+.fail: cannot be written: .*the disk is full"):
        dataset(numbers)._write(WriteRequest(sink, tmp_path / "out"))
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


@dataclass
class CorruptReader(TableReader):
    """A reader that cannot decode its second block."""

    def read(self, address: BlockAddress) -> pa.Table:
        if address.locator == 1:
            raise CorruptBlockError(f"{address.origin} is corrupt")
        return super().read(address)


def test_on_error_skip_omits_corrupt_blocks(tmp_path: Path) -> None:
    tables = make_source(5, 5, 5).reader.tables
    data = Dataset(LogicalPlan(TableSource(CorruptReader(tables)))).options(executor="threads")
    with pytest.raises(SourceError, match="table 1 is corrupt"):
        data.write_parquet(tmp_path / "out")
    with pytest.warns(RuntimeWarning, match="corrupt block while writing: table 1 is corrupt"):
        data.options(on_error="skip").write_parquet(tmp_path / "out")
    assert rows_of(tmp_path / "out") == [*range(5), *range(10, 15)]


def test_threads_write_in_parallel_within_the_memory_limit(tmp_path: Path) -> None:
    running, most, lock = 0, [0], threading.Lock()

    def count(batch: dict[str, Any]) -> dict[str, Any]:
        nonlocal running
        with lock:
            running += 1
            most[0] = max(most[0], running)
        time.sleep(0.05)
        with lock:
            running -= 1
        return batch

    data = Dataset(LogicalPlan(make_source(*[1000] * 6))).map_batches(count)
    threads = ThreadsExecutor(workers=3)
    data.options(executor=threads).write_csv(tmp_path / "a")
    assert most == [3]
    most[0] = 0
    data.options(executor=threads, memory_limit=30_000).write_csv(tmp_path / "b")
    assert most == [1]


KILLED = """
import sys, time
from dataclasses import dataclass
from pathlib import Path
import pyarrow as pa
import windrow
from windrow.dataset.write.write_job import WriteRequest
from windrow.io.sinks.arrow_sinks import CsvSink

@dataclass(frozen=True)
class Slow(CsvSink):
    def write(self, tables, stream, label):
        if label == "00003":
            stream.write(b"half a file")
            Path(sys.argv[3]).touch()
            time.sleep(600)
        super().write(tables, stream, label)

data = windrow.read_parquet(sys.argv[1], target_block_bytes=1).options(executor="threads")
data._write(WriteRequest(Slow(), sys.argv[2], mode="overwrite"))
"""


def test_killed_writer_leaves_whole_files_and_the_next_write_is_exact(numbers: Path, tmp_path: Path) -> None:
    out, ready = tmp_path / "out", tmp_path / "ready"
    before = dataset(numbers).write_csv(out)
    script = [sys.executable, "-c", textwrap.dedent(KILLED), str(numbers), str(out), str(ready)]
    with subprocess.Popen(script, cwd=Path(__file__).parents[3]) as writer:
        while not ready.exists():
            assert writer.poll() is None
            time.sleep(0.02)
        writer.send_signal(signal.SIGKILL)
    assert not list(out.glob("_manifest-*")), "nothing says that this is complete"
    names = set(visible(out))
    assert {file.path for file in before.files} <= names, "what would have been replaced is still there"
    whole = sorted(_rows_of_csv(out / file.path) for file in before.files)
    assert all(_rows_of_csv(out / name) in whole for name in names)
    assert len(list(out.glob(".*"))) >= 1
    after = dataset(numbers).write_csv(out, mode="overwrite")
    assert sorted(path.name for path in out.iterdir()) == sorted(
        [*(file.path for file in after.files), after.manifest]
    )
    assert [file.sha256 for file in after.files] == [file.sha256 for file in before.files]


def _rows_of_csv(path: Path) -> list[list[str]]:
    with path.open() as file:
        return list(csv.reader(file))


def test_death_of_a_ray_worker_does_not_change_the_files(
    ray_local: Any, numbers: Path, tmp_path: Path
) -> None:
    died = tmp_path / "died"

    def die_once(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["x"][0] == 30 and os.getpid() != driver and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return batch

    driver = os.getpid()
    data = dataset(numbers).map_batches(die_once)
    expected = dataset(numbers).write_parquet(tmp_path / "threads")
    written = data.options(executor="ray").write_parquet(tmp_path / "out")
    assert died.exists()
    assert [file.sha256 for file in written.files] == [file.sha256 for file in expected.files]
    assert visible(tmp_path / "out") == sorted(file.path for file in written.files)
    assert rows_of(tmp_path / "out") == list(range(60))


def test_ray_raises_the_same_errors_as_threads(ray_local: Any, numbers: Path, tmp_path: Path) -> None:
    def fail(batch: dict[str, Any]) -> dict[str, Any]:
        if batch["x"][0] == 40:
            raise ValueError("forty")
        return batch

    data = dataset(numbers).map_batches(fail).options(executor="ray")
    with pytest.raises(TransformError, match="forty"):
        data.write_parquet(tmp_path / "out")
    with pytest.raises(SourceError, match="the disk is full"):
        dataset(numbers).options(executor="ray")._write(WriteRequest(FailingSink(), tmp_path / "out"))
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_other_libraries_read_the_written_files(numbers: Path, tmp_path: Path) -> None:
    data = dataset(numbers)
    assert pq.read_table(data.write_parquet(tmp_path / "p").paths[0]).num_rows == 10
    with pa.ipc.open_file(data.write_arrow(tmp_path / "a", compression="zstd").paths[5]) as file:
        assert file.read_all()["x"].to_pylist() == list(range(50, 60))
    with np.load(data.write_numpy(tmp_path / "n").paths[5]) as arrays:
        assert arrays["x"].tolist() == list(range(50, 60))
        assert arrays["k"][:3].tolist() == ["k2", "k0", "k1"]

"""Writes that fail, are killed, or meet corrupt blocks: what they leave behind."""

from __future__ import annotations

import csv
import errno
import os
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

import pyarrow as pa
import pytest

import windrow
from tests.dataset.example_sources import TableReader, TableSource, make_source
from tests.dataset.write.written_files import dataset, rows_of, visible
from windrow.core.errors import PlanError, SourceError, TransformError
from windrow.core.source import BlockAddress, CorruptBlockError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.write.write_job import WriteRequest
from windrow.io.sinks.sink import Sink
from windrow.pipeline.executors.threads import ThreadsExecutor


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

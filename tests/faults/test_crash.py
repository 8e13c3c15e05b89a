"""A decoder that crashes its process fails only its task; the error names the file."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.end_to_end.reading import column, read_pass
from tests.io.files import open_parquet
from windrow.core.source import BlockAddress, BlockPart, BlockReader
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.file_source import FileSource

pytestmark = pytest.mark.timeout(150)


@dataclass(frozen=True)
class CrashingReader:
    """Kills its process, like a crashing decoder, when it reads a certain file while ``fuse`` exists."""

    reader: BlockReader
    fuse: Path
    always: bool

    def _light(self, address: BlockAddress) -> None:
        if address.locator[0].path == "1.parquet" and self.fuse.exists():
            if not self.always:
                self.fuse.unlink()
            os.kill(os.getpid(), signal.SIGSEGV)

    def read(self, address: BlockAddress) -> pa.Table:
        self._light(address)
        return self.reader.read(address)

    def parts(self, address: BlockAddress) -> Iterator[BlockPart]:
        self._light(address)
        return self.reader.parts(address)


class CrashingSource:
    """A source whose reader crashes."""

    def __init__(self, source: FileSource, fuse: Path, always: bool) -> None:
        self.source, self.fuse, self.always = source, fuse, always

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "source":
            raise AttributeError(name)
        return getattr(self.source, name)

    @property
    def reader(self) -> CrashingReader:
        return CrashingReader(self.source.reader, self.fuse, self.always)


def pipe_of(directory: Path, always: bool) -> windrow.DatasetPipeline:
    for part in range(3):
        table = pa.table({"x": range(part * 100, part * 100 + 100)})
        pq.write_table(table, directory / f"{part}.parquet")
    (directory / "_fuse").touch()
    source: Any = CrashingSource(open_parquet(directory), directory / "_fuse", always)
    return Dataset(LogicalPlan(source)).window(blocks_per_window=1).options(executor="ray")


def test_crash_fails_only_its_task(ray_local: Any, tmp_path: Path) -> None:
    with pipe_of(tmp_path, always=False).iterator() as shard:
        assert sorted(column(read_pass(shard))) == list(range(300))
    assert not (tmp_path / "_fuse").exists()


@pytest.mark.nightly
def test_file_that_always_crashes_is_named(ray_local: Any, tmp_path: Path) -> None:
    with pipe_of(tmp_path, always=True).iterator() as shard:
        batches = shard.iter_batches(100)
        assert next(batches)["x"].tolist() == list(range(100))
        with pytest.raises(
            windrow.SourceError, match=r"(?s)/1\.parquet, row group 0: the worker process died"
        ):
            list(batches)
    # the run ends with an error; Ray and this process continue
    (tmp_path / "_fuse").unlink()
    with windrow.read_parquet(tmp_path).window().options(executor="ray").iterator() as shard:
        assert sorted(column(read_pass(shard))) == list(range(300))

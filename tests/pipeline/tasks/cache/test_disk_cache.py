"""The disk cache: identity and size of its files, and when it stops writing."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from windrow.pipeline.tasks.cache import system_calls
from windrow.pipeline.tasks.cache.block_file import block_bytes
from windrow.pipeline.tasks.cache.disk_cache import DiskCache

TABLE = pa.table({"x": range(1_000)})
OTHER = pa.table({"y": ["of another schema"]})


def make(folder: Path, limit: int | None = None, *, name: str = "run", contents: str = "") -> DiskCache:
    return DiskCache(str(folder), name, contents, limit, persistent=bool(contents))


def test_file_of_another_block_or_of_other_contents_is_not_found(tmp_path: Path) -> None:
    one, two = (make(tmp_path, name=name, contents=name) for name in ("one", "two"))
    assert one.put(0, [TABLE]) > 0
    assert two.find(0) is None
    shutil.copy(one.path / "0.arrows", one.path / "1.arrows")
    shutil.copy(one.path / "0.arrows", two.path / "0.arrows")
    assert one.find(0) == [TABLE]
    assert one.find(1) is None
    assert two.find(0) is None


def test_rewritten_block_counts_once(tmp_path: Path) -> None:
    disk = make(tmp_path, 3 * block_bytes([TABLE]), contents="x")
    assert all(disk.put(0, [TABLE]) > 0 for _ in range(10))
    assert disk.put(1, [TABLE]) > 0


def test_block_of_a_job_is_written_once(tmp_path: Path) -> None:
    disk = make(tmp_path, 3 * block_bytes([TABLE]))
    assert disk.put(0, [TABLE]) > 0
    assert all(disk.put(0, [TABLE]) == 0 for _ in range(10))
    assert disk.put(1, [TABLE]) > 0


def write_half(descriptor: int, data: Any, offset: int) -> int:
    if len(data) > 1_000:
        os.pwrite(descriptor, data[:1_000], offset)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return os.pwrite(descriptor, data, offset)


@pytest.mark.parametrize("contents", ["", "x"], ids=["job", "persistent"])
def test_failed_write_counts_no_bytes_and_leaves_no_file(tmp_path: Path, contents: str) -> None:
    first, second = (make(tmp_path, block_bytes([TABLE]), contents=contents) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(system_calls, "pwrite", write_half)
        assert first.put(0, [TABLE]) == 0
    assert first.failure.startswith("decoded blocks are no longer cached in")
    assert "No space left on device" in first.failure
    assert {path.suffix for path in first.path.iterdir()} <= {"", ".arena"}
    assert second.put(0, [TABLE]) > 0


def test_uncreatable_folder_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    disk = make(tmp_path / "file")
    assert disk.put(0, [TABLE]) == 0
    assert "cannot be created" in disk.failure


def test_paths_in_warnings_move_no_cursor(tmp_path: Path) -> None:
    parent = tmp_path / "a\x1b[2Jb"
    removed = make(parent)
    assert removed.put(0, [TABLE]) > 0
    shutil.rmtree(parent)
    assert not removed.is_in_use()
    parent.write_text("not a folder")
    blocked = make(parent)
    assert blocked.put(0, [TABLE]) == 0
    for disk, text in ((removed, "was removed"), (blocked, "cannot be created")):
        assert text in disk.failure
        assert "\x1b" not in disk.failure
        assert r"a\x1b[2Jb" in disk.failure


def test_nothing_is_cached_after_a_block_that_did_not_fit(tmp_path: Path) -> None:
    disk = make(tmp_path, block_bytes([TABLE]) - 1)
    assert disk.put(0, [TABLE]) == 0
    assert not disk.accepts_blocks
    assert disk.put(1, [TABLE.slice(0, 1)]) == 0


def test_late_task_of_an_ended_job_caches_nothing_and_reports_no_failure(
    tmp_path: Path,
) -> None:
    disk = make(tmp_path)
    assert disk.put(0, [TABLE]) > 0
    make(tmp_path).remove()
    assert disk.put(1, [TABLE]) == 0
    assert disk.failure == ""

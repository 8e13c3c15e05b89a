"""Files by the paths of a column: local and remote ones, in order, and their errors one by one."""

from __future__ import annotations

import pickle
import threading
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from windrow.core.errors import PlanError, SourceError
from windrow.io.storage import path_contents
from windrow.io.storage.path_contents import PathReader


def read(paths: list[str | None], reader: PathReader | None = None) -> list[bytes | None]:
    return [None if load is None else bytes(load()) for load in (reader or PathReader()).loads(paths)]


def test_local_files_in_order(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}").write_bytes(bytes(number))
    paths: list[str | None] = [str(tmp_path / "2"), None, str(tmp_path / "0"), f"file://{tmp_path}/1"]
    assert read(paths) == [bytes(2), None, b"", bytes(1)]
    assert read([None, None]) == [None, None]
    assert read([]) == []


def test_remote_files_in_order() -> None:
    memory = fsspec.filesystem("memory")
    for number in range(40):
        memory.pipe_file(f"/contents/{number}", bytes([number]) * number)
    paths: list[str | None] = [f"memory://contents/{number}" for number in range(40)]
    assert read(paths) == [bytes([number]) * number for number in range(40)]
    assert read(["/contents/3"], PathReader(memory)) == [bytes([3]) * 3]


@pytest.mark.parametrize("root", ["{tmp_path}/", "memory://none/"])
def test_a_missing_file_fails_by_itself(root: str, tmp_path: Path) -> None:
    root = root.format(tmp_path=tmp_path)
    fsspec.filesystem("memory").pipe_file("/none/there", b"x")
    (tmp_path / "there").write_bytes(b"x")
    first, second = PathReader().loads([f"{root}missing", f"{root}there"])
    assert first is not None
    assert second is not None
    with pytest.raises(SourceError, match=r"missing"):
        first()
    assert bytes(second()) == b"x"


def test_files_may_be_read_after_the_last_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, named = fsspec.filesystem("memory"), threading.Event()
    for number in range(100):
        memory.pipe_file(f"/many/{number}", bytes([number]))

    def read_later(*arguments: Any) -> Any:
        assert named.wait(60)
        return read_remote(*arguments)

    read_remote = path_contents._read_remote
    monkeypatch.setattr(path_contents, "_read_remote", read_later)
    loads = list(PathReader().loads([f"memory://many/{number}" for number in range(100)]))
    named.set()
    assert [bytes(load()) for load in loads if load is not None] == [bytes([number]) for number in range(100)]


def test_a_caller_that_stops_waits_for_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, released, started = fsspec.filesystem("memory"), threading.Event(), []
    for number in range(3):
        memory.pipe_file(f"/slow/{number}", b"x")

    def hang(*_: Any) -> None:
        started.append(1)
        released.wait(60)

    monkeypatch.setattr(path_contents, "_read_remote", hang)
    monkeypatch.setattr(path_contents, "_READ_THREADS", 2)
    try:
        loads: Any = PathReader().loads([f"memory://slow/{number}" for number in range(3)])
        next(loads)
        begin = time.monotonic()
        loads.close()
        assert time.monotonic() - begin < 30
    finally:
        released.set()
    assert len(started) <= 2


def test_paths_on_two_filesystems_are_not_read() -> None:
    with pytest.raises(PlanError, match="different filesystems"):
        read(["memory://a", "/b"])


def test_readers_can_be_pickled_and_keep_secrets() -> None:
    reader = PathReader(None, {"key": "secret"})
    assert pickle.loads(pickle.dumps(reader)) == reader
    assert hash(reader) == hash(PathReader())
    assert "secret" not in repr(reader)

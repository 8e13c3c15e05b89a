"""A persistent block is verified again whenever its file has changed since the last verification."""

from __future__ import annotations

import os
from pathlib import Path

import pyarrow as pa
import pytest

from windrow.pipeline.tasks.cache import persistent_store
from windrow.pipeline.tasks.cache.block_file import CorruptCachedBlockError, read_block
from windrow.pipeline.tasks.cache.persistent_store import PersistentStore

TABLE = pa.table({"x": range(1_000)})


@pytest.fixture
def verified(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each read, whether it verified the block."""
    seen: list[bool] = []

    def note(descriptor: int, key: bytes, *, verify: bool = True) -> list[pa.Table]:
        seen.append(verify)
        return read_block(descriptor, key, verify=verify)

    monkeypatch.setattr(persistent_store, "read_block", note)
    return seen


def open_store(folder: Path) -> PersistentStore:
    store = PersistentStore(folder, lambda block, token: b"%32d" % block)
    assert store.put(0, [TABLE], None)
    return store


def let_settle(folder: Path) -> Path:
    """Backdate the file of block 0."""
    path = folder / "0.arrows"
    os.utime(path, (1_000, 1_000))
    return path


def test_unchanged_file_is_verified_once(
    tmp_path: Path, verified: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent_store, "_SETTLED_NS", -1)
    store = open_store(tmp_path)
    assert [store.find(0) for _ in range(3)] == [[TABLE]] * 3
    assert verified == [True, False, False]
    # writing the block again creates another file
    store.put(0, [TABLE], None)
    assert store.find(0) == [TABLE]
    assert verified[-1]


def test_recently_changed_file_is_verified_on_every_read(tmp_path: Path, verified: list[bool]) -> None:
    store = open_store(tmp_path)
    let_settle(tmp_path)
    # ctime cannot be backdated
    assert [store.find(0) for _ in range(2)] == [[TABLE]] * 2
    assert verified == [True, True]


def test_modified_file_is_verified_again(
    tmp_path: Path, verified: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent_store, "_SETTLED_NS", -1)
    store = open_store(tmp_path)
    path = let_settle(tmp_path)
    assert [store.find(0) for _ in range(2)] == [[TABLE]] * 2
    with open(path, "r+b", buffering=0) as file:
        file.seek(4_000)
        file.write(b"?")
    with pytest.raises(CorruptCachedBlockError):
        store.find(0)
    assert verified == [True, False, True]


def test_file_modified_during_a_read_is_read_again(
    tmp_path: Path, verified: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(persistent_store, "_SETTLED_NS", -1)
    store = open_store(tmp_path)
    path = let_settle(tmp_path)
    assert store.find(0) == [TABLE]
    real = vars(persistent_store)["read_block"]

    def write_first(descriptor: int, key: bytes, *, verify: bool = True) -> list[pa.Table]:
        if not verify:
            with open(path, "r+b", buffering=0) as file:
                file.seek(4_000)
                file.write(b"?")
        tables: list[pa.Table] = real(descriptor, key, verify=verify)
        return tables

    monkeypatch.setattr(persistent_store, "read_block", write_first)
    with pytest.raises(CorruptCachedBlockError):
        store.find(0)
    assert verified == [True, False, True]


@pytest.mark.timeout(20)
def test_pipe_in_place_of_a_file_is_corrupt_and_does_not_block(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    (tmp_path / "0.arrows").unlink()
    os.mkfifo(tmp_path / "0.arrows")
    with pytest.raises(CorruptCachedBlockError, match="plain file"):
        store.find(0)
    store.evict(0)
    assert store.find(0) is None

"""The fall-backs of calls that only some systems have do what these calls do."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windrow.core.errors import PlanError
from windrow.core.shared_batches import SharedPool
from windrow.core.system import files, locks, memory, processes

CONTENT = bytes(range(256)) * 5
PLACES = st.integers(0, len(CONTENT) + 10)


@pytest.fixture(scope="module")
def descriptor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("files") / "content"
    path.write_bytes(CONTENT)
    opened = files.open_file(path, os.O_RDWR)
    yield opened
    os.close(opened)


@given(place=PLACES, size=PLACES)
def test_read_at_an_offset(descriptor: int, place: int, size: int) -> None:
    assert files._pread(descriptor, size, place) == os.pread(descriptor, size, place)


@given(place=PLACES, sizes=st.lists(st.integers(0, 500), min_size=1, max_size=4))
def test_read_into_buffers(descriptor: int, place: int, sizes: list[int]) -> None:
    ours, theirs = ([bytearray(size) for size in sizes] for _ in range(2))
    assert files._preadv(descriptor, ours, place) == os.preadv(descriptor, theirs, place)
    assert ours == theirs
    counts = []
    for read, into in ((files._readv, ours), (os.readv, theirs)):
        os.lseek(descriptor, place, os.SEEK_SET)
        counts.append(read(descriptor, into))
    assert counts[0] == counts[1]
    assert ours == theirs


def test_a_read_that_ends_early_fills_no_further_buffer() -> None:
    buffers = [bytearray(3), bytearray(3)]
    assert files._fill(buffers, lambda _: b"ab") == 2
    assert buffers == [b"ab\0", b"\0\0\0"]


@given(place=st.integers(0, 30), data=st.binary(min_size=1, max_size=20))
def test_write_at_an_offset(place: int, data: bytes) -> None:
    found = []
    for write in (files._pwrite, os.pwrite):
        with tempfile.TemporaryFile() as file:
            assert write(file.fileno(), data, place) == len(data)
            found.append(os.pread(file.fileno(), 100, 0))
    assert found[0] == found[1]


@pytest.mark.parametrize("flag", [files._TMPFILE, 0], ids=["O_TMPFILE", "unlinked"])
def test_a_file_without_a_name_leaves_nothing(
    flag: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_TMPFILE", flag)
    opened = files.open_nameless(tmp_path, ".tmp")
    assert list(tmp_path.iterdir()) == []
    assert os.write(opened, b"x") == 1
    os.close(opened)


@pytest.mark.parametrize("system", ["linux", "win32"])
def test_links(system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", system)
    files.write_link("ein Téxt:1", tmp_path / "link")
    assert files.read_link(tmp_path / "link") == "ein Téxt:1"
    assert (tmp_path / "link").is_symlink() == (system == "linux")
    with pytest.raises(FileExistsError):
        files.write_link("another", tmp_path / "link")


def test_paths_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert files.forward_slashes("a\\b/c") == "a/b/c"
    assert files.forward_slashes("/C:/data") == "C:/data"
    monkeypatch.setattr(sys, "platform", "linux")
    assert files.forward_slashes("a\\b") == "a\\b"


def test_locks_exclude_and_end_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "lease"
    first, second = (files.open_file(path, os.O_RDWR | os.O_CREAT) for _ in range(2))
    assert locks.try_lock(first, exclusive=True)
    assert not locks.try_lock(second, exclusive=False)
    assert locks.try_lock(first, exclusive=False)
    assert locks.try_lock(second, exclusive=False)
    assert not locks.try_lock(first, exclusive=True)
    os.close(second)
    assert locks.try_lock(first, exclusive=True)
    os.close(first)


def test_shared_memory_without_memory_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    pool = SharedPool(2**20)
    buffer = pool.take(5000)
    buffer[:] = 7
    assert os.pread(pool.descriptor, 5000, 0) == b"\7" * 5000


def test_systems_without_shared_memory_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "SHARES_MEMORY", False)
    monkeypatch.setattr(memory, "NAME", "Windows")
    with pytest.raises(PlanError, match=r"not supported on Windows: leave out compute="):
        SharedPool(2**20)


def test_no_statistics_where_none_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    assert processes.count_waits() is None
    assert processes.major_faults() == 0
    assert processes.open_file_limits() == (None, None)
    assert processes.usable_cores() >= 1
    assert processes.end_signals()

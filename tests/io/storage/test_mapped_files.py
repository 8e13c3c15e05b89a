"""Local files that stay mapped: the file that is at the path now is read; within a limit, until nobody needs it."""

from __future__ import annotations

import gc
import os
import pickle
import sys
from pathlib import Path
from weakref import WeakSet

import pyarrow as pa
import pytest

from windrow.io.storage import mapped_files
from windrow.io.storage.file_versions import read_local_version
from windrow.io.storage.mapped_files import MappedFiles

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads what is mapped from /proc")


def write(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


def read(files: MappedFiles, path: str) -> bytes:
    file, version = files.open(path)
    assert version == read_local_version(path)
    with file:
        return bytes(file.read())


def count_mappings(path: str) -> int:
    return Path("/proc/self/maps").read_text().count(f" {path}\n")


def count_descriptors(path: str) -> int:
    found = (os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_open(name))
    return sum(target == path for target in found)


def _is_open(name: str) -> bool:
    return os.path.lexists(f"/proc/self/fd/{name}")


def test_a_file_is_mapped_once_and_keeps_no_descriptor(tmp_path: Path) -> None:
    path, files = write(tmp_path / "a", b"x" * 10_000), MappedFiles()
    for _ in range(3):
        assert read(files, path) == b"x" * 10_000
    assert count_mappings(path) == 1
    assert count_descriptors(path) == 0


def test_it_is_unmapped_with_its_dataset_once_no_data_refers_to_it(tmp_path: Path) -> None:
    path, files = write(tmp_path / "a", b"x" * 10_000), MappedFiles()
    data = files.open(path)[0].read_buffer()
    del files
    gc.collect()
    assert count_mappings(path) == 1
    assert data.to_pybytes() == b"x" * 10_000
    del data
    gc.collect()
    assert count_mappings(path) == 0


@pytest.mark.parametrize("size", [0, 10, 20_000])
def test_a_file_that_was_replaced_is_read_again(tmp_path: Path, size: int) -> None:
    path, files = write(tmp_path / "a", b"x" * 10_000), MappedFiles()
    assert read(files, path) == b"x" * 10_000
    os.replace(write(tmp_path / "b", b"y" * size), path)
    for _ in range(2):
        assert read(files, path) == b"y" * size


def test_a_file_that_was_written_over_is_read_again(tmp_path: Path) -> None:
    path, files = write(tmp_path / "a", b"x" * 10_000), MappedFiles()
    assert read(files, path) == b"x" * 10_000
    then = os.stat(path)
    write(tmp_path / "a", b"y" * 5_000)
    os.utime(path, ns=(then.st_atime_ns, then.st_mtime_ns + 1))
    assert read(files, path) == b"y" * 5_000


def test_a_file_that_is_gone_is_not_found(tmp_path: Path) -> None:
    path, files = write(tmp_path / "a", b"x" * 10_000), MappedFiles()
    assert read(files, path) == b"x" * 10_000
    os.unlink(path)
    with pytest.raises(FileNotFoundError):
        files.open(path)


def test_a_file_that_is_replaced_meanwhile_has_the_version_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, files = write(tmp_path / "a", b"x" * 10_000), MappedFiles()
    before, other = read_local_version(path), write(tmp_path / "b", b"y" * 10_000)
    mapped = pa.memory_map

    def replace_and_map(name: str) -> object:
        os.replace(other, path)
        return mapped(name)

    monkeypatch.setattr(pa, "memory_map", replace_and_map)
    # its reader looks once more when it has read, and finds another
    assert files.open(path)[1] == before != read_local_version(path)
    monkeypatch.undo()
    assert read(files, path) == b"y" * 10_000


@pytest.mark.parametrize(("limit", "value"), [("_MAX_FILES", 2), ("_MAX_BYTES", 25_000)])
def test_the_files_of_all_datasets_stay_within_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    others = list(mapped_files._ALL)
    monkeypatch.setattr(mapped_files, "_ALL", WeakSet())
    monkeypatch.setattr(mapped_files, limit, value)
    paths = [write(tmp_path / str(number), b"x" * 10_000) for number in range(4)]
    first, second = MappedFiles(), MappedFiles()
    for files, path in zip((first, second, first, second), paths, strict=True):
        for _ in range(2):
            assert read(files, path) == b"x" * 10_000
    assert [count_mappings(path) for path in paths] == [1, 1, 0, 0]
    # the files of a dataset that is gone make room
    del first, files
    gc.collect()
    assert read(second, paths[3]) == b"x" * 10_000
    assert [count_mappings(path) for path in paths] == [0, 1, 0, 1]
    del others


def test_where_files_that_are_open_cannot_be_replaced_none_stays_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapped_files, "REMOVES_OPEN_FILES", False)
    path, files = write(tmp_path / "a", b"x" * 10_000), MappedFiles()
    assert read(files, path) == b"x" * 10_000
    gc.collect()
    assert count_mappings(path) == 0


def test_pickled_it_has_no_files(tmp_path: Path) -> None:
    path, files = write(tmp_path / "a", b"x" * 10_000), MappedFiles()
    assert read(files, path) == b"x" * 10_000
    assert not pickle.loads(pickle.dumps(files))._found

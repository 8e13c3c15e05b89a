"""Filesystems of fsspec in forked processes, such as the workers of torch's DataLoader."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest

import windrow
from tests.io.storage.web_server import serving_folder
from windrow.io.storage.forked_filesystems import in_this_process

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no forks"),
    pytest.mark.timeout(60),
]


def succeeds_in_fork(call: Callable[[], bool]) -> bool:
    """Whether a call returns True in a forked process."""
    with warnings.catch_warnings():
        # of threads that the fork does not have
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if call() else 1
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "a.txt").write_text("1\n2\n")
    with serving_folder(tmp_path) as found:
        yield found


def test_a_fork_reads_what_its_parent_planned(url: str) -> None:
    pytest.importorskip("aiohttp")
    planned = windrow.read_text(url)
    # the parent's event loop runs
    assert planned.count() == 2
    again = fsspec.filesystem("http")
    assert succeeds_in_fork(lambda: [row["text"] for row in planned.take()] == ["1", "2"])
    assert succeeds_in_fork(lambda: windrow.read_text(f"{url}a.txt", filesystem=again).count() == 2)
    assert planned.count() == 2


def test_a_fork_reads_zarr_stores(url: str, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    pytest.importorskip("aiohttp")
    group = zarr.create_group(str(tmp_path / "store"))
    group.create_array("x", shape=(6,), dtype="i8", chunks=(2,))[:] = range(6)
    planned = windrow.read_zarr(f"{url}store")
    assert planned.count() == 6
    assert succeeds_in_fork(lambda: planned.to_numpy()["x"].tolist() == list(range(6)))


def test_a_filesystem_is_copied_once_with_what_it_wraps() -> None:
    pytest.importorskip("aiohttp")
    inner = fsspec.filesystem("http", client_kwargs={"trust_env": False})
    outer = fsspec.filesystem("dir", path="http://host/x", fs=inner)
    memory = fsspec.filesystem("memory")
    assert in_this_process(outer) is outer

    def is_copied() -> bool:
        copy = in_this_process(outer)
        return (
            copy is not outer
            and copy is in_this_process(outer)
            and copy.fs.client_kwargs == inner.client_kwargs
            and copy.fs.loop.is_running()
            and in_this_process(memory) is memory
        )

    assert succeeds_in_fork(is_copied)

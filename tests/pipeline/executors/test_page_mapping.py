"""Pages of the object store are mapped ahead where they exist, and none are made."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import ray

from windrow.pipeline.executors.ray import worker_process
from windrow.pipeline.executors.ray.worker_process import ObjectStorePages

resource = pytest.importorskip("resource")

CHUNK = 2 * 2**20
STORE_BYTES = 32 * CHUNK
WRITTEN = 24 * CHUNK + 4096  # the last chunk has one page
SHARED = Path("/dev/shm")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not SHARED.is_dir(), reason="needs Linux's shared memory"
)

_WRITE = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0) as store:
    for at in range(0, int(sys.argv[2]), 4096):
        store[at] = 1
"""


class Store:
    """A store of which another process has written the beginning, mapped here."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.truncate(path, STORE_BYTES)
        self.map_anew()

    def write_elsewhere(self, nbytes: int) -> None:
        subprocess.run([sys.executable, "-c", _WRITE, str(self.path), str(nbytes)], check=True)

    def map_anew(self) -> None:
        with self.path.open("r+b") as file:
            self.array = np.frombuffer(mmap.mmap(file.fileno(), STORE_BYTES), np.uint8)

    def find(self) -> tuple[int, int]:
        return self.array.ctypes.data, STORE_BYTES

    def made_bytes(self) -> int:
        return os.stat(self.path).st_blocks * 512

    def faults_of_writing(self, nbytes: int) -> int:
        before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
        self.array[:nbytes:4096] = 2
        return int(resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before)


@pytest.fixture
def store() -> Iterator[Store]:
    with tempfile.NamedTemporaryFile(dir=SHARED, prefix="windrow-test-") as file:
        yield Store(Path(file.name))


def supported(store: Store) -> bool:
    return worker_process._call_libc(
        "madvise", store.find()[0], 4096, ctypes.c_int(worker_process._POPULATE_READ)
    )


def test_what_others_wrote_is_written_without_faults(store: Store) -> None:
    if not supported(store):
        pytest.skip("this system cannot populate pages")
    store.map_anew()
    store.write_elsewhere(WRITTEN)
    made = store.made_bytes()
    assert ObjectStorePages(store.find).map_ahead() == 24 * CHUNK
    assert store.made_bytes() == made  # the chunk that is not whole, and those that are not there, stay
    faults = store.faults_of_writing(24 * CHUNK)
    store.map_anew()
    assert store.faults_of_writing(24 * CHUNK) > 10 * (faults + 1)  # as it is without


def test_it_looks_again_when_it_is_time_and_more_rarely_where_nothing_is_found(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not supported(store):
        pytest.skip("this system cannot populate pages")
    now = [0.0]
    looked: list[float] = []

    def exists(address: int, nbytes: int) -> bool:
        looked.append(now[0])
        return ask(address, nbytes)

    ask = worker_process._is_resident
    monkeypatch.setattr(worker_process, "_is_resident", exists)
    watched = ObjectStorePages(store.find, clock=lambda: now[0])
    store.write_elsewhere(2 * CHUNK)
    assert watched.map_ahead() == 2 * CHUNK
    assert watched.map_ahead() == 0  # too early
    store.write_elsewhere(5 * CHUNK)
    now[0] = 0.3
    assert watched.map_ahead() == 3 * CHUNK
    while now[0] < 40:
        now[0] += 0.05
        assert watched.map_ahead() == 0
    times = sorted(set(looked))
    assert times[-1] - times[-2] == pytest.approx(8.0, abs=0.1)
    assert len(times) < 12


def test_no_more_than_some_at_a_call(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    if not supported(store):
        pytest.skip("this system cannot populate pages")
    monkeypatch.setattr(worker_process, "_MAX_BYTES_PER_CALL", 3 * CHUNK)
    monkeypatch.setattr(worker_process, "_MIN_PAUSE_SECONDS", 0.0)
    store.write_elsewhere(8 * CHUNK)
    watched = ObjectStorePages(store.find)
    assert [watched.map_ahead() for _ in range(3)] == [3 * CHUNK, 3 * CHUNK, 2 * CHUNK]


def test_it_does_not_look_far_beyond_what_is_used(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    if not supported(store):
        pytest.skip("this system cannot populate pages")
    monkeypatch.setattr(worker_process, "_MAX_MISSES_PER_CALL", 3)
    monkeypatch.setattr(worker_process, "_MIN_PAUSE_SECONDS", 0.0)
    store.write_elsewhere(2 * CHUNK)
    watched = ObjectStorePages(store.find)
    assert watched.map_ahead() == 2 * CHUNK
    store.write_elsewhere(7 * CHUNK)
    assert watched.map_ahead() == 5 * CHUNK  # each call counts misses from zero


@pytest.mark.parametrize("call", ["mincore", "madvise"])
def test_systems_that_cannot_be_asked(store: Store, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    ask = worker_process._call_libc
    monkeypatch.setattr(worker_process, "_call_libc", lambda name, *args: name != call and ask(name, *args))
    store.write_elsewhere(2 * CHUNK)
    watched = ObjectStorePages(store.find, clock=iter([0.0, 10.0, 30.0]).__next__)
    assert [watched.map_ahead() for _ in range(3)] == [0, 0, 0]
    assert (watched._unmapped == []) == (call == "madvise")  # a system without the call is not tried again


def test_what_is_used_in_part_does_not_hide_what_lies_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not supported(store):
        pytest.skip("this system cannot populate pages")
    monkeypatch.setattr(worker_process, "_MAX_MISSES_PER_CALL", 2)
    store.write_elsewhere(8 * CHUNK)
    exists = worker_process._is_resident
    start = store.find()[0]

    def lacks_pages_in_front(address: int, nbytes: int) -> bool:
        in_part = address < start + 4 * CHUNK and nbytes > 4096
        return not in_part and exists(address, nbytes)

    monkeypatch.setattr(worker_process, "_is_resident", lacks_pages_in_front)
    assert ObjectStorePages(store.find).map_ahead() == 4 * CHUNK


def test_a_store_that_is_mapped_later_or_elsewhere_is_found(store: Store) -> None:
    if not supported(store):
        pytest.skip("this system cannot populate pages")
    store.write_elsewhere(2 * CHUNK)
    places: list[tuple[int, int] | None] = [None, (2**20, CHUNK), store.find(), store.find()]
    watched = ObjectStorePages(lambda: places.pop(0), clock=iter([0.0, 10.0, 30.0, 60.0]).__next__)
    assert [watched.map_ahead() for _ in range(4)] == [0, 0, 2 * CHUNK, 0]


def test_file_names_can_have_any_encoding(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9"
    with open(path, "w+b") as file:
        file.write(b"x" * 4096)
        file.flush()
        with mmap.mmap(file.fileno(), 4096):
            assert ObjectStorePages().map_ahead() >= 0


def test_without_a_store() -> None:
    assert ObjectStorePages(lambda: None).map_ahead() == 0


def test_an_address_that_is_gone_is_not_touched() -> None:
    assert ObjectStorePages(lambda: (2**20, 4 * CHUNK)).map_ahead() == 0


def test_a_worker_finds_its_store(ray_local: object) -> None:
    kept = ray.put(np.ones(64 * 2**20, np.uint8))

    def find(there: np.ndarray) -> tuple[tuple[int, int] | None, int]:
        return worker_process._find_store(), there.ctypes.data

    found, address = ray.get(ray.remote(find).remote(kept))
    assert found is not None
    start, nbytes = found
    assert start <= address < start + nbytes

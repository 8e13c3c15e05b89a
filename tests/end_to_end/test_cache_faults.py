"""Faults of the disk cache: full disks, deleted folders and modified files do not change the rows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.pipeline.statistics.stats import RunStats

pytestmark = pytest.mark.timeout(170)

BLOCKS, ROWS, EPOCHS = 20, 500, 3
Rows = list[list[int]]
MAIN = "import sys, tests.end_to_end.test_cache_faults as test; test.main(*sys.argv[1:])"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 row groups of a quarter of a megabyte each, with text and lists."""
    path = tmp_path_factory.mktemp("data") / "x.parquet"
    x = np.arange(BLOCKS * ROWS)
    text = [f"{n:<400}" for n in x]
    table = pa.table({"x": x, "text": text, "list": [[n] * (n % 7) for n in x.tolist()]})
    pq.write_table(table, path, row_group_size=ROWS, compression="none")
    return path


def make(data: Path, executor: str, **options: Any) -> Any:
    ds = windrow.read_parquet(data, target_block_bytes=1)
    pipe = ds.window(blocks_per_window=6).repeat(EPOCHS).random_shuffle_each_window(seed=3)
    return pipe.options(executor=executor, memory_limit="64MiB", progress=False, **options)


@pytest.fixture(scope="module")
def expected(data: Path) -> Rows:
    return read(make(data, "threads"))[0]


def read(pipe: Any, meanwhile: Callable[[], None] = lambda: None) -> tuple[Rows, RunStats, list[str]]:
    """The rows of each epoch, the final statistics and the warnings; ``meanwhile`` is called once during the run."""
    rows: Rows = []
    with warnings.catch_warnings(record=True) as warned, pipe.iterator() as shard:
        warnings.simplefilter("always")
        for epoch in shard.iter_epochs():
            rows.append([])
            for number, batch in enumerate(epoch.iter_batches(100, batch_format="pyarrow")):
                x = batch["x"].to_pylist()
                assert batch["text"].to_pylist() == [f"{n:<400}" for n in x]
                assert batch["list"].to_pylist() == [[n] * (n % 7) for n in x]
                rows[-1] += x
                if (epoch.number, number) == (0, 60):
                    meanwhile()
        run = shard.stats().run
    return rows, run, [str(each.message) for each in warned if "cache" in str(each.message)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 50 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=50m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("file systems are mounted by root alone")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path, left_bytes: int = 0) -> None:
    path = folder / "of somebody else"
    with suppress(OSError), open(path, "wb", buffering=0) as file:
        while True:
            file.write(bytes(2**16))
    os.truncate(path, path.stat().st_size - left_bytes)


@pytest.mark.parametrize("keep", [False, True])
def test_disk_that_fills_up_during_a_run(
    executor: str, data: Path, expected: Rows, small_disk: Path, keep: bool
) -> None:
    fill(small_disk, 2**21)
    pipe = make(data, executor, cache="disk", cache_dir=small_disk, keep_cache=keep, cache_limit="40MiB")
    rows, run, warned = read(pipe, lambda: fill(small_disk))
    assert rows == expected
    (line,) = warned
    assert "No space left on device" in line
    assert run.cache_errors >= 1
    assert run.cache_corrupt_blocks == 0
    # blocks cached before are still used
    assert run.cache_hits > 0


@pytest.mark.ray_at_night
def test_disk_that_is_full_from_the_start(
    executor: str, data: Path, expected: Rows, small_disk: Path
) -> None:
    fill(small_disk)
    rows, run, warned = read(make(data, executor, cache="disk", cache_dir=small_disk))
    assert rows == expected
    assert len(warned) == 1
    assert run.cache_errors >= 1
    assert run.cache_hits == 0


@pytest.mark.ray_at_night
def test_read_only_disk(executor: str, data: Path, expected: Rows, small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    rows, run, warned = read(make(data, executor, cache="disk", cache_dir=small_disk))
    assert rows == expected
    (line,) = warned
    assert "Read-only file system" in line
    assert run.cache_errors >= 1


@pytest.mark.ray_at_night
def test_folder_deleted_during_a_run(executor: str, data: Path, expected: Rows, tmp_path: Path) -> None:
    def delete() -> None:
        (folder,) = tmp_path.glob("windrow-run-*")
        # rmtree fails if a file is written at that moment, so it is repeated
        while folder.exists():
            shutil.rmtree(folder, ignore_errors=True)

    rows, run, warned = read(make(data, executor, cache="disk", cache_dir=tmp_path), delete)
    assert rows == expected
    # a process that has written every block no longer needs the folder
    assert len(warned) == min(1, run.cache_errors)
    assert run.cache_hits > 0 or run.cache_errors > 0


def flip(path: Path) -> None:
    with open(path, "r+b", buffering=0) as file:
        for at in range(0, path.stat().st_size, 1000):
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 0xFF]))


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.ray_at_night
@pytest.mark.parametrize("damage", [flip, cut, Path.unlink], ids=["flipped", "cut", "deleted"])
def test_cached_files_that_change_during_a_run(
    executor: str, data: Path, expected: Rows, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    def corruption() -> None:
        files = list(tmp_path.glob("windrow-kept-*/*.arrows"))
        assert len(files) > BLOCKS // 2
        for path in files:
            damage(path)

    pipe = make(data, executor, cache="disk", cache_dir=tmp_path, keep_cache=True)
    rows, run, warned = read(pipe, corruption)
    assert rows == expected
    if damage is Path.unlink:
        assert (run.cache_corrupt_blocks, warned) == (0, [])
    else:
        assert run.cache_corrupt_blocks >= BLOCKS // 2
        (line,) = warned
        assert "corrupt" in line
    # the files were written again
    rows, run, warned = read(pipe)
    assert rows == expected
    assert (run.cache_misses, run.cache_corrupt_blocks, warned) == (0, 0, [])


@pytest.mark.ray_at_night
def test_cached_blocks_of_a_run_are_private(
    executor: str, data: Path, expected: Rows, tmp_path: Path
) -> None:
    def corruption() -> None:
        # others are being written, and get their name when they are complete
        paths = [path for path in tmp_path.glob("windrow-run-*/*") if path.suffix != ".tmp"]
        assert sum(path.lstat().st_size for path in paths) < 20_000
        links = [path for path in paths if path.is_symlink()]
        assert len(links) > BLOCKS // 2
        targets = [os.readlink(path) for path in links]
        for number, path in enumerate(links):
            path.unlink()
            # the location of another block, an invalid location, and none
            if number % 3 < 2:
                path.symlink_to("nowhere" if number % 3 else targets[number - 1])

    rows, run, warned = read(make(data, executor, cache="disk", cache_dir=tmp_path), corruption)
    assert rows == expected
    assert len(warned) == min(1, run.cache_corrupt_blocks)
    assert run.cache_hits > 0


@pytest.mark.ray_at_night
def test_two_runs_share_a_folder(executor: str, data: Path, expected: Rows, tmp_path: Path) -> None:
    pipe = make(data, executor, cache="disk", cache_dir=tmp_path, keep_cache=True)
    command = [sys.executable, "-W", "ignore", "-c", MAIN, executor, str(data), str(tmp_path)]
    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(subprocess.run, command, check=True, capture_output=True, text=True)
        rows, run, warned = read(pipe)
        assert rows == expected
        assert warned == []
        assert [[int(x) for x in line.split()] for line in other.result().stdout.splitlines()] == expected
    assert (run.cache_errors, run.cache_corrupt_blocks) == (0, 0)


def test_later_runs_use_the_blocks_of_a_killed_writer(data: Path, expected: Rows, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", MAIN, "threads", str(data), str(tmp_path)]
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            while process.poll() is None and not list(tmp_path.glob("*/*.arrows")):
                pass
            os.kill(process.pid, signal.SIGKILL)
    rows, run, warned = read(make(data, "threads", cache="disk", cache_dir=tmp_path, keep_cache=True))
    assert rows == expected
    assert (run.cache_errors, warned) == (0, [])
    (folder,) = tmp_path.iterdir()
    assert not list(folder.glob("*.tmp"))
    assert len(list(folder.glob("*.arrows"))) == BLOCKS


def main(executor: str, data: str, folder: str) -> None:
    """Read in a separate process; prints the rows of each epoch on one line."""
    pipe = make(Path(data), executor, cache="disk", cache_dir=folder, keep_cache=True)
    for rows in read(pipe)[0]:
        print(*rows)

"""Folders that several processes share, and what is left of them."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.pipeline.cache.folder import SharedFolder, sweep_folders

HOLD = """
import sys, time
from pathlib import Path
from windrow.pipeline.cache.folder import SharedFolder
folder = SharedFolder(Path(sys.argv[1]))
assert folder.take(100, 1000)
(folder.path / "7.arrows").write_bytes(b"x" * 100)
(folder.path / "8-half.tmp").write_bytes(b"x" * 50)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def other(tmp_path: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run-1")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_a_folder_in_use_is_not_swept_and_one_of_a_killed_process_is(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    (tmp_path / "mine").mkdir()
    sweep_folders(tmp_path, "run-")
    assert (tmp_path / "run-1" / "7.arrows").exists()
    kill(other)
    sweep_folders(tmp_path, "run-")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_the_limit_is_that_of_all_processes(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    folder = SharedFolder(tmp_path / "run-1")
    assert not folder.take(901, 1000)
    assert folder.take(900, 1000)
    assert not folder.take(1, 1000)
    folder.give_back(10)
    assert folder.take(10, 1000)
    # another's unfinished files are its own
    assert (folder.path / "8-half.tmp").exists()
    kill(other)


def test_what_a_killed_process_left_unfinished_goes_with_the_next(
    tmp_path: Path, other: subprocess.Popen[str]
) -> None:
    kill(other)
    folder = SharedFolder(tmp_path / "run-1")
    assert sorted(path.name for path in folder.path.iterdir()) == ["7.arrows", "lease", "taken"]
    assert not folder.take(901, 1000)
    assert folder.take(800, 1000)


def test_without_a_limit_half_of_what_is_free(tmp_path: Path) -> None:
    folder = SharedFolder(tmp_path / "run-2")
    assert not folder.take(2**62, None)
    assert folder.take(1000, None)
    assert folder.path.stat().st_mode & 0o777 == 0o700


def test_files_take_no_more_than_is_free_whatever_the_limit(tmp_path: Path) -> None:
    assert not SharedFolder(tmp_path / "run-3").take(2**62, 2**63)


def test_what_files_take_counts_as_free_without_them(tmp_path: Path) -> None:
    folder, free = SharedFolder(tmp_path / "run-4"), shutil.disk_usage(tmp_path).free
    assert folder.take(free * 3 // 8, None)
    assert folder.take(free // 4, None)
    assert not folder.take(free // 4, None)

"""Temporary folders of staged rows are deleted with their owner, and no earlier."""

from __future__ import annotations

import fcntl
import gc
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from windrow.io.adapters.temporary_folder import LeasedFolder, sweep_folders

_MAKE = """
import os, pickle, signal, sys
from windrow.io.adapters.temporary_folder import LeasedFolder
folder = LeasedFolder(sys.argv[1])
print(folder.path, flush=True)
if sys.argv[2] == "pickled":
    pickle.dumps(folder)
    del folder
    print(len(os.listdir(sys.argv[1])), flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


def _make(parent: Path, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _MAKE, str(parent), how]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_folder_is_deleted_with_the_object(tmp_path: Path) -> None:
    folder = LeasedFolder(tmp_path)
    assert Path(folder.path).is_dir()
    del folder
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_pickled_folder_is_deleted_at_process_exit(tmp_path: Path) -> None:
    result = _make(tmp_path, "pickled")
    assert result.stdout.split()[1] == "1"
    assert list(tmp_path.iterdir()) == []


def test_sweep_deletes_folders_of_killed_processes_but_not_leased_ones(tmp_path: Path) -> None:
    held = LeasedFolder(tmp_path)
    assert _make(tmp_path, "killed").returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 2
    another = LeasedFolder(tmp_path)
    assert {str(path) for path in tmp_path.iterdir()} == {held.path, another.path}


def test_a_sweep_while_a_folder_is_made_does_not_delete_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flock, swept = fcntl.flock, []

    def sweep_first(descriptor: int, operation: int) -> None:
        if operation == fcntl.LOCK_SH:
            swept.append(list(tmp_path.iterdir()))
            sweep_folders(tmp_path, "windrow-staged-", "lease")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", sweep_first)
    folder = LeasedFolder(tmp_path)
    assert swept == [[Path(folder.path)]]
    assert Path(folder.path, "lease").exists()


def test_unpickled_copy_does_not_own_the_folder(tmp_path: Path) -> None:
    folder = LeasedFolder(tmp_path)
    there = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(folder))))
    path = folder.path
    del there
    gc.collect()
    assert Path(path).is_dir()
    assert folder.path == path

"""Temporary folders of staged rows are deleted with their owner, and no earlier."""

from __future__ import annotations

import gc
import pickle
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

import pytest

from windrow.core.system import locks
from windrow.io.adapters import temporary_folder
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
    lock, swept = locks.try_lock, list[Path]()

    def sweep_first(descriptor: int, *, exclusive: bool) -> bool:
        if not exclusive and not swept:
            swept.extend(tmp_path.iterdir())
            sweep_folders(tmp_path, "windrow-staged-", "lease")
        return lock(descriptor, exclusive=exclusive)

    monkeypatch.setattr(temporary_folder, "try_lock", sweep_first)
    folder = LeasedFolder(tmp_path)
    # the sweep deleted the first one, which was in nobody's use yet
    assert len(swept) == 1
    assert list(tmp_path.iterdir()) == [Path(folder.path)] != swept
    assert Path(folder.path, "lease").exists()


def test_a_sweep_that_has_the_lock_when_a_folder_is_made_gets_that_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, sweeping = locks.try_lock, list[BinaryIO]()

    def lock_second(descriptor: int, *, exclusive: bool) -> bool:
        if not exclusive and not sweeping:
            (path,) = tmp_path.glob("*/lease")
            sweeping.append(path.open("r+b"))
            assert lock(sweeping[0].fileno(), exclusive=True)
        return lock(descriptor, exclusive=exclusive)

    monkeypatch.setattr(temporary_folder, "try_lock", lock_second)
    folder = LeasedFolder(tmp_path)
    with sweeping[0] as swept:
        assert Path(swept.name).parent != Path(folder.path)


def test_unpickled_copy_does_not_own_the_folder(tmp_path: Path) -> None:
    folder = LeasedFolder(tmp_path)
    there = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(folder))))
    path = folder.path
    del there
    gc.collect()
    assert Path(path).is_dir()
    assert folder.path == path

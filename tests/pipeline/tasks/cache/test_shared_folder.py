"""Cache folders shared by several processes: leases, sweeping, size limits and locks."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from windrow.pipeline.tasks.cache import shared_folder as folder_module
from windrow.pipeline.tasks.cache import system_calls
from windrow.pipeline.tasks.cache.shared_folder import SharedFolder, end_folder, fits, sweep_folders

HOLD = """
import sys, time
from pathlib import Path
from windrow.pipeline.tasks.cache.shared_folder import SharedFolder
folder = SharedFolder(Path(sys.argv[1]))
(folder.path / "7.arrows").write_bytes(b"x" * 100)
{more}
print("held", flush=True)
time.sleep(600)
"""


def start(path: Path, more: str = "") -> subprocess.Popen[str]:
    """Start a process that uses a folder and runs ``more``."""
    command = [sys.executable, "-c", HOLD.format(more=more), str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_sweep_removes_folder_of_a_killed_process_but_not_one_in_use(tmp_path: Path) -> None:
    other = start(tmp_path / "run-1")
    (tmp_path / "mine").mkdir()
    sweep_folders(tmp_path, "run-")
    assert (tmp_path / "run-1" / "7.arrows").exists()
    kill(other)
    sweep_folders(tmp_path, "run-")
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_folder_is_tidied_only_by_its_sole_user(tmp_path: Path) -> None:
    tidied: list[Path] = []
    other = start(tmp_path / "run-1")
    with_other = SharedFolder(tmp_path / "run-1", tidied.append)
    assert tidied == []
    kill(other)
    assert SharedFolder(tmp_path / "run-1", tidied.append).path == with_other.path
    assert tidied == []
    del with_other
    SharedFolder(tmp_path / "run-1", tidied.append)
    assert tidied == [tmp_path / "run-1"]


def test_folder_is_accessible_only_to_its_owner(tmp_path: Path) -> None:
    assert SharedFolder(tmp_path / "run-2").path.stat().st_mode & 0o777 == 0o700


def test_files_fit_below_the_limit(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert fits(100, 900, 1000, tmp_path)
    assert not fits(101, 900, 1000, tmp_path)
    # the default limit is half of the space that is free without cached files
    assert fits(1000, 0, None, tmp_path)
    assert not fits(free * 3 // 4, 0, None, tmp_path)
    assert fits(free // 4, free * 3 // 8, None, tmp_path)
    assert not fits(free // 4, free * 5 // 8, None, tmp_path)


@pytest.mark.parametrize("limit", [None, 2**63])
def test_files_never_exceed_free_space(tmp_path: Path, limit: int | None) -> None:
    with pytest.raises(OSError, match="No space left"):
        fits(2**62, 0, limit, tmp_path)


def test_own_removal_of_the_folder_differs_from_removal_by_others(tmp_path: Path) -> None:
    one, two = (SharedFolder(tmp_path / name) for name in ("one", "two"))
    assert one.is_there
    assert two.is_there
    end_folder(one.path)
    shutil.rmtree(two.path)
    assert (one.is_there, one.has_ended) == (False, True)
    assert (two.is_there, two.has_ended) == (False, False)
    # another process has created it again
    assert SharedFolder(two.path).is_there
    assert not two.is_there


# --- locks


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "full"), RuntimeError("other")], ids=["full", "other"]
)
def test_lease_is_closed_on_any_exception(tmp_path: Path, error: Exception) -> None:
    """Otherwise this process would wait for itself when it acquires the lease again."""

    def fail(path: Path) -> None:
        raise error

    before = open_files()
    with pytest.raises(type(error)):
        SharedFolder(tmp_path / "run", fail)
    assert open_files() == before
    # a leaked lease would prevent the exclusive one that tidying needs
    tidied: list[Path] = []
    SharedFolder(tmp_path / "run", tidied.append)
    assert tidied


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_LOCK_SECONDS", 0.05)
    monkeypatch.setattr(folder_module, "_READING_SECONDS", 0.05)


LOCK = """
import fcntl
file = open(folder.path / "{name}", "w")
del folder  # and its shared lease, which would keep anybody from an exclusive one
fcntl.flock(file, fcntl.LOCK_EX)
"""


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("name", ["lease", "room"])
def test_lock_that_others_never_release_is_an_error(tmp_path: Path, name: str) -> None:
    folder = SharedFolder(tmp_path / "run") if name == "room" else None
    other = start(tmp_path / "run", LOCK.format(name=name))
    before = open_files()
    with pytest.raises(TimeoutError, match=f"locked by others.*{name}"), ExitStack() as stack:
        stack.enter_context(
            SharedFolder(tmp_path / "run").lock_space() if folder is None else folder.lock_space()
        )
    assert open_files() == before
    kill(other)
    with SharedFolder(tmp_path / "run").lock_space():
        pass


def test_killed_reader_releases_its_block(tmp_path: Path) -> None:
    more = "lock = folder.lock_block(3); lock.__enter__()"
    other = start(tmp_path / "run", more)
    folder = SharedFolder(tmp_path / "run")
    read = threading.Event()

    def wait() -> None:
        with folder.lock_block(3):
            read.set()

    thread = threading.Thread(target=wait)
    thread.start()
    with folder.lock_block(4):
        assert not read.is_set()
    kill(other)
    thread.join(timeout=50)
    assert read.is_set()


@pytest.mark.usefixtures("_impatient")
def test_wait_for_a_block_reader_is_bounded(tmp_path: Path) -> None:
    folder = SharedFolder(tmp_path / "run")
    with folder.lock_block(3), folder.lock_block(3):
        pass


@pytest.mark.usefixtures("_impatient")
def test_folder_that_keeps_vanishing_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    monkeypatch.setattr(folder_module, "_is_there", lambda lease, path: False)
    with pytest.raises(TimeoutError):
        SharedFolder(tmp_path / "run")
    assert open_files() == before


def test_sweep_ignores_unreadable_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> list[str]:
        raise PermissionError(errno.EACCES, "no")

    sweep_folders(tmp_path / "nowhere", "run-")
    monkeypatch.setattr(system_calls, "listdir", refuse)
    sweep_folders(tmp_path, "run-")

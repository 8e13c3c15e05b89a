"""Staging folders: incomplete ones are ignored; their process deletes them, or a sweep if it was killed."""

from __future__ import annotations

import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from windrow import PlanError, SourceError
from windrow.io.spark.spark_staging import delete_folder, open_root
from windrow.io.storage.filesystems import Files

MAKE = """
import os, sys, signal
from windrow.io.spark.spark_staging import open_root
folder = open_root(sys.argv[1], None).make("d")
if sys.argv[2] != "unfinished":
    folder.write_note({"keep": sys.argv[2] == "keep"})
if sys.argv[2] == "go":
    folder.delete_at_exit()
if sys.argv[2] == "fork":
    folder.delete_at_exit()
    if os.fork() == 0:
        sys.exit(0)
    os.wait()
    print(sorted(os.listdir(sys.argv[1])), flush=True)
print(folder.path, flush=True)
if sys.argv[3:] == ["wait"]:
    sys.stdin.read()
if sys.argv[3:] == ["die"]:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def make(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-c", MAKE, str(directory), *arguments]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode in (0, -signal.SIGKILL), result.stderr
    return result.stdout


def test_note_marks_a_folder_complete(tmp_path: Path) -> None:
    root = open_root(tmp_path, None)
    folder = root.make("digest")
    assert folder.read_note() is None
    folder.write_note({"rows": 3})
    assert folder.read_note() == {"rows": 3}
    assert root.find("digest") == [folder]
    assert root.find("dig") == []
    Path(folder.path, "_windrow_stage.json").write_text('{"rows"')
    assert folder.read_note() is None
    folder.delete()
    folder.delete()
    assert not Path(folder.path).exists()


def test_every_folder_is_unique(tmp_path: Path) -> None:
    root = open_root(tmp_path, None)
    assert len({root.make("digest").path for _ in range(10)}) == 10
    assert len(root.find("digest")) == 10


def test_default_folder_is_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    folder = open_root(None, None).make(None)
    assert stat.S_IMODE(Path(folder.path).stat().st_mode) == 0o700


def test_kept_folder_stays_and_others_are_deleted_at_exit(tmp_path: Path) -> None:
    kept = make(tmp_path, "keep").strip()
    gone = make(tmp_path, "go").strip()
    assert Path(kept).exists()
    assert not Path(gone).exists()


def test_a_forked_child_deletes_nothing(tmp_path: Path) -> None:
    listed, path = make(tmp_path, "fork").splitlines()
    assert Path(path).name in listed
    assert not Path(path).exists()


@pytest.mark.parametrize("state", ["unfinished", "go"])
def test_sweep_deletes_folders_of_killed_processes_unless_kept(tmp_path: Path, state: str) -> None:
    left = Path(make(tmp_path, state, "die").strip())
    kept = Path(make(tmp_path, "keep", "die").strip())
    (tmp_path / "windrow-stage-of-somebody-else").mkdir()
    assert left.exists()
    open_root(tmp_path, None).sweep()
    assert not left.exists()
    assert kept.exists()
    assert (tmp_path / "windrow-stage-of-somebody-else").exists()


def test_sweep_leaves_folders_of_running_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE, str(tmp_path), "unfinished", "wait"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as living:
        assert living.stdout is not None
        path = Path(living.stdout.readline().strip())
        root = open_root(tmp_path, None)
        own = root.make(None)
        root.sweep()
        assert path.exists()
        assert Path(own.path).exists()
        living.communicate()


def test_only_staged_folders_are_deleted(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    with pytest.raises(PlanError, match="precious is not a folder staged by from_spark"):
        delete_folder(Files(str(tmp_path / "precious")))
    folder = open_root(tmp_path, None).make(None)
    with pytest.raises(PlanError, match="has been deleted already"):
        delete_folder(Files(folder.path))
    folder.write_note({})
    delete_folder(Files(folder.path))
    assert not Path(folder.path).exists()
    assert (tmp_path / "precious").exists()


def test_unwritable_cache_dir_raises(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="give a cache_dir that can be written to"):
        open_root(tmp_path / "file", None).make(None)


def test_remote_folder_url_keeps_its_scheme(tmp_path: Path) -> None:
    root = open_root("memory://stages", None)
    assert root.make(None).url.startswith("memory://stages/windrow-stage-once-")

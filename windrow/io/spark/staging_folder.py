"""Folders of staged Spark files: a note marks them as complete, a lock (lease) as in use.

Spark writes into a folder with a unique name, and the note is written last, so that files of a
killed process are never considered complete. On a local disk, the process holds a lock on its
folders. The next process that stages there deletes folders that are neither locked nor kept.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windrow.core.errors import PlanError
from windrow.io.adapters.temporary_folder import sweep_folders
from windrow.io.storage.credentials import check_options, find_secrets, safe_cause, source_error, without_user
from windrow.io.storage.filesystems import Files, connect

__all__ = ["StageFolder", "StageRoot", "delete_folder", "open_root"]

_PREFIX = "windrow-stage-"
_NOTE = "_windrow_stage.json"
_LEASE = "_windrow_lease"


@dataclass(frozen=True)
class StageFolder:
    """One folder of staged files: its URL for Spark and ``read_parquet``, and its path in an fsspec filesystem."""

    url: str
    path: str
    filesystem: Any = field(repr=False)

    def write_note(self, note: Mapping[str, Any]) -> None:
        """Mark the folder as complete."""
        self.filesystem.pipe_file(f"{self.path}/{_NOTE}", json.dumps(note).encode())

    def read_note(self) -> dict[str, Any] | None:
        """Return the note; None if the folder is incomplete."""
        try:
            self.filesystem.invalidate_cache()
            note = json.loads(self.filesystem.cat_file(f"{self.path}/{_NOTE}"))
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None

    def delete(self) -> None:
        """Delete the folder, the note first, so that no process reads a half-deleted folder."""
        with suppress(FileNotFoundError):
            self.filesystem.rm_file(f"{self.path}/{_NOTE}")
        with suppress(FileNotFoundError):
            self.filesystem.rm(self.path, recursive=True)

    def delete_at_exit(self) -> None:
        """Delete the folder when this process, its owner, ends."""
        process = os.getpid()

        def delete() -> None:
            # a forked child does not own the folder; at exit, errors cannot be reported
            if os.getpid() == process:
                with suppress(Exception):
                    self.delete()

        atexit.register(delete)


@dataclass(frozen=True)
class StageRoot:
    """The parent directory of staging folders; see `open_root`.

    ``url``, ``path`` and ``filesystem`` are as in `StageFolder`. If it is ``private``, other users must not be
    able to read the folders. ``secrets`` must not appear in any message.
    """

    url: str
    path: str
    local: bool
    private: bool
    filesystem: Any = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def make(self, digest: str | None) -> StageFolder:
        """Create a folder with a unique name, which starts with the digest if there is one."""
        while True:
            folder = self._folder(f"{_PREFIX}{digest or 'once'}-{os.urandom(8).hex()}")
            try:
                # Spark creates remote folders; a local one can be swept before its lock is taken
                if not self.local or _create_and_lock(Path(folder.path), self.private):
                    return folder
            except OSError as error:
                fix = "give a cache_dir that can be written to"
                raise source_error(self.url, error, fix, self.secrets) from safe_cause(error, self.secrets)

    def find(self, digest: str) -> list[StageFolder]:
        """Return the folders of a digest, complete or not, sorted by name."""
        try:
            self.filesystem.invalidate_cache()
            found = self.filesystem.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        names = sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)
        return [self._folder(name) for name in names if name.startswith(f"{_PREFIX}{digest}-")]

    def sweep(self) -> None:
        """Delete folders of ended processes on a local disk, except kept ones."""

        def keeps(path: Path) -> object:
            return (self._folder(path.name).read_note() or {}).get("keep")

        if self.local:
            sweep_folders(Path(self.path), _PREFIX, _LEASE, keeps)

    def _folder(self, name: str) -> StageFolder:
        return StageFolder(f"{self.url}/{name}", f"{self.path}/{name}", self.filesystem)


def open_root(
    directory: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> StageRoot:
    """Resolve the parent directory; creates nothing.

    None: the system's temporary folder, with staging folders that only this user can read.
    """
    name = tempfile.gettempdir() if directory is None else os.fspath(directory)
    connection = connect(name, None, storage_options)
    (path,) = connection.paths
    local = connection.opener is None
    # Hadoop resolves a path without a scheme on its default filesystem
    url = f"file://{path}" if local else name.rstrip("/")
    secrets = find_secrets(check_options(storage_options))
    return StageRoot(url, path.rstrip("/"), local, directory is None, connection.lister, secrets)


def delete_folder(files: Files) -> None:
    """Delete the folder of files; a PlanError unless it is a complete staging folder."""
    connection = connect(files.root, files.filesystem, None)
    (path,) = connection.paths
    folder = StageFolder(files.url, path, connection.lister)
    if not path.rpartition("/")[2].startswith(_PREFIX) or folder.read_note() is None:
        name = without_user(files.url)
        raise PlanError(f"{name} is not a folder staged by from_spark(), or it has been deleted already")
    folder.delete()


def _create_and_lock(path: Path, private: bool) -> bool:
    """Create a folder and lock its lease file until this process ends; return False if it was swept meanwhile."""
    path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    lease = os.open(path / _LEASE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lease, fcntl.LOCK_EX)
    return (path / _LEASE).exists()

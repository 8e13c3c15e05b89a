"""A folder that holds what was staged: whole once its note is there, and gone when its process ends.

Spark writes into a folder that nobody else knows, and the note is written last, so what a killed
process leaves is never taken for whole. On a local disk the process holds a lock on its folders;
what no living process holds, and nobody asked to keep, is swept by the next to stage there.
"""

from __future__ import annotations

import atexit
import fcntl
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windrow.core.errors import PlanError
from windrow.io.storage.credentials import check_options, find_secrets, safe_cause, source_error, without_user
from windrow.io.storage.filesystems import Files, connect

__all__ = ["StageFolder", "StageRoot", "delete_folder", "open_root"]

_PREFIX = "windrow-stage-"
_NOTE = "_windrow_stage.json"
_LEASE = "_windrow_lease"


@dataclass(frozen=True)
class StageFolder:
    """One folder.

    Attributes
    ----------
    url
        Where it is, for Spark and for ``read_parquet``.
    path
        The same for ``filesystem``.
    filesystem
        An fsspec filesystem.
    """

    url: str
    path: str
    filesystem: Any = field(repr=False)

    def write_note(self, note: Mapping[str, Any]) -> None:
        """Say that everything is there."""
        self.filesystem.pipe_file(f"{self.path}/{_NOTE}", json.dumps(note).encode())

    def read_note(self) -> dict[str, Any] | None:
        """What was said; None where the folder is not whole."""
        try:
            self.filesystem.invalidate_cache()
            note = json.loads(self.filesystem.cat_file(f"{self.path}/{_NOTE}"))
        except (OSError, ValueError):
            return None
        return note if isinstance(note, dict) else None

    def delete(self) -> None:
        """Remove it, the note first, so that nobody takes for whole what is being removed."""
        with suppress(FileNotFoundError):
            self.filesystem.rm_file(f"{self.path}/{_NOTE}")
        with suppress(FileNotFoundError):
            self.filesystem.rm(self.path, recursive=True)

    def delete_at_exit(self) -> None:
        """Remove it when this process ends, which is the one that made it."""
        process = os.getpid()

        def delete() -> None:
            # a forked child is not the one that staged it; at the exit there is nobody to tell of errors
            if os.getpid() == process:
                with suppress(Exception):
                    self.delete()

        atexit.register(delete)


@dataclass(frozen=True)
class StageRoot:
    """The directory below which folders are made; see `open_root`.

    Attributes
    ----------
    url
        Where it is, for Spark and for ``read_parquet``.
    path
        The same for ``filesystem``.
    local
        Whether it is on this machine's disk.
    private
        Whether others may not look into the folders.
    filesystem
        An fsspec filesystem.
    secrets
        The credentials that must appear in no text.
    """

    url: str
    path: str
    local: bool
    private: bool
    filesystem: Any = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False)

    def make(self, digest: str | None) -> StageFolder:
        """Make a folder that nobody else has, named by a digest where there is one.

        Raises
        ------
        SourceError
            If nothing can be made there.
        """
        while True:
            folder = self._folder(f"{_PREFIX}{digest or 'once'}-{os.urandom(8).hex()}")
            try:
                # elsewhere Spark makes it; a sweep may have come before the lock was held
                if not self.local or _hold(Path(folder.path), self.private):
                    return folder
            except OSError as error:
                fix = "give a cache_dir that can be written to"
                raise source_error(self.url, error, fix, self.secrets) from safe_cause(error, self.secrets)

    def find(self, digest: str) -> list[StageFolder]:
        """The folders of a digest, whole or not, by name."""
        try:
            self.filesystem.invalidate_cache()
            found = self.filesystem.ls(self.path, detail=False)
        except FileNotFoundError:
            return []
        names = sorted(str(path).rstrip("/").rpartition("/")[2] for path in found)
        return [self._folder(name) for name in names if name.startswith(f"{_PREFIX}{digest}-")]

    def sweep(self) -> None:
        """Remove what ended processes have left on a local disk and nobody asked to keep."""
        if not self.local:
            return
        for path in Path(self.path).glob(f"{_PREFIX}*"):
            # others' folders, and those that another sweep is removing, are not ours to touch
            with suppress(OSError):
                lease = os.open(path / _LEASE, os.O_RDWR)
                try:
                    fcntl.flock(lease, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if not (self._folder(path.name).read_note() or {}).get("keep"):
                        shutil.rmtree(path, ignore_errors=True)
                finally:
                    os.close(lease)

    def _folder(self, name: str) -> StageFolder:
        return StageFolder(f"{self.url}/{name}", f"{self.path}/{name}", self.filesystem)


def open_root(
    directory: str | os.PathLike[str] | None, storage_options: Mapping[str, Any] | None
) -> StageRoot:
    """Find the directory that a path or URL names; makes nothing.

    None stands for the system's folder for temporary files, where nobody else may look into what is made.

    Raises
    ------
    PlanError
        If it names none.
    SourceError
        If the filesystem cannot be set up.
    """
    name = tempfile.gettempdir() if directory is None else os.fspath(directory)
    connection = connect(name, None, storage_options)
    (path,) = connection.paths
    local = connection.opener is None
    # Hadoop takes a path without a scheme for one of its default filesystem
    url = f"file://{path}" if local else name.rstrip("/")
    secrets = find_secrets(check_options(storage_options))
    return StageRoot(url, path.rstrip("/"), local, directory is None, connection.lister, secrets)


def delete_folder(files: Files) -> None:
    """Remove the folder that files are in, if it is one of these.

    Raises
    ------
    PlanError
        If it is none.
    """
    connection = connect(files.root, files.filesystem, None)
    (path,) = connection.paths
    folder = StageFolder(files.url, path, connection.lister)
    if not path.rpartition("/")[2].startswith(_PREFIX) or folder.read_note() is None:
        name = without_user(files.url)
        raise PlanError(
            f"{name} holds nothing that from_spark() has staged and that is still there to delete"
        )
    folder.delete()


def _hold(path: Path, private: bool) -> bool:
    """Make a folder, and lock its lease until this process ends; False where it has been swept."""
    path.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    lease = os.open(path / _LEASE, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lease, fcntl.LOCK_EX)
    return (path / _LEASE).exists()

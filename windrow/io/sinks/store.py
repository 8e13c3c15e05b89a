"""Where files are written: the interface of a directory in which files appear complete or not at all; the local disk.

On the local disk, a temporary file is written beside the target, fsynced and renamed atomically.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, Protocol

from windrow.core.system.files import forward_slashes, open_file
from windrow.io.storage.filesystems import join_path

Fill = Callable[[BinaryIO], Any]

TEMPORARY = ".windrow-tmp"


class Store(Protocol):
    """A directory to write to; small and picklable, since it is sent to the tasks."""

    @property
    def url(self) -> str:
        """The directory as a user would write it, without credentials."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials to redact from all messages."""

    @property
    def is_root(self) -> bool:
        """Whether it is the root of a filesystem or bucket."""

    def list_files(self) -> list[str]:
        """The relative paths of all files below it, hidden ones too; empty if it does not exist."""

    def put(self, relative: str, fill: Fill) -> None:
        """Write a file by calling ``fill`` once; it replaces an older one atomically, once complete."""

    def sizes(self) -> dict[str, int]:
        """The bytes of all files below it, by relative path; empty if it does not exist."""

    def get(self, relative: str) -> bytes:
        """The content of a small file."""

    def remove(self, relatives: Collection[str]) -> None:
        """Remove files; missing files are ignored."""


def temporary_name(name: str, attempt: str) -> str:
    """The temporary name of a file while it is written: hidden, so that readers skip it."""
    return f".{name}.{attempt}{TEMPORARY}"


def is_temporary(relative: str) -> bool:
    """Whether a path is a temporary name."""
    return relative.endswith(TEMPORARY)


@dataclass(frozen=True)
class LocalStore:
    """A local directory; see ``windrow.io.sinks.store.Store``."""

    root: str

    @property
    def url(self) -> str:
        return self.root

    @property
    def secrets(self) -> tuple[str, ...]:
        return ()

    @property
    def is_root(self) -> bool:
        return os.path.dirname(os.path.realpath(self.root)) == os.path.realpath(self.root)

    def list_files(self) -> list[str]:
        if os.path.lexists(self.root) and not os.path.isdir(self.root):
            raise NotADirectoryError(f"{self.root} is a file")
        found = []
        for folder, _, names in os.walk(self.root, onerror=_raise_unless_missing):
            found += [
                forward_slashes(os.path.relpath(os.path.join(folder, name), self.root)) for name in names
            ]
        return sorted(found)

    def put(self, relative: str, fill: Fill) -> None:
        path = join_path(self.root, relative)
        folder, name = os.path.split(path)
        os.makedirs(folder, exist_ok=True)
        temporary = os.path.join(folder, temporary_name(name, os.urandom(4).hex()))
        try:
            with open(temporary, "xb") as file:
                fill(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _sync_folder(folder)

    def sizes(self) -> dict[str, int]:
        found = {}
        for path in self.list_files():
            # another process can write here too, and rename its temporary files meanwhile
            with suppress(FileNotFoundError):
                found[path] = os.path.getsize(join_path(self.root, path))
        return found

    def get(self, relative: str) -> bytes:
        with open(join_path(self.root, relative), "rb") as file:
            return file.read()

    def remove(self, relatives: Collection[str]) -> None:
        for relative in relatives:
            with suppress(FileNotFoundError):
                os.unlink(join_path(self.root, relative))
        folders = {os.path.dirname(relative) for relative in relatives}
        for folder in sorted(folders - {""}, key=len, reverse=True):
            while folder:
                try:
                    os.rmdir(join_path(self.root, folder))
                except OSError:
                    break
                folder = os.path.dirname(folder)

    def missing_folders(self) -> tuple[str, ...]:
        """The directories that the first write will create, innermost first."""
        missing = []
        folder = os.path.realpath(self.root)
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        return tuple(missing)

    def remove_empty(self, folders: Sequence[str]) -> None:
        """Remove empty directories: those below the first, then all in order, innermost first."""
        within = [folder for folder, _, _ in os.walk(folders[0], topdown=False)] if folders else []
        for folder in [*within, *folders[1:]]:
            with suppress(OSError):
                os.rmdir(folder)


def _raise_unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _sync_folder(folder: str) -> None:
    """Make a rename durable; not every system and filesystem supports it."""
    with suppress(OSError):
        handle = open_file(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

"""The interface of write targets: a directory in which files appear complete or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, BinaryIO, Protocol

__all__ = ["TEMPORARY", "Fill", "Store", "is_temporary", "temporary_name"]

Fill = Callable[[BinaryIO], Any]

TEMPORARY = ".windrow-tmp"


class Store(Protocol):
    """A directory to write to; small and picklable, since it is sent to the tasks."""

    @property
    def url(self) -> str:
        """The directory as a user would write it, without credentials."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """Credentials to redact from all messages."""
        ...

    @property
    def is_root(self) -> bool:
        """Whether it is the root of a filesystem or bucket."""
        ...

    def list_files(self) -> list[str]:
        """The relative paths of all files below it, hidden ones too; empty if it does not exist."""
        ...

    def put(self, relative: str, fill: Fill) -> None:
        """Write a file by calling ``fill`` once; it replaces an older one atomically, once complete."""
        ...

    def sizes(self) -> dict[str, int]:
        """The bytes of all files below it, by relative path; empty if it does not exist."""
        ...

    def get(self, relative: str) -> bytes:
        """The content of a small file."""
        ...

    def remove(self, relatives: Collection[str]) -> None:
        """Remove files; missing files are ignored."""
        ...


def temporary_name(name: str, attempt: str) -> str:
    """The temporary name of a file while it is written: hidden, so that readers skip it."""
    return f".{name}.{attempt}{TEMPORARY}"


def is_temporary(relative: str) -> bool:
    """Whether a path is a temporary name."""
    return relative.endswith(TEMPORARY)

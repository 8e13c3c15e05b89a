"""Where files are written: a directory of some filesystem, in which files appear whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import BinaryIO, Protocol

__all__ = ["TEMPORARY", "Fill", "Store", "is_temporary", "temporary_name"]

Fill = Callable[[BinaryIO], None]

TEMPORARY = ".windrow-tmp"


class Store(Protocol):
    """A directory to write to; small and picklable, since it is sent to where blocks are read."""

    @property
    def url(self) -> str:
        """The directory as a user would write it, without credentials."""
        ...

    @property
    def secrets(self) -> tuple[str, ...]:
        """The credentials that must appear in no text."""
        ...

    @property
    def is_top(self) -> bool:
        """Whether it is a whole filesystem or bucket."""
        ...

    def list_files(self) -> list[str]:
        """Every file below it, hidden ones too, by relative path; none where it does not exist."""
        ...

    def put(self, relative: str, fill: Fill) -> None:
        """Write a file by calling ``fill`` once; it appears, in place of an older one, once it is whole."""
        ...

    def remove(self, relatives: Collection[str]) -> None:
        """Remove files; those that are not there are no error."""
        ...


def temporary_name(name: str, attempt: str) -> str:
    """What a file is called while it is written: hidden, so that readers skip it."""
    return f".{name}.{attempt}{TEMPORARY}"


def is_temporary(relative: str) -> bool:
    """Whether a path is that of a file that was being written."""
    return relative.endswith(TEMPORARY)

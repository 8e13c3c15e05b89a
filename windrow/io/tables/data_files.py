"""The files of a table's snapshot: where they are, and what it means when one is gone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from windrow.core.errors import SourceError
from windrow.io.storage.filesystems import Files

__all__ = ["TableFiles", "plain_error"]


_DRAWING = re.compile(r"\x1b\[\d*m|↳")


def plain_error(error: BaseException) -> BaseException:
    """An error in one line: some libraries draw what happened as a tree, in colours."""
    text = str(error)
    return OSError(" ".join(_DRAWING.sub(" ", text).split())) if _DRAWING.search(text) else error


@dataclass(frozen=True)
class TableFiles(Files):
    """The files below one root that a snapshot of a table holds.

    Attributes
    ----------
    shown
        The root as the user knows it; empty where that is its path.
    snapshot
        The table and its snapshot in words, for errors.
    secrets
        Texts of the user's options that may be credentials, and appear in none of ours.
    """

    shown: str = ""
    snapshot: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def url(self) -> str:
        """The root as a user would write it."""
        return self.shown or super().url

    @contextmanager
    def mapped_errors(self, what: str) -> Iterator[None]:
        """Turn what goes wrong into a SourceError; a file that is gone most likely was vacuumed."""
        with super().mapped_errors(what):
            try:
                yield
            except FileNotFoundError as error:
                fix = (
                    f"{self.snapshot} has lost it, as when files of old snapshots are vacuumed or expire: read "
                    "the table anew, and keep snapshots for as long as they are read"
                )
                raise self.error(f"{what}: the file is gone", error, fix) from self.cause(error)

    def error(self, what: str, error: BaseException, fix: str) -> SourceError:
        """Map an error of a filesystem or of Arrow, with no credentials in it."""
        return super().error(what, plain_error(error), fix)

    def _secrets(self) -> tuple[str, ...]:
        return (*super()._secrets(), *self.secrets)

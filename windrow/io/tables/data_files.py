"""The files of a table's snapshot, with errors that explain vacuumed or expired files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from windrow.core.errors import SourceError
from windrow.io.storage.filesystems import Files

__all__ = ["TableFiles", "plain_error"]


_TREE_DRAWING = re.compile(r"\x1b\[\d*m|↳")


def plain_error(error: BaseException) -> BaseException:
    """Flatten an error to one line: some libraries render causes as a coloured tree."""
    text = str(error)
    return OSError(" ".join(_TREE_DRAWING.sub(" ", text).split())) if _TREE_DRAWING.search(text) else error


@dataclass(frozen=True)
class TableFiles(Files):
    """The data files of a snapshot, below one root.

    Attributes
    ----------
    display_root
        The root as the user wrote it; empty if it equals the path.
    snapshot
        Describes the table and snapshot in errors.
    secrets
        Potential credentials in the user's options, to redact from messages.
    """

    display_root: str = ""
    snapshot: str = ""
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @property
    def url(self) -> str:
        """The root as the user would write it."""
        return self.display_root or super().url

    @contextmanager
    def mapped_errors(self, what: str) -> Iterator[None]:
        """Map errors to SourceError; a missing file has most likely been vacuumed."""
        with super().mapped_errors(what):
            try:
                yield
            except FileNotFoundError as error:
                fix = (
                    f"{self.snapshot} has lost it, as when files of old snapshots are vacuumed or expire: read "
                    "the table again, and keep snapshots for as long as they are read"
                )
                raise self.error(f"{what}: the file is missing", error, fix) from self.cause(error)

    def error(self, what: str, error: BaseException, fix: str) -> SourceError:
        """Map an error of a filesystem or of Arrow, with credentials redacted."""
        return super().error(what, plain_error(error), fix)

    def _secrets(self) -> tuple[str, ...]:
        return (*super()._secrets(), *self.secrets)

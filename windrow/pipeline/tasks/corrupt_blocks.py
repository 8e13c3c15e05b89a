"""Detects corrupt blocks, and makes the error for one that is detected too late to be skipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError

__all__ = ["Corruption", "find_corruption", "late_corruption", "make_late_corruption_error"]

T = TypeVar("T")


@dataclass(frozen=True)
class Corruption:
    """A block that a task could not decode: its number in stored order, and the error, which names the block."""

    block: int
    error: str


def find_corruption(read: Callable[[], T], block: int) -> T | Corruption:
    """Read a block, and retry once if it is corrupt: the first transfer may have corrupted it."""
    try:
        return read()
    except CorruptBlockError:
        pass
    try:
        return read()
    except CorruptBlockError as error:
        return Corruption(block, str(error))


def make_late_corruption_error(error: object) -> SourceError:
    """Make the error for a block found corrupt after its rows were assigned positions."""
    return SourceError(
        f"{error}. It can no longer be skipped: it was read before, and rows of its window already "
        "have positions. Restore the file, and resume from a saved state"
    )


@contextmanager
def late_corruption() -> Iterator[None]:
    """Turn the error of a corrupt block into one that explains why ``on_error="skip"`` does not skip it."""
    try:
        yield
    except CorruptBlockError as error:
        raise make_late_corruption_error(error) from error.__cause__

"""Blocks that cannot be decoded: how they are found, and what is said where that is too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError

__all__ = ["Corruption", "find_corruption", "late_corruption", "refuse_late"]

T = TypeVar("T")


@dataclass(frozen=True)
class Corruption:
    """A block that a task could not decode.

    Attributes
    ----------
    block
        Its number in stored order.
    error
        Why, in words that name it.
    """

    block: int
    error: str


def find_corruption(read: Callable[[], T], block: int) -> T | Corruption:
    """Read a block, once more where it is corrupt: what a transfer corrupt comes whole then."""
    try:
        return read()
    except CorruptBlockError:
        pass
    try:
        return read()
    except CorruptBlockError as error:
        return Corruption(block, str(error))


def refuse_late(error: object) -> SourceError:
    """The error for a block that is found corrupt once its rows have places."""
    return SourceError(
        f"{error}. It cannot be left out any more, since it was read before and its rows, or others of its "
        "window, have their places: restore the file, and go on from a saved state"
    )


@contextmanager
def late_corruption() -> Iterator[None]:
    """Say why a block is not left out though corrupt ones are."""
    try:
        yield
    except CorruptBlockError as error:
        raise refuse_late(error) from error.__cause__

"""Blocks that cannot be decoded: how they are found, and what is said where that is too late."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from windrow.core.errors import SourceError
from windrow.core.source import DamagedBlockError

__all__ = ["Damage", "find_damage", "late_damage", "refuse_late"]

T = TypeVar("T")


@dataclass(frozen=True)
class Damage:
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


def find_damage(read: Callable[[], T], block: int) -> T | Damage:
    """Read a block, once more where it is damaged: what a transfer damaged comes whole then."""
    try:
        return read()
    except DamagedBlockError:
        pass
    try:
        return read()
    except DamagedBlockError as error:
        return Damage(block, str(error))


def refuse_late(error: object) -> SourceError:
    """The error for a block that is found damaged once its rows have places."""
    return SourceError(
        f"{error}. It cannot be left out any more, since it was read before and its rows, or others of its "
        "window, have their places: restore the file, and go on from a saved state"
    )


@contextmanager
def late_damage() -> Iterator[None]:
    """Say why a block is not left out though damaged ones are."""
    try:
        yield
    except DamagedBlockError as error:
        raise refuse_late(error) from error.__cause__

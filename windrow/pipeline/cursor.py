"""The cursor: a resumable place in a stream."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Cursor"]


@dataclass(frozen=True)
class Cursor:
    """How far a stream has been consumed, equal on all shards at the same step.

    Attributes
    ----------
    epoch
        The absolute number of the epoch.
    row
        Global rows of the epoch that all shards together have consumed.
    window, window_row
        The window that holds ``row``, and the epoch row at which it begins.
    dealt
        By how many shards and rows a batch the epoch was read up to here, where that is known:
        who goes on by the same may be some steps behind the others.
    """

    epoch: int = 0
    row: int = 0
    window: int = 0
    window_row: int = 0
    dealt: tuple[int, int] | None = field(default=None, compare=False)

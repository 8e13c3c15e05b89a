"""The cursor: a resumable place in a stream."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    epoch: int = 0
    row: int = 0
    window: int = 0
    window_row: int = 0

"""`Work`: which part of which window a task prepares."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Work"]


@dataclass(frozen=True, order=True)
class Work:
    """One task: a part of a window, at one stage.

    ``attempt`` distinguishes results of this attempt at the window from late results of an
    earlier one, after the window has been dropped and restarted.
    """

    epoch: int
    window: int
    part: int
    stage: int
    attempt: int

"""An epoch as the scheduler sees it: the parts of each window, and the stages of every part. Plain values."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EpochShape", "Part", "Stage"]


@dataclass(frozen=True)
class Stage:
    """One stage of preparing a part of a window; ``name`` is for messages and timelines.

    A stage that ``needs_order`` computes positions, and cannot run before the row counts that they
    depend on are known. One that ``needs_window`` waits until all parts of the window have passed the
    stage before.
    """

    name: str
    needs_order: bool
    needs_window: bool = False


@dataclass(frozen=True)
class Part:
    """An input split: the blocks of a window that one task prepares."""

    rows: int | None  # delivered rows; None while unknown
    size_bytes: int  # expected size of the output
    unpacked_bytes: int | None = None  # with values unpacked, as in runs and batches; None: the same
    stored_rows: int | None = None  # may be an estimate; None: as many as it delivers

    @property
    def weight(self) -> int:
        """Its stored rows, by which sizes are estimated; at least 1."""
        return max(1, self.stored_rows or self.rows or 0)


@dataclass(frozen=True)
class EpochShape:
    """An epoch as the scheduler sees it: the parts of each window, and the stages of every part in order."""

    windows: tuple[tuple[Part, ...], ...]
    stages: tuple[Stage, ...]

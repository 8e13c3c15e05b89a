"""Cuts an epoch's windows into parts (input splits): the blocks of one map task each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.epoch_plan import EpochPlan

__all__ = ["EpochParts", "WindowPlan", "cut_parts"]

Ints = NDArray[np.int64]


class WindowPlan:
    """The parts of one window, in the order in which its rows are numbered.

    ``blocks``, (blocks,): its stored block numbers. ``starts``, (parts + 1,): where each part starts there.
    """

    def __init__(self, blocks: Ints, starts: Ints) -> None:
        self.blocks = blocks
        self.starts = starts
        self._counted: tuple[Ints, Ints] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, part: int) -> Ints:
        """The blocks of a part; a view."""
        if not 0 <= part < len(self):
            raise IndexError(f"part {part} of {len(self)}")
        return self.blocks[self.starts[part] : self.starts[part + 1]]

    def __iter__(self) -> Iterator[Ints]:
        return (self[part] for part in range(len(self)))

    def rows_before(self, rows: Ints) -> Ints:
        """(blocks + 1,) rows of the window before each of its blocks, and their total.

        ``rows`` holds the row count of every block of the dataset; those of this window must be
        known. The sums are cached for this very array: a known count must not change.
        """
        if self._counted is None or self._counted[0] is not rows:
            of_window = rows[self.blocks]
            assert of_window.min(initial=0) >= 0, "rows are counted before they are placed"
            before = np.zeros(len(of_window) + 1, dtype=np.int64)
            np.cumsum(of_window, out=before[1:])
            self._counted = rows, before
        return self._counted[1]


@dataclass(frozen=True, eq=False)
class EpochParts:
    """The parts of all windows of an epoch."""

    plan: EpochPlan
    starts: Ints  # (parts + 1,) where each part starts in the plan's blocks
    windows: Ints  # (windows + 1,) the index of each window's first part

    def window(self, window: int) -> WindowPlan:
        """The parts of one window."""
        first = self.plan.starts[window]
        starts = self.starts[self.windows[window] : self.windows[window + 1] + 1]
        return WindowPlan(self.plan.window_blocks(window), starts - first)

    def sums(self, values: Ints) -> Ints:
        """(parts,) sums of a value that is given for every block of the dataset."""
        return np.add.reduceat(values[self.plan.blocks], self.starts[:-1])

    def are_known(self, rows: Ints) -> NDArray[np.bool_]:
        """(parts,) whether the row counts of all blocks of a part are known, so not negative."""
        known: NDArray[np.bool_] = np.minimum.reduceat(rows[self.plan.blocks], self.starts[:-1]) >= 0
        return known


def cut_parts(plan: EpochPlan, sizes: Ints, part_bytes: int) -> EpochParts:
    """Cut each window of an epoch into parts of whole blocks, about ``part_bytes`` each.

    ``sizes`` holds the bytes of every block of the dataset. A window without blocks has no parts.
    """
    ordered = sizes[plan.blocks]
    before = np.append(np.cumsum(ordered) - ordered, 0)
    first_of_window, counts = plan.starts[:-1], np.diff(plan.starts)
    within = before[:-1] - np.repeat(before[first_of_window], counts)
    is_start = np.diff(within // part_bytes, prepend=-1) != 0
    is_start[first_of_window[counts > 0]] = True
    part_starts = np.flatnonzero(is_start)
    windows = np.searchsorted(part_starts, plan.starts)
    return EpochParts(plan, np.append(part_starts, len(plan.blocks)), windows)

"""The order of an epoch as the plan states it: which stored row is delivered where."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from windrow.core.cached_properties import cached_property
from windrow.shuffle.order.epoch_plan import EpochPlan
from windrow.shuffle.order.permutation import EXACT_ROWS
from windrow.shuffle.order.window_order import order_window

Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class EpochOrder:
    """The order of one epoch; a stored row's number is its rank among all rows that the source delivers."""

    plan: EpochPlan
    counts: Ints  # (blocks,) rows of each block, in stored order
    row_seed: int | None  # by which the rows of each window are shuffled

    @cached_property
    def block_ends(self) -> Ints:
        """(blocks,) stored rows up to the end of each block."""
        return np.cumsum(self.counts)

    @cached_property
    def window_starts(self) -> Ints:
        """(windows + 1,) the first row of each window in the epoch, and their total."""
        return np.append(0, np.cumsum(self.counts[self.plan.blocks]))[self.plan.starts]

    @cached_property
    def window_of_block(self) -> Ints:
        """(blocks,) the window that holds each block."""
        windows = np.empty(len(self.counts), np.int64)
        windows[self.plan.blocks] = np.repeat(np.arange(self.plan.windows), np.diff(self.plan.starts))
        return windows

    @cached_property
    def first_of_block(self) -> Ints:
        """(blocks,) the epoch row of the first row of each block, where the rows of windows are not shuffled."""
        ordered = self.counts[self.plan.blocks]
        firsts = np.empty(len(self.counts), np.int64)
        firsts[self.plan.blocks] = np.cumsum(ordered) - ordered
        return firsts

    def stored_rows(self, rows: Ints) -> Ints:
        """(rows,) the stored rows at some rows of the epoch, which ascend."""
        windows = np.searchsorted(self.window_starts, rows, side="right") - 1
        borders = np.flatnonzero(np.diff(windows, prepend=-1, append=-1))
        found = np.empty(len(rows), np.int64)
        for first, stop in pairwise(borders.tolist()):
            found[first:stop] = self._of_window(int(windows[first]), rows[first:stop])
        return found

    def _of_window(self, window: int, rows: Ints) -> Ints:
        blocks = self.plan.window_blocks(window)
        before = np.append(0, np.cumsum(self.counts[blocks]))
        first = int(self.window_starts[window])
        order = order_window(
            seed=self.row_seed, epoch=self.plan.epoch, window=window, rows=int(before[-1]), first_row=first
        )
        if order.permutation is not None and order.rows <= EXACT_ROWS:
            # an exact order is computed as a whole, so inverting it needs no second sort
            inverse = np.empty(order.rows, np.int64)
            inverse[order.permutation.positions(0, order.rows)] = np.arange(order.rows)
            within = inverse[rows - first]
        else:
            within = order.stored_rows(rows)
        at = np.searchsorted(before, within, side="right") - 1
        of_blocks = blocks[at]
        return within - before[at] + self.block_ends[of_blocks] - self.counts[of_blocks]


def full_order(counts: Ints, seed: int) -> EpochOrder:
    """The order of a full shuffle: all blocks are one window."""
    blocks = np.arange(len(counts), dtype=np.int64)
    return EpochOrder(EpochPlan(0, blocks, np.array([0, len(counts)], np.int64)), counts, seed)

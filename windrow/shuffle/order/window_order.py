"""The order of one window: maps its stored rows to rows of the epoch, and back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation

__all__ = ["WindowOrder", "order_window"]


@dataclass(frozen=True)
class WindowOrder:
    """The order of a window's rows, which are numbered by (block, row in block)."""

    rows: int
    first_row: int  # the epoch row at which the window starts
    permutation: Permutation | None  # from stored row number to position; None keeps the stored order

    def epoch_rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """(stop - start,) the epoch rows of the window's stored rows [start, stop)."""
        if self.permutation is None:
            return np.arange(self.first_row + start, self.first_row + stop, dtype=np.int64)
        rows = self.permutation.positions(start, stop)
        rows += self.first_row
        return rows

    def stored_rows(self, epoch_rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """(rows,) the stored row numbers of rows of the epoch: the inverse of `epoch_rows`."""
        positions = epoch_rows - self.first_row
        return positions if self.permutation is None else self.permutation.rows_at(positions)


def order_window(*, seed: int | None, epoch: int, window: int, rows: int, first_row: int) -> WindowOrder:
    """The order of one window: a pure function of its arguments."""
    if seed is None:
        return WindowOrder(rows=rows, first_row=first_row, permutation=None)
    key = derive_key(seed, "rows", epoch, window)
    return WindowOrder(rows=rows, first_row=first_row, permutation=Permutation(key, rows))

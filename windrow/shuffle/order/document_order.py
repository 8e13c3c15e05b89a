"""The order of a window's tokens where whole documents are shuffled: documents end to end, in the window's order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.window_order import WindowOrder

__all__ = ["place_documents", "token_rows"]


def place_documents(order: WindowOrder, lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """(documents,) the epoch row of the first token of each document of a window.

    Parameters
    ----------
    order
        The order of the window's documents; ``first_row`` is the epoch row of the window's first token.
    lengths
        (documents,) tokens of each, in stored order.

    Examples
    --------
    >>> from windrow.shuffle.order.window_order import order_window
    >>> order = order_window(seed=None, epoch=0, window=1, rows=3, first_row=100)
    >>> place_documents(order, np.array([5, 2, 4], np.int32)).tolist()
    [100, 105, 107]
    """
    positions = order.epoch_rows(0, order.rows) - order.first_row
    ordered = np.empty(order.rows, np.int64)
    ordered[positions] = lengths
    firsts = np.cumsum(ordered) - ordered
    starts: NDArray[np.int64] = order.first_row + firsts[positions]
    return starts


def token_rows(starts: NDArray[np.int64], lengths: NDArray[np.int32]) -> NDArray[np.int64]:
    """(tokens,) the epoch row of each token of some documents, given the row of the first one of each.

    >>> token_rows(np.array([100, 7]), np.array([3, 2], np.int32)).tolist()
    [100, 101, 102, 7, 8]
    """
    counts = lengths.astype(np.int64)
    before = np.cumsum(counts) - counts
    rows = np.repeat(starts - before, counts)
    rows += np.arange(len(rows))
    return rows

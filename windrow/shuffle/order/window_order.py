"""The order of one window: maps its stored rows to rows of the epoch, and back; also for tokens of whole documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation


@dataclass(frozen=True)
class WindowOrder:
    """The order of a window's rows, which are numbered by (block, row in block)."""

    rows: int
    first_row: int  # the epoch row at which the window starts
    permutation: Permutation | None  # from stored row number to position; None keeps the stored order

    @property
    def is_stored(self) -> bool:
        """Whether the rows come in stored order, one behind the other."""
        return self.permutation is None

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


def cut_documents(
    starts: NDArray[np.int64], lengths: NDArray[np.int32], seq_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Cut documents into pieces at the borders of sequences.

    Parameters
    ----------
    starts, lengths
        (documents,) the row of the first token of each document, and its number of tokens.
    seq_len
        Tokens of a sequence; the first one begins at row 0.

    Returns
    -------
    (pieces,) the row of the first token of each piece, its number of tokens, and the number of its sequence.

    Examples
    --------
    >>> rows, counts, sequences = cut_documents(np.array([6, 0]), np.array([3, 6], np.int32), 4)
    >>> rows.tolist(), counts.tolist(), sequences.tolist()
    ([6, 8, 0, 4], [2, 1, 4, 2], [1, 2, 0, 1])
    """
    stops = starts + lengths
    first = starts // seq_len
    pieces = np.where(lengths > 0, (stops - 1) // seq_len + 1 - first, 0)
    document = np.repeat(np.arange(len(starts)), pieces)
    before = np.cumsum(pieces) - pieces
    sequences = np.arange(len(document)) + (first - before)[document]
    begins = sequences * seq_len
    rows = np.maximum(starts[document], begins)
    return rows, np.minimum(stops[document], begins + seq_len) - rows, sequences

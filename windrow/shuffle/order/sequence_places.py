"""Where the tokens of a source come in a mixture: documents are cut into sequences, which come one by one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.round_runs import SourceStretch, find_rows
from windrow.shuffle.order.window_order import cut_documents

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class SequencePlaces:
    """The places of a source's sequences, which hold ``seq_len`` tokens each, in some stretches of a mixture.

    ``first`` is the number of the pass's first sequence in the source's stream, and ``count`` the number of sequences
    in a pass: the fewer than ``seq_len`` tokens behind them come nowhere.
    """

    source: int
    stretches: tuple[SourceStretch, ...]
    seq_len: int
    first: int
    count: int

    def cut(self, starts: Ints, lengths: NDArray[np.int32]) -> tuple[Ints, Ints]:
        """Cut documents at the borders of sequences.

        Parameters
        ----------
        starts, lengths
            (documents,) where the first token of each document lies in its pass, and its number of tokens.

        Returns
        -------
        (pieces,) the mixture's row of the first token of each piece, all rows being tokens, and its number of tokens.
        Rows of tokens that come nowhere are negative.

        Examples
        --------
        >>> from windrow.shuffle.order.share_sequence import ShareSequence
        >>> alone = SourceStretch(0, 100, 0, ShareSequence([1], bytes(32)))
        >>> places = SequencePlaces(0, (alone,), 4, first=10, count=2)
        >>> starts, lengths = places.cut(np.array([6, 0]), np.array([3, 6], np.int32))
        >>> starts.tolist(), lengths.tolist()
        ([46, -1, 40, 44], [2, 1, 4, 2])
        """
        found, sizes, number = cut_documents(starts, lengths, self.seq_len)
        rows = find_rows(self.stretches, self.source, self.first + number)
        is_placed = (number < self.count) & (rows >= 0)
        return np.where(is_placed, rows * self.seq_len + found % self.seq_len, -sizes), sizes

"""Places documents whole into sequences, by best fit over those of a window; the rest of a sequence is padding."""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels import native
from windrow.shuffle.kernels.group_rows import group_entries
from windrow.shuffle.order.keys import derive_key
from windrow.shuffle.order.permutation import Permutation
from windrow.shuffle.order.window_order import WindowOrder

Ints = NDArray[np.int64]
MAX_CAPACITY = native.MAX_CAPACITY


@dataclass(frozen=True, eq=False)
class PackedDocuments:
    """Where the documents of a window go.

    Attributes
    ----------
    starts
        (documents,) the epoch row of the first token of each, in stored order.
    padding
        (documents,) tokens of padding behind each: they fill a sequence up behind its last document.
    """

    starts: Ints
    padding: NDArray[np.int32]


def count_sequences(lengths: NDArray[np.int32], seq_len: int) -> int:
    """The number of sequences that documents of these lengths, 0 to ``seq_len`` tokens, are placed into.

    >>> count_sequences(np.array([3, 2, 0, 4, 2], np.int32), 5)
    3
    """
    return _fit(lengths[_longest_first(lengths, seq_len)], seq_len)[1]


def pack_documents(
    order: WindowOrder, lengths: NDArray[np.int32], seq_len: int, key: bytes | None
) -> PackedDocuments:
    """Place the documents of a window into sequences.

    The longest document comes first, and goes to the sequence with the least room that is enough, or to a new one.
    Documents of equal length take turns in their order. The documents of a sequence are in their order, and so are
    sequences, by their first document, unless a ``key`` gives these a random order.

    Parameters
    ----------
    order
        The order of the window's documents; ``first_row`` is the epoch row of the window's first token.
    lengths
        (documents,) tokens of each, 0 to ``seq_len``, in stored order.
    seq_len
        Tokens of a sequence.
    key
        Of the random order of sequences; None: they have none.

    Examples
    --------
    >>> from windrow.shuffle.order.window_order import order_window
    >>> order = order_window(seed=None, epoch=0, window=0, rows=5, first_row=100)
    >>> packed = pack_documents(order, np.array([3, 2, 0, 4, 2], np.int32), 5, None)
    >>> packed.starts.tolist(), packed.padding.tolist()
    ([100, 103, 100, 105, 110], [0, 0, 0, 1, 3])
    """
    positions = order.epoch_rows(0, order.rows) - order.first_row
    ordered = np.empty(order.rows, np.int32)
    ordered[positions] = lengths
    longest = _longest_first(ordered, seq_len)
    found, sequences = _fit(ordered[longest], seq_len)
    # documents without tokens stay behind the last sequence
    of_document = np.full(order.rows, sequences, np.uint32)
    of_document[longest] = found
    grouping = group_entries(of_document, np.array([0, sequences], np.int64))
    (members,), (borders,) = grouping.parts, grouping.run_starts
    ends = np.append(0, np.cumsum(ordered[members], dtype=np.int64))
    used, firsts = ends[borders], members[borders[:-1]]
    if key is None:
        places = np.empty(sequences, np.int64)
        places[np.argsort(firsts)] = np.arange(sequences)
    else:
        places = Permutation(key, sequences).positions(0, sequences)
    of_member = of_document[members]
    rows = np.full(order.rows, order.first_row, np.int64)
    rows[members] += places[of_member] * seq_len + ends[:-1] - used[of_member]
    padding = np.zeros(order.rows, np.int32)
    padding[members[borders[1:] - 1]] = seq_len - np.diff(used)
    return PackedDocuments(rows[positions], padding[positions])


def sequences_key(seed: int | None, epoch: int, window: int) -> bytes | None:
    """The key of the random order of a window's sequences; None without a seed."""
    return None if seed is None else derive_key(seed, "sequences", epoch, window)


def _longest_first(lengths: NDArray[np.int32], seq_len: int) -> Ints:
    """The documents that have tokens, the longest first, and equally long ones in their order."""
    missing = seq_len - lengths
    # NumPy sorts 16 bits by radix
    keys = missing.astype(np.uint16) if seq_len < 2**16 else missing
    found = np.argsort(keys, kind="stable")
    filled: Ints = found[: int(np.count_nonzero(lengths))]
    return filled


def _fit(sizes: NDArray[np.int32], capacity: int) -> tuple[NDArray[np.int32], int]:
    if native.LIBRARY is not None:
        return native.best_fit(np.ascontiguousarray(sizes), capacity)
    found, rooms, sequences = np.empty(len(sizes), np.int32), dict[int, list[int]](), 0
    # the rooms that some sequences have, in ascending order
    free: list[int] = []
    for document, size in enumerate(sizes.tolist()):
        at = bisect_left(free, size)
        if at == len(free):
            sequence, left = sequences, capacity - size
            sequences += 1
        else:
            sequence, left = rooms[free[at]].pop(), free[at] - size
            if not rooms[free[at]]:
                del free[at]
        found[document] = sequence
        if left:
            stack = rooms.setdefault(left, [])
            if not stack:
                insort(free, left)
            stack.append(sequence)
    return found, sequences

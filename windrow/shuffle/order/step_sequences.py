"""Divides the packed sequences of a window's steps by what their documents cost.

The rows of the window are tokens, and a sequence can lie in several windows. Sequences are divided as rows are, as a
whole and in each window in the same way. What then lies in the window is counted in tokens.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.shard_assignment import ShardAssignment
from windrow.shuffle.order.step_balance import number_rows
from windrow.shuffle.order.step_rows import StepRows, divide_rows
from windrow.shuffle.order.window_order import cut_documents

Ints = NDArray[np.int64]


def sequence_costs(
    balance: Balance, window: tuple[int, int], starts: Ints, lengths: NDArray[np.int32], seq_len: int
) -> NDArray[np.float64]:
    """(sequences,) what the documents of a window cost in each sequence that has tokens here.

    Documents are cut at the borders of sequences. The cost of a sequence is the sum over the segments that result.

    Parameters
    ----------
    window
        The epoch's rows of the window, from the first token to behind the last one.
    starts, lengths
        (documents,) the row of the first token of each document of the window, and its number of tokens.
    seq_len
        Tokens of a sequence.

    Examples
    --------
    >>> starts, lengths = np.array([2, 7]), np.array([5, 3], np.int32)
    >>> sequence_costs(Balance("tokens", "length ** 2"), (2, 10), starts, lengths, 4).tolist()
    [4.0, 10.0, 4.0]
    """
    low, high = find_sequences(window, seq_len)
    _, counts, sequences = cut_documents(starts, lengths, seq_len)
    costs = np.bincount(sequences - low, balance.costs(counts), minlength=high - low)
    return costs.astype(np.float64)


def find_sequences(window: tuple[int, int], seq_len: int) -> tuple[int, int]:
    """The sequences of the epoch that have tokens in a window, from the first one to behind the last one.

    >>> find_sequences((2, 10), 4), find_sequences((2, 2), 4)
    ((0, 3), (0, 0))
    """
    first, stop = window
    low = first // seq_len
    return low, -(-stop // seq_len) if stop > first else low


def divide_sequences(
    assignment: ShardAssignment,
    *,
    window: tuple[int, int],
    total: int | None,
    low: int,
    costs: NDArray[np.float64],
) -> StepRows:
    """Divide the sequences of a window by the assignment's `Balance`.

    Parameters
    ----------
    window, total
        The epoch's rows of the window, and of the epoch, in tokens; see `divide_rows`.
    low, costs
        What is known: the cost of each sequence of the epoch from sequence ``low`` on.
    """
    seq_len = assignment.sequence_rows
    first, stop = find_sequences(window, seq_len)
    whole = None if total is None else total // seq_len
    divided = divide_rows(assignment.of_sequences, window=(first, stop), total=whole, low=low, costs=costs)
    borders = np.arange(first, stop + 1, dtype=np.int64) * seq_len
    # tokens of the first sequence in earlier windows, and of the last one in later windows
    missing, behind = max(0, window[0] - first * seq_len), max(0, stop * seq_len - window[1])
    here = np.clip(borders, *window)
    tokens: Ints = here[1:] - here[:-1]
    bins, parts = divided.sizes.size, divided.sizes.shape[2]
    earlier, later = divided.earlier * seq_len, divided.later * seq_len
    if len(tokens):
        for counts, key, rows in ((earlier, divided.keys[0], missing), (later, divided.keys[-1], behind)):
            if key < bins:
                counts[int(key) // parts % len(counts)] += rows
    sizes = np.bincount(divided.keys, tokens, minlength=bins + 1)[:bins]
    padding = tuple(
        (row, shard, place * seq_len + (missing if row == 0 else 0)) for row, shard, place in divided.padding
    )
    return replace(
        divided,
        assignment=assignment,
        total=total,
        sizes=sizes.astype(np.int64).reshape(divided.sizes.shape),
        earlier=earlier,
        later=later,
        padding=padding,
        tokens=tokens,
    )


def number_sequences(divided: StepRows, starts: Ints, kept: int) -> Ints:
    """(sequences,) the number of the first token of each sequence that lies in the window.

    Those of a bin follow one another from its number in ``starts`` on. Those that no shard gets have number ``kept``.
    """
    tokens, keys = divided.tokens, divided.keys
    assert tokens is not None, "rows have numbers of their own"
    ranks = number_rows(keys, np.zeros(len(starts) + 1, np.int64))
    numbers = np.append(starts, kept)[keys] + ranks.astype(np.int64) * divided.assignment.sequence_rows
    # only the first one can lack tokens that others of its bin follow
    numbers[1:][keys[1:] == keys[:1]] -= divided.assignment.sequence_rows - int(tokens[:1].sum())
    return np.where(keys < len(starts), numbers, kept)

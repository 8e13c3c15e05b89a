"""Where documents begin in packed sequences: marks of tokens, columns of positions and segments, and `cu_seqlens`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.core.errors import PlanError
from windrow.shuffle.kernels.pieces import number_rows

# The columns that `pack(boundaries=True)` adds.
POSITIONS, SEGMENTS = "position_ids", "segment_ids"
BOUNDARY_COLUMNS = (POSITIONS, SEGMENTS)
# The column of marks that tokens have beside their values until they are cut into sequences: a byte a token.
MARK_COLUMN = "marks of pack()"
STARTS, PADDING = 1, 2
# of the segment of padding
PADDING_SEGMENT = -1


def mark_documents(lengths: NDArray[np.int32]) -> NDArray[np.uint8]:
    """(tokens,) the marks of documents of these lengths: `STARTS` for the first token of each, else 0.

    >>> mark_documents(np.array([2, 0, 3], np.int32)).tolist()
    [1, 0, 1, 0, 0]
    """
    stops = np.cumsum(lengths, dtype=np.int64)
    marks = np.zeros(int(stops[-1]) if len(stops) else 0, np.uint8)
    marks[(stops - lengths)[lengths > 0]] = STARTS
    return marks


def cut_lengths(lengths: NDArray[np.int32], seq_len: int) -> NDArray[np.int32]:
    """(pieces,) the lengths of documents that are cut every ``seq_len`` tokens.

    >>> cut_lengths(np.array([2, 0, 9], np.int32), 4).tolist()
    [2, 0, 4, 4, 1]
    """
    pieces = np.maximum(1, -(-lengths // seq_len))
    found = np.full(int(pieces.sum()), seq_len, np.int32)
    found[np.cumsum(pieces) - 1] = lengths - (pieces - 1) * seq_len
    return found


def find_boundaries(marks: NDArray[np.uint8], seq_len: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """(tokens,) the position of each token in its segment, and the number of its segment in its sequence.

    A segment is the part of a document in a sequence, or its padding, whose number is `PADDING_SEGMENT`.

    >>> positions, segments = find_boundaries(np.array([0, 1, 0, 0, 1, 0, 2, 2], np.uint8), 4)
    >>> positions.tolist(), segments.tolist()
    ([0, 0, 1, 2, 0, 1, 0, 1], [0, 1, 1, 1, 0, 0, -1, -1])
    """
    is_first = marks == STARTS
    is_first[::seq_len] = True
    is_padding = marks == PADDING
    if is_padding.any():
        is_first[1:] |= is_padding[1:] & ~is_padding[:-1]
    (firsts,) = np.nonzero(is_first)
    sizes = np.diff(firsts, append=len(marks))
    positions = np.empty(len(marks), np.uint32)
    number_rows(np.zeros(len(firsts), np.uint32), sizes, positions)
    numbers = np.arange(len(firsts), dtype=np.int32)
    numbers -= np.flatnonzero(firsts % seq_len == 0).astype(np.int32)[firsts // seq_len]
    numbers[is_padding[firsts]] = PADDING_SEGMENT
    return positions.view(np.int32), np.repeat(numbers, sizes)


def cu_seqlens(position_ids: Any) -> tuple[Any, int]:
    """Where the segments of packed sequences begin, as kernels for attention over variable lengths take it.

    The sequences of a batch are laid end to end: give such kernels queries, keys and values of
    ``(rows * seq_len, heads, head_dim)``. A segment is the part of a document that is in one sequence; padding is a
    segment of its own.

    Parameters
    ----------
    position_ids
        (rows, seq_len) the column ``position_ids`` of ``pack(boundaries=True)``, or some of its rows: a NumPy array or
        a tensor on any device.

    Returns
    -------
    cu_seqlens
        (segments + 1,) int32: the first token of each segment, then the number of tokens; of the same kind, and on the
        same device, as ``position_ids``.
    max_seqlen
        The tokens of the longest segment, an int. Of a tensor on a GPU, this waits for the GPU.

    Raises
    ------
    PlanError
        If it is not a two-dimensional array of whole sequences.

    Examples
    --------
    >>> import numpy as np
    >>> import windrow
    >>> windrow.cu_seqlens(np.array([[0, 1, 0, 1], [0, 1, 2, 0]]))
    (array([0, 2, 4, 7, 8], dtype=int32), 3)
    """
    if getattr(position_ids, "ndim", None) != 2 or not hasattr(position_ids, "reshape"):
        shape = tuple(getattr(position_ids, "shape", ()))
        raise PlanError(
            f"cu_seqlens({type(position_ids).__name__}{f' of shape {shape}' if shape else ''}): give it an array or a "
            "tensor of (rows, seq_len), such as batch['position_ids']"
        )
    flat = position_ids.reshape(-1)
    begins = flat == 0
    follows = begins[1:] | (flat[1:] - flat[:-1] == 1)
    if not bool((position_ids[:, :1] == 0).all() & follows.all()):
        raise PlanError(
            "cu_seqlens: a sequence does not begin at position 0, or a position is not the next one: give it whole "
            "sequences of pack(boundaries=True), and leave position_ids out of SequenceSlice(columns=...)"
        )
    firsts = begins.nonzero()
    if isinstance(flat, np.ndarray):
        found = np.append(firsts[0], len(flat)).astype(np.int32)
        return found, int(np.diff(found).max(initial=0))
    starts = firsts.reshape(-1).int()
    bounds = starts.new_full((len(starts) + 1,), len(flat))
    bounds[:-1] = starts
    return bounds, int(bounds.diff().max()) if len(flat) else 0

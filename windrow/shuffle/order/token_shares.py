"""Which source each document of a mixture comes from, if shares are shares of tokens.

Say that all sources give tokens at once, each at the pace of its share. Document k of a source then begins when the
source has given those before it, and ends when it has given its own. Of the documents that have begun by the tokens
that the mixture has so far, the one that would end first comes next. Packets of networks are scheduled by this rule,
worst-case fair weighted fair queueing (Bennett and Zhang, 1996). By its theorems, each source has at no time
more tokens above its share than its longest document has, nor more tokens below it than the longest of all.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from windrow.shuffle.kernels import native, row_positions

Ints = NDArray[np.int64]

_WORD = 2**64 - 1
# of splitmix64
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def share_tokens(
    weights: Ints,
    tokens: Ints,
    documents: Sequence[NDArray[np.int32]],
    *,
    most: int,
    stop: int,
    place: int,
    key: bytes,
) -> tuple[NDArray[np.int32], int | None]:
    """Choose the sources of the next documents of a mixture.

    Parameters
    ----------
    weights
        (sources,) integers of 0 or more: the share of each source is its weight divided by their sum.
    tokens
        (sources,) those that each source has had of these shares.
    documents
        By source, the tokens of each of its next documents, as far as they are known.
    most, stop
        The most documents to choose, and the number of tokens from which on none begins.
    place
        The number of the first one. It chooses between documents that would end at once.
    key
        Its first 8 bytes do, too.

    Returns
    -------
    sources, missing
        (documents,) the source of each; and the source whose next document must be known to go on, None if all are.

    Examples
    --------
    >>> documents = [np.full(9, 3, np.int32), np.full(9, 1, np.int32)]
    >>> none = np.zeros(2, np.int64)
    >>> share_tokens(np.array([1, 1]), none, documents, most=8, stop=99, place=0, key=bytes(8))[0].tolist()
    [1, 0, 1, 1, 1, 0, 1, 1]
    """
    seed = int.from_bytes(key[:8], "little")
    largest = sum(tokens.tolist()) + sum(int(each.sum(dtype=np.int64)) for each in documents)
    # the kernel multiplies them in 64 bits
    if native.LIBRARY is not None and int(weights.sum()) * largest < 2**62:
        return row_positions.share_tokens(weights, tokens, documents, most, stop, place, seed)
    found, missing = _share(
        weights.tolist(), tokens.tolist(), [each.tolist() for each in documents], most, stop, place, seed
    )
    return np.array(found, np.int32), missing


def _share(
    weights: Sequence[int],
    tokens: list[int],
    documents: Sequence[Sequence[int]],
    most: int,
    stop: int,
    place: int,
    seed: int,
) -> tuple[list[int], int | None]:
    """The same as the kernel, in Python."""
    total, given = sum(weights), sum(tokens)
    following = [0] * len(weights)
    found: list[int] = []
    while len(found) < most and given < stop:
        best, best_end, best_draw = -1, 0, 0
        for source, weight in enumerate(weights):
            if not weight or tokens[source] * total > given * weight:
                continue
            if following[source] == len(documents[source]):
                return found, source
            end = tokens[source] + documents[source][following[source]]
            mine, other = (0, 0) if best < 0 else (end * weights[best], best_end * weight)
            if best >= 0 and mine > other:
                continue
            draw = _draw(seed, place + len(found), source)
            if best < 0 or mine < other or draw > best_draw:
                best, best_end, best_draw = source, end, draw
        given += best_end - tokens[best]
        tokens[best] = best_end
        following[best] += 1
        found.append(best)
    return found, None


def _draw(seed: int, place: int, source: int) -> int:
    word = (seed + place * _STEP + source * _FIRST) & _WORD
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)

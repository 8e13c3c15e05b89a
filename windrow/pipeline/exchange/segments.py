"""Blocks made of consecutive rows of other blocks: union, limit, splits, repartition and zip.

A block is a list of segments, in one or, for zip, several groups that lie side by side. Computing
them is arithmetic on row counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Segment", "cut_rows_at", "equal_borders", "whole_blocks"]

Ints = NDArray[np.int64]


class Segment(NamedTuple):
    """Rows ``start`` to ``stop`` of a block of a parent; ``stop`` None: all of its rows."""

    parent: int
    block: int
    start: int = 0
    stop: int | None = None


def whole_blocks(parent: int, blocks: int) -> list[tuple[Segment, ...]]:
    """Return every block of a parent as it is.

    >>> whole_blocks(0, 2)[1]
    (Segment(parent=0, block=1, start=0, stop=None),)
    """
    return [(Segment(parent, block),) for block in range(blocks)]


def equal_borders(rows: int, blocks: int) -> Ints:
    """(blocks + 1,) where blocks of equal rows, give or take one, begin and end.

    >>> equal_borders(10, 4).tolist()
    [0, 2, 5, 7, 10]
    """
    return np.arange(blocks + 1, dtype=np.int64) * rows // blocks


def cut_rows_at(rows: Ints, borders: Sequence[int], parent: int = 0) -> list[tuple[Segment, ...]]:
    """Return the rows between each two borders, given the rows of each of a parent's blocks.

    >>> cut_rows_at(np.array([3, 4]), [0, 2, 5])[1]
    (Segment(parent=0, block=0, start=2, stop=3), Segment(parent=0, block=1, start=0, stop=2))
    """
    ends = np.cumsum(rows)
    return [tuple(_segments(rows, ends, start, stop, parent)) for start, stop in pairwise(borders)]


def _segments(rows: Ints, ends: Ints, start: int, stop: int, parent: int) -> Iterator[Segment]:
    block = int(np.searchsorted(ends, start, side="right"))
    while start < stop:
        first = int(ends[block] - rows[block])
        last = min(stop, int(ends[block]))
        if last > start:
            yield Segment(parent, block, start - first, last - first)
        start, block = last, block + 1

"""Words that travel in fewer bytes than they have: the least of a column's, and how much more each is.

Identifiers, counts, codes and days rarely use the 8 bytes that tables give them. What a task
puts out of a column is as wide as that column's words in that block need it to be, and gets
its own width back when rows are placed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

__all__ = ["Packing", "join_ranges", "packs"]

_BITS = (16, 32, 64)
_INT64_MIN = -(2**63)


def packs(kind: pa.DataType) -> bool:
    """Whether words of a type are worth being packed: whole numbers and times, of more than a byte.

    Examples
    --------
    >>> packs(pa.int64()), packs(pa.timestamp("us")), packs(pa.float64()), packs(pa.int8())
    (True, True, False, False)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return packs(kind.storage_type)
    return (pt.is_integer(kind) or pt.is_temporal(kind)) and kind.bit_width in _BITS


def join_ranges(ranges: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """The least and the largest of several ranges; None where one is not known, or there is none.

    Examples
    --------
    >>> join_ranges([(3, 9), (-1, 4)]), join_ranges([(3, 9), None]), join_ranges([])
    ((-1, 9), None, None)
    """
    joined = None
    for bounds in ranges:
        if bounds is None:
            return None
        joined = bounds if joined is None else (min(joined[0], bounds[0]), max(joined[1], bounds[1]))
    return joined


class Packing(NamedTuple):
    """How the words of a column travel.

    Attributes
    ----------
    bytes
        Of each word: its width, or 0, 1, 2 or 4 where that is less.
    base
        What is to be added to each, in the arithmetic of words; 0 where they have their width.
    """

    bytes: int
    base: int

    @classmethod
    def of(cls, width: int, low: int, high: int) -> Packing:
        """Of words whose least and largest are these, as signed numbers.

        Examples
        --------
        >>> Packing.of(8, -3, 200), Packing.of(8, 5, 5), Packing.of(4, 0, 70_000)
        (Packing(bytes=1, base=-3), Packing(bytes=0, base=5), Packing(bytes=4, base=0))
        """
        if not _INT64_MIN <= low <= high < -_INT64_MIN:
            return cls(width, 0)
        needed = (high - low).bit_length()
        for narrower in (0, 1, 2, 4):
            if needed <= 8 * narrower and narrower < width:
                return cls(narrower, low)
        return cls(width, 0)

"""Frame-of-reference encoding of fixed-width columns: value minus minimum, in 0, 1, 2 or 4 bytes.

Identifiers, counts, codes and dates rarely use their 8 bytes. A map output stores each column of a block in
the narrowest width that holds its range. Placing rows restores the original width.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pyarrow as pa
import pyarrow.types as pt

_BITS = (16, 32, 64)
_INT64_MIN = -(2**63)


def is_packable(kind: pa.DataType) -> bool:
    """Whether a type can be packed: integers and temporal types wider than one byte.

    >>> is_packable(pa.int64()), is_packable(pa.timestamp("us")), is_packable(pa.float64()), is_packable(pa.int8())
    (True, True, False, False)
    """
    if isinstance(kind, pa.BaseExtensionType):
        return is_packable(kind.storage_type)
    return (pt.is_integer(kind) or pt.is_temporal(kind)) and kind.bit_width in _BITS


def join_ranges(ranges: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """Minimum and maximum over several ranges; None if one is unknown, or there is none.

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
    """How the values of a column are encoded."""

    bytes: int  # per value: the column's width, or 0, 1, 2 or 4 where that is narrower
    base: int  # added to each value in wraparound arithmetic; 0 for values of full width

    @classmethod
    def of(cls, width: int, low: int, high: int) -> Packing:
        """The encoding for values of ``width`` bytes between ``low`` and ``high``, as signed numbers.

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

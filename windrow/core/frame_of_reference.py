"""Frame-of-reference encoding of fixed-width columns: value minus minimum, in 0, 1, 2 or 4 bytes.

Identifiers, counts, codes and dates rarely use their 8 bytes. A map output stores each column of a block in
the narrowest width that holds its range. Placing rows restores the original width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_BITS = (16, 32, 64)
_INT64_MIN = -(2**63)
# of a column: no number lies between them
_UNKNOWN = (0, -1)
# a range of fewer values than each of these needs 0, 1, 2 or 4 bytes
_SPANS: NDArray[np.uint64] = np.array([1, 2**8, 2**16, 2**32], np.uint64)
_BYTES: Ints = np.array([0, 1, 2, 4, 8], np.int64)


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
        return cls(*choose_packings(np.array([width]), bounds_table([(low, high)]))[0].tolist())


def bounds_table(bounds: Sequence[tuple[int, int] | None]) -> Ints:
    """(columns, 2) minimum and maximum of each column; the maximum is less where they are unknown, or not of 64 bits.

    >>> bounds_table([(3, 9), None, (0, 2**70)]).tolist()
    [[3, 9], [0, -1], [0, -1]]
    """
    known = [
        each if each is not None and _INT64_MIN <= each[0] <= each[1] < -_INT64_MIN else _UNKNOWN
        for each in bounds
    ]
    return np.array(known, np.int64).reshape(-1, 2)


def join_bounds(tables: Sequence[Ints]) -> Ints:
    """As `bounds_table`, over several tables of the same columns; unknown where one of them does not know.

    >>> join_bounds([bounds_table([(3, 9), (0, 1)]), bounds_table([(-1, 4), None])]).tolist()
    [[-1, 9], [0, -1]]
    """
    if len(tables) == 1:
        return tables[0]
    lows, highs = np.moveaxis(np.stack(tables), 2, 0)
    known = (lows <= highs).all(axis=0)
    joined = np.stack([lows.min(axis=0), highs.max(axis=0)], axis=1)
    return np.where(known[:, None], joined, _UNKNOWN)


def choose_packings(widths: Ints, bounds: Ints) -> Ints:
    """(columns, 2) the `Packing` of each column: ``widths`` are bytes of a value, ``bounds`` as in `bounds_table`.

    >>> choose_packings(np.array([8, 8, 4, 8]), bounds_table([(-3, 200), (5, 5), (0, 70_000), None])).tolist()
    [[1, -3], [0, 5], [4, 0], [8, 0]]
    """
    lows, highs = bounds[:, 0], bounds[:, 1]
    # of 64 bits, also where the difference is more than the largest signed number
    spans = highs.astype(np.uint64) - lows.astype(np.uint64)
    needed = _BYTES[np.searchsorted(_SPANS, spans, side="right")]
    packed = (lows <= highs) & (needed < widths)
    return np.stack([np.where(packed, needed, widths), np.where(packed, lows, 0)], axis=1)

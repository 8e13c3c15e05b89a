"""Packed row layout: combines columns into 64-bit words, so that one scatter moves many columns.

The cost of a scatter is cache lines, not bytes. The 21 columns of the benchmark, 51 packed bytes per row, are
moved as 7 words instead of 21.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD_BYTES = 8
# Possible lane counts, and the scratch memory that stays in the CPU cache.
_LANE_COUNTS, _CACHE_BYTES = (4, 2), 4 * 2**20
# Packed values have at most 4 bytes, so parts whose bases are this far apart have no common packing.
_MAX_DISTANCE = 2**32


class PackedRows(NamedTuple):
    """The layout of a packed row: which columns are in which 64-bit word."""

    starts: NDArray[np.int64]  # (words + 1,) the index in `members` of each word's first column, then the end
    members: NDArray[np.int64]  # (columns, 4) each column's number, bit offset in the word, bytes, and base

    @property
    def words(self) -> int:
        return len(self.starts) - 1

    def lanes(self, rows: int) -> int:
        """How many words of each row are scattered together, so that this many rows stay in the cache: 1, 2 or 4."""
        fits = (
            count
            for count in _LANE_COUNTS
            if self.words > count // 2 and count * _WORD_BYTES * rows <= _CACHE_BYTES
        )
        return next(fits, 1)

    def row_bytes(self, rows: int) -> int:
        """Bytes per row of the words that are scattered together."""
        return self.lanes(rows) * _WORD_BYTES


def join_columns(packing: tuple[tuple[int, int], ...], width: int, rows: int) -> PackedRows | None:
    """Compute the packed row layout of columns of ``width`` unpacked bytes, from their (bytes, base).

    ``rows`` are moved in one call. None if moving columns one by one is faster: for a single column, for
    other widths, or if the rows do not fit into the cache. The widest come first, so that none straddles two
    words:

    >>> packed_rows = join_columns(((1, 0), (8, 0), (2, -3), (4, 7)), 8, 1_000)
    >>> packed_rows.starts.tolist()
    [0, 1, 4]
    >>> packed_rows.members.tolist()
    [[1, 0, 8, 0], [3, 0, 4, 7], [2, 32, 2, -3], [0, 48, 1, 0]]
    """
    if len(packing) < 2 or width not in (1, 2, 4, _WORD_BYTES) or rows * _WORD_BYTES > _CACHE_BYTES:
        return None
    return _lay_out(packing)


@lru_cache(maxsize=64)
def _lay_out(packing: tuple[tuple[int, int], ...]) -> PackedRows:
    members: list[tuple[int, int, int, int]] = []
    starts = [0]
    used = 0
    for number in sorted(range(len(packing)), key=lambda number: -packing[number][0]):
        byte_width, base = packing[number]
        if byte_width and used == _WORD_BYTES:
            starts.append(len(members))
            used = 0
        # the bit offset of a column without bytes does not matter
        members.append((number, 8 * used if byte_width else 0, byte_width, base))
        used += byte_width
    return PackedRows(np.array([*starts, len(members)], np.int64), np.array(members, np.int64))


def join_packings(
    byte_widths: NDArray[np.int64], bases: NDArray[np.int64], width: int
) -> list[tuple[int, int]]:
    """Find a common (bytes, base) for columns whose parts each have their own: (columns, parts) widths and bases.

    >>> join_packings(np.array([[1, 1], [1, 8]]), np.array([[0, 200], [5, 0]]), 8)
    [(2, 0), (8, 0)]
    """
    low = bases.min(axis=1)
    # unsigned 64-bit differences are correct whatever the signs
    apart = (bases - low[:, None]).view(np.uint64)
    whole = (byte_widths.max(axis=1) == width) | (apart.max(axis=1) >= _MAX_DISTANCE)
    narrow = np.where(whole[:, None], 0, byte_widths).astype(np.uint64)
    tops = (np.where(whole[:, None], 0, apart) + (np.uint64(1) << (np.uint64(8) * narrow))).max(axis=1) - 1
    packings = []
    for top, base, is_whole in zip(tops.tolist(), low.tolist(), whole.tolist(), strict=True):
        fitting = (size for size in (0, 1, 2, 4) if size < width and top < 1 << 8 * size)
        size = width if is_whole else next(fitting, width)
        packings.append((size, 0 if size == width else base))
    return packings

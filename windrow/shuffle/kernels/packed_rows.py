"""Columns joined to words of 8 bytes, so that one move of a row moves many of them.

What it costs to put a row's values somewhere else in memory is lines of the cache, not bytes: 21
columns of the benchmark, whose words need 51 bytes, go as 7 words instead of 21.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["PackedRows", "join_columns", "join_packings"]

_WORD_BYTES = 8
# Of words that go side by side, and the memory that does not leave the cache.
_LANE_COUNTS, _CACHE_BYTES = (4, 2), 4 * 2**20
# Packed words have fewer bytes than tell this many; two that are farther apart are not packed together.
_MAX_DISTANCE = 2**32


class PackedRows(NamedTuple):
    """Which columns lie in which words.

    Attributes
    ----------
    starts
        (words + 1,) where the columns of each word begin among ``members``, and the end.
    members
        (columns, 4) of each: its number, the bits that it lies above the lowest, its bytes, and
        what it is more than.
    """

    starts: NDArray[np.int64]
    members: NDArray[np.int64]

    @property
    def words(self) -> int:
        """How many there are."""
        return len(self.starts) - 1

    def lanes(self, rows: int) -> int:
        """How many words of so many rows go side by side, and stay in the cache: 1, 2 or 4."""
        fits = (
            count
            for count in _LANE_COUNTS
            if self.words > count // 2 and count * _WORD_BYTES * rows <= _CACHE_BYTES
        )
        return next(fits, 1)

    def row_bytes(self, rows: int) -> int:
        """The bytes of the words that go side by side."""
        return self.lanes(rows) * _WORD_BYTES


def join_columns(packing: tuple[tuple[int, int], ...], width: int, rows: int) -> PackedRows | None:
    """Lay columns out.

    Parameters
    ----------
    packing
        Of each column, its bytes, which are 0, 1, 2, 4 or 8, and what it is more than.
    width
        The bytes of their words unpacked.
    rows
        How many are moved at once.

    Returns
    -------
    Joint or None
        None where columns had better go by themselves: one alone, wide ones, or more rows than stay in
        the cache.

    Examples
    --------
    Widest first, so that none lies across two words:

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
        # what takes no bytes lies anywhere
        members.append((number, 8 * used if byte_width else 0, byte_width, base))
        used += byte_width
    return PackedRows(np.array([*starts, len(members)], np.int64), np.array(members, np.int64))


def join_packings(
    byte_widths: NDArray[np.int64], bases: NDArray[np.int64], width: int
) -> list[tuple[int, int]]:
    """How columns are packed whose parts are each packed in their own way.

    Parameters
    ----------
    byte_widths, bases
        (columns, parts) of each the bytes of a word, and what it is more than.
    width
        The bytes of a word that is not packed.

    Returns
    -------
    list of (int, int)
        Of each column the bytes of a word, and what it is more than.

    Examples
    --------
    >>> join_packings(np.array([[1, 1], [1, 8]]), np.array([[0, 200], [5, 0]]), 8)
    [(2, 0), (8, 0)]
    """
    low = bases.min(axis=1)
    # differences of 64 bits: right as unsigned numbers, whatever the signs
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

"""A column chunk that the C decoder accepts, and tables of those of many columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.io.parquet.decoder_library import CODECS

# what chunks hold, as in C
NUMBERS, TEXT, BOOLEANS, DECIMALS = range(4)


class _ChunkFields(NamedTuple):
    start: int  # offset of its pages in the file
    size_bytes: int  # compressed
    rows: int  # to decode
    kind: int  # what its values are, as in C
    width: int  # bytes of a stored value; 0 for text and booleans
    codec: str
    optional: bool  # its pages have definition levels
    has_nulls: bool = False  # the footer states nulls, or does not state their number
    raw_bytes: int = 0  # uncompressed size of its pages, as the footer states it
    # of some rows alone: the rows of its pages before and behind these, and the place of a dictionary that lies apart
    before: int = 0
    behind: int = 0
    dictionary: tuple[int, int] | None = None


class Chunk(_ChunkFields):
    """A column chunk that the C decoder accepts, or some rows of one; no dataclass, which takes longer to copy."""

    @property
    def is_text(self) -> bool:
        return self.kind == TEXT

    def moved(self, start: int, size_bytes: int) -> Chunk | None:
        """The chunk where its file of so many bytes begins at ``start``; None if it ends behind the file."""
        is_within = self.size_bytes >= 0 and 0 <= self.start <= size_bytes - self.size_bytes
        return self._replace(start=start + self.start) if is_within else None

    @property
    def facts(self) -> tuple[int, ...]:
        """Its properties in the order of a job of the C decoder."""
        codec = CODECS[self.codec].number
        return self.kind, codec, self.optional, self.width, self.rows, self.before, self.behind


# What the columns of a chunk table hold: whether there is a chunk, and may be nulls; where its pages are; where a
# dictionary lies apart; and the facts of a job of the C decoder.
IS_STORED, HAS_NULLS, PAGES, DICTIONARY, FACTS = 0, 1, slice(2, 4), slice(4, 6), slice(6, 13)
ROWS, BEFORE, _TABLE_COLUMNS = 10, 11, 13


def chunk_table(chunks: Sequence[Chunk | None]) -> NDArray[np.int64]:
    """(columns, 13) the chunks of some columns in one row group: one array, so that many are decoded at a time."""
    table = np.zeros((len(chunks), _TABLE_COLUMNS), np.int64)
    for row, chunk in zip(table, chunks, strict=True):
        if chunk is not None:
            row[:] = (
                True,
                chunk.has_nulls,
                chunk.start,
                chunk.size_bytes,
                *(chunk.dictionary or (0, 0)),
                *chunk.facts,
            )
    return table


def move_chunks(table: NDArray[np.int64], start: int, size_bytes: int) -> NDArray[np.int64]:
    """The chunks of a table where their file of so many bytes begins at ``start``.

    Those that end behind the file are left out: other bytes come there.
    """
    starts, sizes = table[:, PAGES].T
    is_within = (sizes >= 0) & (starts >= 0)
    is_within &= starts <= size_bytes - np.where(is_within, sizes, 0)
    moved = table * is_within[:, None]
    moved[is_within, PAGES.start] += start
    return moved

"""Cuts large row groups into pieces of adjacent rows, from the manifest alone.

A row group of gigabytes would be a single block: one task would decode all of it, in memory for all of it, and
nothing of it would mix. Pieces are ranges of rows, of equal size but for the last. The reader finds the pages that
hold the rows of a piece, so a page at a border is decoded twice: pieces begin where many writers begin a page.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windrow.io.catalog.manifest import Manifest, VariableBytes
from windrow.io.catalog.value_widths import leaf_types

__all__ = ["CutSizes", "Pieces", "cut_row_groups"]

Ints = NDArray[np.int64]

# half of what offsets of 32 bits can address: sizes of text are estimates
_OFFSET_BYTES = 2**30


@dataclass(frozen=True)
class CutSizes:
    """Which row groups are cut, and where; bytes are encoded ones.

    Row groups of more than four blocks of the target size are cut, but none below ``min_bytes`` and all above
    ``max_bytes``, unless the target is larger. Pieces have the target size, at least ``min_piece_bytes``.

    Each piece that holds rows of a page decodes all of it, so pieces have at least the rows that writers commonly put
    into one: up to ``page_bytes`` or ``page_rows``, but the size is looked at only after ``batch_rows`` rows. Pages of
    long values and row groups of many columns can thus make larger pieces, of at most ``max_piece_bytes``.
    """

    min_bytes: int = 64 * 2**20
    max_bytes: int = 128 * 2**20
    min_piece_bytes: int = 16 * 2**20
    max_piece_bytes: int = 256 * 2**20
    page_bytes: int = 2**20
    batch_rows: int = 1_024
    # pieces of more rows begin at a multiple of it
    page_rows: int = 20_000

    def piece_rows(self, rows: int, size_bytes: int, leaves: int, target_bytes: int) -> int:
        """The rows of a piece of a row group of so many leaf columns; all of its rows if it is not cut."""
        limit = max(min(max(4 * target_bytes, self.min_bytes), self.max_bytes), target_bytes)
        if size_bytes <= limit or rows < 2:
            return rows
        in_page = self.page_bytes * leaves * rows // max(size_bytes, 1)
        least_rows = min(max(in_page, self.batch_rows), self.page_rows)
        least_bytes = min(least_rows * size_bytes // rows, self.max_piece_bytes)
        pieces = min(-(-size_bytes // max(target_bytes, self.min_piece_bytes, least_bytes)), rows)
        each = -(-rows // pieces)
        for multiple in (self.page_rows, self.batch_rows):
            if each >= multiple:
                # up, so that no piece is much smaller
                return min(-(-each // multiple) * multiple, rows)
        return each


@dataclass(frozen=True, eq=False)
class Pieces:
    """The row groups of a manifest, large ones as several pieces; arrays have one value a piece.

    ``manifest`` is the same one with pieces in place of row groups. Without cuts, pieces are the row groups.
    """

    manifest: Manifest
    groups: Ints  # the number of its row group, in the manifest that is not cut
    first_rows: Ints  # its first row in the row group
    is_cut: NDArray[np.bool_]  # whether it is not the whole row group

    @property
    def any_cut(self) -> bool:
        return bool(self.is_cut.any())


def _sizes(manifest: Manifest) -> Ints:
    """(row groups,) encoded bytes; where dictionaries make gigabytes of text small, those in memory."""
    encoded: Ints = manifest.encoded_bytes.astype(np.int64)
    for column in manifest.variable.values():
        memory = column.memory.astype(np.int64)
        encoded = np.where(memory > _OFFSET_BYTES, np.maximum(encoded, memory), encoded)
    return encoded


def cut_row_groups(manifest: Manifest, target_bytes: int, sizes: CutSizes | None) -> Pieces:
    """Cut the large row groups of a manifest; none without ``sizes``."""
    rows = manifest.rows.astype(np.int64)
    steps = np.maximum(rows, 1)
    if sizes is not None:
        stored, leaves = _sizes(manifest), sum(len(leaf_types(field.type)) for field in manifest.schema)
        for group in np.flatnonzero((stored > sizes.min_bytes) & (rows > 0)).tolist():
            steps[group] = sizes.piece_rows(int(rows[group]), int(stored[group]), leaves, target_bytes)
    counts = np.maximum(-(-rows // steps), 1)
    groups = np.repeat(np.arange(len(rows)), counts)
    if len(groups) == len(rows):
        return Pieces(manifest, groups, np.zeros_like(rows), np.zeros(len(rows), np.bool_))
    starts = np.append(0, np.cumsum(counts))
    first_rows = (np.arange(len(groups)) - starts[groups]) * steps[groups]
    piece_rows = np.minimum(steps[groups], rows[groups] - first_rows)

    def divide(values: NDArray[Any]) -> NDArray[np.unsignedinteger[Any]]:
        """Share values of row groups among their pieces, by rows; the shares add up to the values."""
        share = values.astype(np.float64)[groups] / np.maximum(rows, 1)[groups]
        begin = np.floor(share * first_rows).astype(np.int64)
        end = np.append(begin[1:], 0)
        is_last = np.append(np.diff(groups) > 0, True)
        end[is_last] = values.astype(np.int64)[groups[is_last]]
        return (end - begin).astype(np.uint64)

    variable = {
        name: VariableBytes(divide(column.encoded), divide(column.memory))
        for name, column in manifest.variable.items()
    }
    cut = replace(
        manifest,
        row_group_ends=starts[manifest.row_group_ends],
        rows=piece_rows.astype(np.uint64),
        encoded_bytes=divide(manifest.encoded_bytes),
        variable=variable,
    )
    return Pieces(cut, groups, first_rows, counts[groups] > 1)

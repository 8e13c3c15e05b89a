"""Cuts files into blocks (adjacent row groups, or pieces of one) from the manifest alone, and estimates their sizes.

A row group of gigabytes would be a single block: one task would decode all of it, in memory for all of it, and
nothing of it would mix. Pieces are ranges of rows, of equal size but for the last. The reader finds the pages that
hold the rows of a piece, so a page at a border is decoded twice: pieces begin where many writers begin a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.frame_of_reference import Packing, is_packable
from windrow.core.source import BlockTable
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.manifest import Manifest, VariableBytes
from windrow.io.catalog.value_sizes import fixed_bits, leaf_types, offset_bytes

Ints = NDArray[np.int64]

# half of what offsets of 32 bits can address: sizes of text are estimates
_OFFSET_BYTES = 2**30
# Enough blocks for windows to mix, and for tasks of many workers.
_AUTO_BLOCKS = 256
# Smaller blocks cost more than they mix; larger ones need more memory and cost no less a byte.
_MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES = 2**20, 64 * 2**20
# the text of a number of 8 bytes
_NUMBER_BYTES = 20


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


@dataclass(frozen=True, eq=False)
class BlockCuts:
    """(blocks,) pieces ``starts`` to ``stops`` (exclusive) of row groups, and the first one's fragment."""

    fragments: Ints
    starts: Ints
    stops: Ints


def choose_block_bytes(manifest: Manifest, kept: NDArray[np.bool_]) -> int:
    """Choose the target size of blocks from the row groups of the kept fragments alone.

    Up to 256 row groups stay blocks of their own (0). More are joined to about 256 blocks, of 1 to 64 MiB.
    """
    few = int(np.count_nonzero(kept[_owners(manifest)])) <= _AUTO_BLOCKS
    return 0 if few else choose_piece_bytes(manifest, kept)


def choose_piece_bytes(manifest: Manifest, kept: NDArray[np.bool_]) -> int:
    """Choose the target size of the pieces of large row groups, as `choose_block_bytes` does for blocks."""
    total = int(manifest.encoded_bytes[kept[_owners(manifest)]].sum(dtype=np.int64))
    return min(max(total // _AUTO_BLOCKS, _MIN_BLOCK_BYTES), _MAX_BLOCK_BYTES)


def _owners(manifest: Manifest) -> Ints:
    """(row groups,) the fragment of each."""
    return np.repeat(np.arange(manifest.fragments), np.diff(manifest.row_group_ends, prepend=0))


def cut_blocks(
    pieces: Pieces, kept: NDArray[np.bool_], target_bytes: int, *, joins_files: bool = False
) -> BlockCuts:
    """Join adjacent row groups of each kept fragment greedily, up to a target size; a piece of one is a block.

    Sizes are the encoded bytes of all columns, so that blocks, and with them the row order, do not depend on
    the selected columns. With ``joins_files`` a block can continue in the next file, if that is kept.
    """
    manifest = pieces.manifest
    owners = _owners(manifest)
    groups = np.flatnonzero(kept[owners])
    owners, is_cut = owners[groups], pieces.is_cut[groups]
    # blocks are contiguous ranges of row groups, so they end at a dropped one
    join_keys = np.cumsum(np.diff(groups, prepend=groups[:1]) > 1, dtype=np.int64) if joins_files else owners
    is_first = np.diff(join_keys, prepend=-1) != 0
    is_first |= is_cut
    is_first[1:] |= is_cut[:-1]
    starts = _greedy_starts(is_first, manifest.encoded_bytes[groups], target_bytes)
    stops = np.append(starts[1:], len(groups)) if len(starts) else starts
    return BlockCuts(owners[starts], groups[starts], groups[stops - 1] + 1)


def _greedy_starts(is_first: NDArray[np.bool_], sizes: NDArray[Any], target_bytes: int) -> Ints:
    starts, block_bytes = [], 0
    for index, (first, size) in enumerate(zip(is_first.tolist(), sizes.tolist(), strict=True)):
        block_bytes += size
        if first or block_bytes > target_bytes:
            starts.append(index)
            block_bytes = size
    return np.array(starts, np.int64)


def weigh_blocks(
    manifest: Manifest,
    cuts: BlockCuts,
    columns: Sequence[pa.Field[Any]],
    partitions: Partitions,
    *,
    rows_known: bool,
    rows_bounded: bool,
) -> BlockTable:
    """Compute the rows and bytes of each block for the selected columns; ``manifest`` has pieces as row groups."""
    rows = _sum(manifest.rows, cuts)
    decoded, memory, saved, exact = np.zeros_like(rows), np.zeros_like(rows), 0, True
    for field in columns:
        bits, offsets = fixed_bits(field.type), rows * offset_bytes(field.type)
        exact = exact and bits is not None
        if bits is not None:
            stored = used = (rows * bits + 7) // 8
            saved += _saved_bytes(manifest, field)
        elif field.name in partitions.schema.names:
            stored = used = offsets + _sum(_text_bytes(manifest, field, partitions), cuts)
        elif field.name in manifest.variable:
            stored = _sum(manifest.variable[field.name].encoded, cuts)
            used = np.maximum(_sum(manifest.variable[field.name].memory, cuts), offsets)
        else:
            # numbers that ``schema=`` makes text of
            stored = used = offsets + rows * _NUMBER_BYTES
        decoded, memory = decoded + stored, memory + used
    packed = memory - rows * saved
    last = np.searchsorted(manifest.row_group_ends, cuts.stops - 1, side="right")
    return BlockTable(
        rows,
        decoded,
        memory,
        rows_known,
        exact and rows_bounded,
        rows_bounded,
        packed,
        files=last - cuts.fragments + 1,
    )


def _saved_bytes(manifest: Manifest, field: pa.Field[Any]) -> int:
    """Minimum bytes per value that frame-of-reference packing saves, from the column's statistics."""
    bounds = manifest.ranges.get(field.name)
    # null slots can hold any value, so statistics do not bound them
    bits = fixed_bits(field.type)
    if (
        bounds is None
        or manifest.schema.field(field.name).type != field.type
        or bits is None
        or manifest.null_counts.get(field.name) != 0
        or not is_packable(field.type)
    ):
        return 0
    width = bits // 8
    return int(width - Packing.of(width, *bounds).bytes)


def _sum(values: NDArray[Any], cuts: BlockCuts) -> Ints:
    totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])
    sums: Ints = totals[cuts.stops] - totals[cuts.starts]
    return sums


def _text_bytes(manifest: Manifest, field: pa.Field[Any], partitions: Partitions) -> Ints:
    """(row groups,) text bytes of a partition column's values."""
    values = partitions.table(manifest.paths.to_pylist()).column(field.name).to_pylist()
    lengths = np.array([0 if value is None else len(str(value).encode()) for value in values], np.int64)
    lengths = np.repeat(lengths, np.diff(manifest.row_group_ends, prepend=0))
    return manifest.rows.astype(np.int64) * lengths

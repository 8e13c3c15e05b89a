"""Cuts files into blocks (adjacent row groups, or pieces of one), and estimates the blocks' sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.frame_of_reference import Packing, is_packable
from windrow.core.source import BlockTable
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.catalog.manifest import Manifest
from windrow.io.catalog.row_group_pieces import Pieces
from windrow.io.catalog.value_widths import fixed_bits, offset_bytes

__all__ = ["BlockCuts", "choose_block_bytes", "choose_piece_bytes", "cut_blocks", "weigh_blocks"]

# Enough blocks for windows to mix, and for tasks of many workers.
_AUTO_BLOCKS = 256
# Smaller blocks cost more than they mix; larger ones need more memory and cost no less a byte.
_MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES = 2**20, 64 * 2**20

# the text of a number of 8 bytes
_NUMBER_BYTES = 20

Ints = NDArray[np.int64]


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
    decoded, memory, exact = np.zeros_like(rows), np.zeros_like(rows), True
    saved = 0
    for field in columns:
        bits = fixed_bits(field.type)
        if bits is not None:
            decoded += (rows * bits + 7) // 8
            memory += (rows * bits + 7) // 8
            saved += _saved_bytes(manifest, field)
        elif field.name in partitions.schema.names:
            text = rows * offset_bytes(field.type) + _sum(_text_bytes(manifest, field, partitions), cuts)
            decoded, memory, exact = decoded + text, memory + text, False
        elif field.name in manifest.variable:
            exact = False
            decoded += _sum(manifest.variable[field.name].encoded, cuts)
            estimate = _sum(manifest.variable[field.name].memory, cuts)
            memory += np.maximum(estimate, rows * offset_bytes(field.type))
        else:
            # numbers that ``schema=`` makes text of
            text = rows * (offset_bytes(field.type) + _NUMBER_BYTES)
            decoded, memory, exact = decoded + text, memory + text, False
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

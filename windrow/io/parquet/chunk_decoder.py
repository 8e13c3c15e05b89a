"""Decodes Parquet column chunks that the C decoder supports, straight to the shuffled positions of their rows if flat.

Most training data is flat: numbers of 4 or 8 bytes, booleans, decimals and text. ``_decode.c`` decodes such a
chunk and scatters its values in one pass, frame-of-reference encoded in the bytes in which they are sent
(`windrow.core.frame_of_reference`). Nulls become zeros, and a byte each. For text it records the offset of each
value in the decompressed pages, and copies the value once. zstd and LZ4 are decompressed by the system's
libraries, if they are installed. All other chunks, and all chunks with any irregularity, are declined and read by
Arrow.

Lists and structs of numbers are decoded in stored order by ``_nested.c``: Arrow takes several times as long to
assemble them. Lists can be null or empty; where an element, a struct or a value is null, Arrow reads the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.column_memory import ColumnMemory
from windrow.core.frame_of_reference import Packing
from windrow.core.native_libraries import address_of
from windrow.core.source import Scattered
from windrow.core.text_types import fits_offsets, offset_width
from windrow.io.catalog.value_sizes import is_list
from windrow.io.parquet import decoder_library
from windrow.io.parquet.chunks import (
    BEFORE,
    DICTIONARY,
    FACTS,
    HAS_NULLS,
    IS_STORED,
    PAGES,
    ROWS,
    Chunk,
    chunk_table,
)
from windrow.io.parquet.decoder_library import (
    CODECS,
    SCRATCH,
    UNCOMPRESSED,
    ChunkFile,
    read_chunks,
    read_into,
    read_pages,
)
from windrow.io.parquet.stored_chunks import NestedLeaf

# SLACK in C: bytes after decompressed pages that can be read and written
_SLACK_BYTES = 64
# bytes before all text: a length of 0
_NULL_BYTES = 4
# offsets of text values have 32 bits
_MAX_TEXT_BYTES = 2**32 - 1
# two bytes for each level of a page with null or empty lists; pages with more levels are declined
_LEVELS_BYTES = 2 * 2**20
# of a job in C: how many there are, and those that it writes
_JOB_COLUMNS, _IS_DECODED, _NULLS = 18, 16, 17
# Arrow reads values of more bytes than this, if they are stored in less than the 256th part
_SMALL_BYTES, _MAX_RATIO = 64 * 2**20, 256


def decode(
    file: ChunkFile,
    chunks: NDArray[np.int64],
    packings: NDArray[np.int64],
    targets: NDArray[np.uint32],
    outs: ColumnMemory,
    pool: BufferPool,
) -> Scattered:
    """Decode columns; value i of a column, over all its chunks, is packed into ``targets[i]`` of its memory.

    ``chunks``, (columns, row groups, ...), are rows of `chunk_table`, and ``packings``, (columns, 2), the `Packing` of
    each column. Nulls become zeros. Columns without a chunk in each row group are left out, and those with a chunk that
    is declined or holds a value that does not fit its packing; their memory can be partially written then. Nothing
    here is done column by column: tables of a thousand columns have small chunks.
    """
    supported = np.flatnonzero(chunks[:, :, IS_STORED].all(axis=1))
    if not len(supported):
        return Scattered.none(len(chunks))
    groups, rows = chunks.shape[1], len(targets)
    outs.check(packings[:, 0] * rows)
    flat = chunks[supported].reshape(-1, chunks.shape[2])
    # the buffers are kept, since jobs hold addresses; a chunk without pages is declined
    where, buffers = read_chunks(file, flat[:, PAGES])
    apart, dictionaries = _read_dictionaries(file, flat[:, DICTIONARY])
    rows_of = flat[:, ROWS].reshape(-1, groups)
    nullable = np.flatnonzero(flat[:, HAS_NULLS].reshape(-1, groups).any(axis=1))
    masks = ColumnMemory.take(pool, np.full(len(nullable), rows, np.int64))
    masks_at = np.zeros(len(supported), np.int64)
    masks_at[nullable] = masks.addresses
    shared, memory = _share(flat[:, ROWS], flat[:, BEFORE], targets, pool, has_nulls=len(nullable) > 0)
    each = np.repeat(np.arange(len(supported)), groups)
    jobs = np.zeros((len(flat), _JOB_COLUMNS), np.int64)
    jobs[:, 0:2], jobs[:, 2:4], jobs[:, 4:11] = where, apart, flat[:, FACTS]
    jobs[:, 11:13] = packings[supported][each]
    jobs[:, 13] = (np.cumsum(rows_of, axis=1) - rows_of).ravel()
    jobs[:, 14] = outs.addresses[supported][each]
    jobs[:, 15] = masks_at[each]
    decoder_library.LIBRARY.windrow_decode_chunks(len(jobs), jobs, shared)
    del buffers, dictionaries, memory
    decoded = (jobs[:, _IS_DECODED] != 0).reshape(-1, groups).all(axis=1)
    # the last job of a column counts the nulls of all
    nulls = jobs[groups - 1 :: groups, _NULLS]
    done = np.zeros(len(chunks), np.bool_)
    done[supported] = decoded
    valid = {
        int(supported[column]): masks.column(at, rows)
        for at, column in enumerate(nullable.tolist())
        if decoded[column] and nulls[column]
    }
    return Scattered(done, valid)


def _read_dictionaries(
    file: ChunkFile, places: NDArray[np.int64]
) -> tuple[NDArray[np.int64], list[pa.Buffer]]:
    """(chunks, 2) the address and bytes of each chunk's dictionary that lies apart, else zeros; what holds them."""
    apart = np.flatnonzero(places[:, 1])
    found, buffers = np.zeros_like(places), list[pa.Buffer]()
    if len(apart):
        found[apart], buffers = read_chunks(file, places[apart])
    return found, buffers


def _share(
    rows_of: NDArray[np.int64],
    before: NDArray[np.int64],
    targets: NDArray[np.uint32],
    pool: BufferPool,
    *,
    has_nulls: bool,
) -> tuple[NDArray[np.int64], Any]:
    """What jobs share, as C lays it out, and the memory whose addresses it has.

    ``rows_of`` are the rows of each chunk, and ``before`` those ahead of them in its pages.
    """
    rows = int((rows_of + before).max(initial=0))
    # a target of each row, to sort them into values and nulls, and for pages that begin before the rows
    compact = pool.take(4 * rows) if rows and has_nulls else None
    ahead = pool.take(4 * rows) if before.any() else None
    codecs, scratch = SCRATCH.codecs.addresses, SCRATCH.memory
    places = [0 if each is None else address_of(each) for each in (codecs, targets, scratch, compact, ahead)]
    shared = [*places[:2], len(targets), places[2], len(scratch), *places[3:], rows]
    return np.array(shared, np.int64), (codecs, scratch, compact, ahead)


def decode_text(
    file: ChunkFile,
    chunks: Sequence[Chunk],
    kind: pa.DataType,
    targets: NDArray[np.uint32],
    cuts: Sequence[slice],
    pool: BufferPool,
) -> list[pa.Array] | None:
    """Decode chunks of text into one array for each of ``cuts``, slices of the target rows.

    Value i, over all chunks, goes to row ``targets[i]``. None if a chunk is declined or is not text, or if
    the text of an array exceeds the range of the type's offsets.
    """
    capacity = _NULL_BYTES + sum(chunk.raw_bytes for chunk in chunks) + _SLACK_BYTES
    if capacity > _MAX_TEXT_BYTES or not all(chunk.is_text for chunk in chunks):
        return None
    text, at = pool.take(capacity), pool.take(targets.nbytes).view(np.uint32)
    # the empty text that nulls point to
    text[:_NULL_BYTES] = 0
    valid = pool.take(len(targets)) if any(chunk.has_nulls for chunk in chunks) else None
    addresses = address_of(at), 0 if valid is None else address_of(valid)
    table = chunk_table(chunks)
    shared, memory = _share(table[:, ROWS], table[:, BEFORE], targets, pool, has_nulls=valid is not None)
    apart, dictionaries = _read_dictionaries(file, table[:, DICTIONARY])
    first, nulls, used = 0, 0, _NULL_BYTES
    for chunk, dictionary in zip(chunks, apart.tolist(), strict=True):
        # keeps the buffer alive, since jobs hold raw addresses
        pages, used = _read_text(file, chunk, text, used)
        if pages is None:
            return None
        where = pages.address, pages.size, *dictionary
        job = np.array([*where, *chunk.facts, *Packing(4, 0), first, *addresses, False, nulls], np.int64)
        used = decoder_library.LIBRARY.windrow_locate_text(job, shared, text, used, capacity)
        if used < 0:
            return None
        first, nulls = first + chunk.rows, int(job[-1])
    del dictionaries, memory
    arrays = [
        _gather(text, at[rows], valid[rows] if valid is not None and nulls else None, kind, pool)
        for rows in cuts
    ]
    found = [array for array in arrays if array is not None]
    return found if len(found) == len(arrays) else None


def _read_text(
    file: ChunkFile, chunk: Chunk, text: NDArray[np.uint8], used: int
) -> tuple[pa.Buffer | None, int]:
    """The pages of a chunk, and the bytes of ``text`` used then: uncompressed ones are read to where they stay."""
    end = used + chunk.size_bytes
    if chunk.codec == UNCOMPRESSED and end <= len(text) - _SLACK_BYTES:
        place = text[used:end]
        if read_into(file, chunk.start, place):
            return pa.py_buffer(place), end
    return read_pages(file, chunk.start, chunk.size_bytes), used


def _gather(
    text: NDArray[np.uint8],
    at: NDArray[np.uint32],
    valid: NDArray[np.uint8] | None,
    kind: pa.DataType,
    pool: BufferPool,
) -> pa.Array | None:
    """Gather the values at some offsets; None if their total size exceeds the range of the type's offsets."""
    rows, width = len(at), offset_width(kind)
    offsets = pool.take(width * (rows + 1))
    total = decoder_library.LIBRARY.windrow_measure_text(text, at, rows, width, offsets)
    if not fits_offsets(total, width):
        return None
    out = pool.take(total)
    decoder_library.LIBRARY.windrow_gather_text(text, at, rows, out, total)
    nulls = 0 if valid is None else rows - int(np.count_nonzero(valid))
    mask = pa.py_buffer(np.packbits(valid, bitorder="little")) if valid is not None and nulls else None
    return pa.Array.from_buffers(
        kind, rows, [mask, pa.py_buffer(offsets), pa.py_buffer(out)], null_count=nulls
    )


class _Lists(NamedTuple):
    """Where lists begin, over all chunks of a column."""

    offsets: NDArray[np.int64]  # (rows + 1,)
    valid: NDArray[np.uint8]  # (rows,)
    nulls: int


class _Leaf(NamedTuple):
    values: NDArray[np.uint8]
    lists: _Lists


def decode_nested(
    file: ChunkFile, groups: Sequence[tuple[NestedLeaf, ...]], kind: pa.DataType, pool: BufferPool
) -> pa.Array | None:
    """Decode a column; ``groups`` has the leaves of each row group. None if a chunk is declined."""
    values, lists = [], None
    for leaves in zip(*groups, strict=True):
        decoded = _decode_leaf(file, leaves, pool)
        if decoded is None or (lists is not None and not _are_equal(decoded.lists, lists)):
            return None
        values.append(decoded.values)
        lists = decoded.lists
    if lists is None:
        return None
    if not is_list(kind):
        return _wrap_struct(values, kind)
    inner = kind.value_type
    items = _wrap_struct(values, inner) if pt.is_struct(inner) else _wrap(values[0], inner)
    return _wrap_lists(items, lists, kind, pool)


def _decode_leaf(file: ChunkFile, leaves: Sequence[NestedLeaf], pool: BufferPool) -> _Leaf | None:
    rows, width, has_lists = sum(leaf.rows for leaf in leaves), leaves[0].width, leaves[0].list_level >= 0
    stored = [read_pages(file, leaf.start, leaf.size_bytes) for leaf in leaves]
    pages = [each for each in stored if each is not None]
    if len(pages) < len(leaves) or any(leaf.width != width for leaf in leaves):
        return None
    capacity = sum(leaf.values for leaf in leaves)
    # what footers state can be wrong, and memory for it is taken before any page is read
    if not 0 <= capacity * width <= max(_SMALL_BYTES, _MAX_RATIO * sum(each.size for each in pages)):
        return None
    out = pool.take(capacity * width)
    offsets = pool.take(8 * (rows + 1) if has_lists else 0).view(np.int64)
    valid = pool.take(rows if has_lists else 0)
    scratch, levels = SCRATCH.memory, pool.take(_LEVELS_BYTES if has_lists else 0)
    first = items = nulls = 0
    for leaf, buffer in zip(leaves, pages, strict=True):
        ahead = (0, 0) if leaf.ahead is None else (leaf.ahead.address, leaf.ahead.size)
        where = (buffer.address, buffer.size, *ahead, CODECS[leaf.codec].number)
        how = (width, leaf.values, leaf.rows, has_lists, leaf.max_level, leaf.list_level)
        lists = (address_of(offsets) + 8 * first, address_of(valid) + first) if has_lists else (0, 0)
        job = np.array([*where, *how, address_of(out), capacity, *lists, items, False, 0, 0], np.int64)
        decoder_library.LIBRARY.windrow_decode_nested(
            1, job, SCRATCH.codecs.addresses, scratch, len(scratch), levels, len(levels)
        )
        is_decoded, items, more = job[-3:].tolist()
        if not is_decoded:
            return None
        first, nulls = first + leaf.rows, nulls + more
    decoded = _Leaf(out[: items * width], _Lists(offsets, valid, nulls))
    return decoded if leaves[0].kept is None else _keep_rows(decoded, leaves[0].kept, width)


def _keep_rows(leaf: _Leaf, rows: slice, width: int) -> _Leaf:
    """Some rows of a leaf; without lists, each row has one value."""
    offsets, valid = leaf.lists.offsets[rows.start : rows.stop + 1], leaf.lists.valid[rows]
    if not len(leaf.lists.offsets):
        return _Leaf(leaf.values[rows.start * width : rows.stop * width], leaf.lists)
    first, stop = int(offsets[0]), int(offsets[-1])
    nulls = len(valid) - int(np.count_nonzero(valid)) if leaf.lists.nulls else 0
    return _Leaf(leaf.values[first * width : stop * width], _Lists(offsets - first, valid, nulls))


def _are_equal(one: _Lists, other: _Lists) -> bool:
    """Whether two leaves have the same lists."""
    same_nulls = one.nulls == other.nulls and (not one.nulls or np.array_equal(one.valid, other.valid))
    return same_nulls and np.array_equal(one.offsets, other.offsets)


def _wrap(values: NDArray[Any], kind: pa.DataType) -> pa.Array:
    return pa.Array.from_buffers(kind, values.nbytes * 8 // kind.bit_width, [None, pa.py_buffer(values)], 0)


def _wrap_struct(values: Sequence[NDArray[Any]], kind: pa.DataType) -> pa.Array:
    children = [_wrap(each, field.type) for each, field in zip(values, kind.fields, strict=True)]
    return pa.Array.from_buffers(kind, len(children[0]), [None], 0, children=children)


def _wrap_lists(items: pa.Array, lists: _Lists, kind: pa.DataType, pool: BufferPool) -> pa.Array | None:
    rows = len(lists.offsets) - 1
    if pt.is_fixed_size_list(kind):
        # null lists would need items
        if lists.nulls or (np.diff(lists.offsets) != kind.list_size).any():
            return None
        return pa.Array.from_buffers(kind, rows, [None], 0, children=[items])
    offsets = lists.offsets
    if not pt.is_large_list(kind):
        if not fits_offsets(len(items), 4):
            return None
        offsets = pool.take(4 * (rows + 1)).view(np.int32)
        np.copyto(offsets, lists.offsets, casting="unsafe")
    mask = pa.py_buffer(np.packbits(lists.valid, bitorder="little")) if lists.nulls else None
    return pa.Array.from_buffers(kind, rows, [mask, pa.py_buffer(offsets)], lists.nulls, children=[items])

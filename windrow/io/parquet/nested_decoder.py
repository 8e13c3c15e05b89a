"""Decodes lists and structs of numbers, by ``_nested.c``: Arrow takes several times as long to assemble them.

Lists can be null or empty; where an element, a struct or a value is null, Arrow reads the column.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.native_libraries import address_of
from windrow.core.text_types import fits_offsets
from windrow.io.parquet import decoder_library
from windrow.io.parquet.codecs import CODECS
from windrow.io.parquet.decoder_library import SCRATCH, read_pages
from windrow.io.parquet.stored_chunks import NestedLeaf, is_list

__all__ = ["decode_nested"]

# two bytes for each level of a page with null or empty lists; pages with more levels are declined
_LEVELS_BYTES = 2 * 2**20
# Arrow reads values of more bytes than this, if they are stored in less than the 256th part
_SMALL_BYTES, _MAX_RATIO = 64 * 2**20, 256


class _Lists(NamedTuple):
    """Where lists begin, over all chunks of a column."""

    offsets: NDArray[np.int64]  # (rows + 1,)
    valid: NDArray[np.uint8]  # (rows,)
    nulls: int


class _Leaf(NamedTuple):
    values: NDArray[np.uint8]
    lists: _Lists


def decode_nested(
    file: pa.NativeFile, groups: Sequence[tuple[NestedLeaf, ...]], kind: pa.DataType, pool: BufferPool
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


def _decode_leaf(file: pa.NativeFile, leaves: Sequence[NestedLeaf], pool: BufferPool) -> _Leaf | None:
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

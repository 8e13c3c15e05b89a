"""Decodes simple Parquet column chunks straight to the shuffled positions of their rows, by ``_decode.c``.

Most training data is flat: numbers of 4 or 8 bytes, booleans, decimals and text. ``_decode.c`` decodes such a
chunk and scatters its values in one pass, frame-of-reference encoded in the bytes in which they are sent
(`windrow.core.frame_of_reference`). Nulls become zeros, and a byte each. For text it records the offset of each
value in the decompressed pages, and copies the value once. zstd and LZ4 are decompressed by the system's
libraries, if they are installed. All other chunks, and all chunks with any irregularity, are declined and read by
Arrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.frame_of_reference import Packing
from windrow.core.native_libraries import address_of
from windrow.core.source import ScatteredColumn
from windrow.core.text_types import fits_offsets, offset_width
from windrow.io.parquet import decoder_library
from windrow.io.parquet.codecs import UNCOMPRESSED
from windrow.io.parquet.decoder_library import SCRATCH, read_chunks, read_into, read_pages
from windrow.io.parquet.stored_chunks import Chunk

__all__ = ["decode", "decode_text"]

# SLACK in C: bytes after decompressed pages that can be read and written
_SLACK_BYTES = 64
# bytes before all text: a length of 0
_NULL_BYTES = 4
# offsets of text values have 32 bits
_MAX_TEXT_BYTES = 2**32 - 1


def decode(
    file: pa.NativeFile,
    columns: Sequence[Sequence[Chunk]],
    packings: Sequence[Packing],
    targets: NDArray[np.uint32],
    outs: Sequence[NDArray[np.uint8]],
    pool: BufferPool,
) -> list[ScatteredColumn | None]:
    """Decode columns; value i of a column, over all its chunks, is packed into ``targets[i]`` of its ``out``.

    Nulls become zeros. Returns None for each column without chunks, or with a chunk that is declined or holds a
    value that does not fit its packing; ``out`` can be partially written then.
    """
    # the buffers are kept, since jobs hold addresses; a chunk without pages is declined
    flat = [chunk for chunks in columns for chunk in chunks]
    where, buffers = read_chunks(file, [(chunk.start, chunk.size_bytes) for chunk in flat])
    apart, dictionaries = _read_dictionaries(file, flat)
    jobs: list[tuple[int, ...]] = []
    stops, masks = [0], []
    for chunks, packing, out in zip(columns, packings, outs, strict=True):
        first = 0
        masks.append(pool.take(len(targets)) if any(chunk.has_nulls for chunk in chunks) else None)
        addresses = address_of(out), 0 if masks[-1] is None else address_of(masks[-1])
        for chunk in chunks:
            at = len(jobs)
            jobs.append((*where[at], *apart[at], *chunk.facts, *packing, first, *addresses, False, 0))
            first += chunk.rows
        stops.append(len(jobs))
    job_table = np.array(jobs, np.int64).reshape(len(jobs), -1)
    shared, memory = _share(flat, masks, targets, pool)
    decoder_library.LIBRARY.windrow_decode_chunks(len(job_table), job_table, shared)
    del buffers, dictionaries, memory
    decoded, nulls = job_table[:, -2].tolist(), job_table[:, -1].tolist()
    return [
        ScatteredColumn(mask if nulls[stop - 1] else None)
        if start < stop and all(decoded[start:stop])
        else None
        for (start, stop), mask in zip(pairwise(stops), masks, strict=True)
    ]


def _read_dictionaries(
    file: pa.NativeFile, chunks: Sequence[Chunk]
) -> tuple[list[tuple[int, int]], list[pa.Buffer]]:
    """The address and bytes of each chunk's dictionary that lies apart, else (0, 0), and the buffers that hold them."""
    places = [chunk.dictionary for chunk in chunks if chunk.dictionary is not None]
    if not places:
        return [(0, 0)] * len(chunks), []
    found, buffers = read_chunks(file, places)
    remaining = iter(found)
    return [(0, 0) if chunk.dictionary is None else next(remaining) for chunk in chunks], buffers


def _share(
    chunks: Sequence[Chunk],
    masks: Sequence[NDArray[np.uint8] | None],
    targets: NDArray[np.uint32],
    pool: BufferPool,
) -> tuple[NDArray[np.int64], Any]:
    """What jobs share, as C lays it out, and the memory whose addresses it has."""
    rows = max((chunk.rows + chunk.before for chunk in chunks), default=0)
    # a target of each row, to sort them into values and nulls, and for pages that begin before the rows
    compact = pool.take(4 * rows) if rows and any(mask is not None for mask in masks) else None
    ahead = pool.take(4 * rows) if any(chunk.before for chunk in chunks) else None
    codecs, scratch = SCRATCH.codecs.addresses, SCRATCH.memory
    places = [0 if each is None else address_of(each) for each in (codecs, targets, scratch, compact, ahead)]
    shared = [*places[:2], len(targets), places[2], len(scratch), *places[3:], rows]
    return np.array(shared, np.int64), (codecs, scratch, compact, ahead)


def decode_text(
    file: pa.NativeFile,
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
    shared, memory = _share(chunks, [valid], targets, pool)
    apart, dictionaries = _read_dictionaries(file, chunks)
    first, nulls, used = 0, 0, _NULL_BYTES
    for chunk, dictionary in zip(chunks, apart, strict=True):
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
    file: pa.NativeFile, chunk: Chunk, text: NDArray[np.uint8], used: int
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

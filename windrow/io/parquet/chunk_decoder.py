"""Decodes simple Parquet column chunks straight to the shuffled positions of their rows, by ``_decode.c``.

Most training data is 4 or 8 bytes wide or text, flat and without nulls, plain or dictionary encoded,
uncompressed or Snappy. ``_decode.c`` decodes such a chunk and scatters its values in one pass,
frame-of-reference encoded in the bytes in which they are sent (`windrow.core.frame_of_reference`). For text
it records the offset of each value in the decompressed pages, and copies the value once. All other chunks,
and all chunks with any irregularity, are declined and read by Arrow.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.frame_of_reference import Packing
from windrow.core.native_libraries import Address, address_of, load_library
from windrow.core.text_types import fits_offsets, offset_width
from windrow.io.catalog.value_widths import leaf_indices

__all__ = ["Chunk", "StoredFooter", "decode", "decode_text", "integer_bounds"]

# holds a dictionary and a page; writers make both about 1 MiB, sometimes slightly more
_SCRATCH_BYTES = 4 * 2**20
_WIDTHS = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
_INTEGERS = ("INT32", "INT64")
_CODECS = {"UNCOMPRESSED": False, "SNAPPY": True}
# Snappy encodes 64 bytes in at least 3, a ratio of 21.3: a footer that states a much higher one is wrong
_MAX_RATIO = 24
# SLACK in C: bytes after decompressed pages that can be read and written
_SLACK_BYTES = 64
# offsets of text values have 32 bits
_MAX_TEXT_BYTES = 2**32 - 1
_POINTER, _INT = Address, ctypes.c_int64


_FUNCTIONS: dict[str, tuple[list[Any], Any]] = {
    "windrow_decode_packed": ([_INT, *[_POINTER] * 3, _INT], None),
    "windrow_find_text": ([_POINTER, *[_INT] * 4, *[_POINTER] * 3, _INT, _POINTER, _INT, _INT], _INT),
    "windrow_measure_text": ([_POINTER, _POINTER, _INT, _INT, _POINTER], _INT),
    "windrow_gather_text": ([_POINTER, _POINTER, _INT, _POINTER, _INT], None),
    "windrow_check_footer": ([_POINTER, _INT, _POINTER, _INT, _POINTER, _INT], _INT),
}
# Parquet's values are little-endian, and are copied unchanged
LIBRARY: Any = load_library("windrow.io.parquet._decode", _FUNCTIONS) if sys.byteorder == "little" else None


@dataclass(frozen=True)
class Chunk:
    """A column chunk that the C decoder accepts."""

    start: int  # offset of its pages in the file
    size_bytes: int  # compressed
    rows: int
    width: int  # bytes of a value; 0 for text
    snappy: bool
    optional: bool  # its pages have definition levels
    raw_bytes: int = 0  # uncompressed size of its pages, as the footer states it


class StoredFooter:
    """A parsed footer with memoized lookups of chunks and bounds."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata
        self._chunks: dict[tuple[int, str], tuple[pa.DataType, Chunk | None]] = {}
        self._bounds: dict[tuple[int, str], tuple[int, int] | None] = {}

    @property
    def serialized_size(self) -> int:
        return int(self.metadata.serialized_size)

    def chunk(self, group: int, name: str, kind: pa.DataType) -> Chunk | None:
        """The chunk of a column that Arrow would read as ``kind``; None if the C decoder does not support it."""
        found = self._chunks.get((group, name))
        # another dataset can read the same column as another type
        if found is None or found[0] != kind:
            found = self._chunks[group, name] = (kind, self._find(group, name, kind))
        return found[1]

    def bounds(self, group: int, name: str, kind: pa.DataType) -> tuple[int, int] | None:
        """Minimum and maximum of an integer column without nulls, from the footer's statistics."""
        known, leaves = self._columns.get(name, (None, range(0)))
        if known != kind or len(leaves) != 1:
            return None
        if (group, name) not in self._bounds:
            statistics = self.metadata.row_group(group).column(leaves.start).statistics
            no_nulls = statistics is not None and statistics.has_null_count and not statistics.null_count
            self._bounds[group, name] = integer_bounds(statistics) if no_nulls else None
        return self._bounds[group, name]

    def ranges(self, groups: Iterable[int], names: Sequence[str]) -> list[tuple[int, int]]:
        """Byte ranges of the chunks of some columns, including those of nested columns."""
        schema = self.metadata.schema
        prefixes = tuple(f"{name}." for name in names)
        paths = [schema.column(number).path for number in range(len(schema))]
        numbers = [number for number, path in enumerate(paths) if f"{path}.".startswith(prefixes)]
        chunks = (self.metadata.row_group(group).column(number) for group in groups for number in numbers)
        starts = ((_start(chunk), chunk.total_compressed_size) for chunk in chunks)
        return [(start, start + size) for start, size in starts]

    @cached_property
    def _leaves(self) -> dict[str, tuple[int, bool]]:
        """The index of each flat column, and whether it is optional."""
        schema = self.metadata.schema
        leaves = ((number, schema.column(number)) for number in range(len(schema)))
        return {
            leaf.path: (number, leaf.max_definition_level == 1)
            for number, leaf in leaves
            # a dot can be part of the name or separate a path, so such columns are excluded
            if "." not in leaf.path and leaf.max_repetition_level == 0 and leaf.max_definition_level <= 1
        }

    @cached_property
    def _columns(self) -> dict[str, tuple[pa.DataType, range]]:
        """The Arrow type of each column, and the indices of its leaves."""
        schema = self.metadata.schema.to_arrow_schema()
        return dict(zip(schema.names, zip(schema.types, leaf_indices(schema), strict=True), strict=True))

    def _find(self, group: int, name: str, kind: pa.DataType) -> Chunk | None:
        if name not in self._leaves or self._columns.get(name, (None,))[0] != kind:
            return None
        number, optional = self._leaves[name]
        row_group = self.metadata.row_group(group)
        column = row_group.column(number)
        width = _stored_width(column.physical_type, kind)
        if width is None or column.compression not in _CODECS:
            return None
        if not column.num_values or column.num_values != row_group.num_rows or _has_nulls(column):
            return None
        start, size_bytes = _start(column), column.total_compressed_size
        if start <= 0:
            return None
        raw_bytes = column.total_uncompressed_size
        # memory for text is allocated by this size before any page is read
        if width == 0 and not 0 <= raw_bytes <= _MAX_RATIO * size_bytes:
            return None
        return Chunk(
            start=start,
            size_bytes=size_bytes,
            rows=row_group.num_rows,
            width=width,
            snappy=_CODECS[column.compression],
            optional=optional,
            raw_bytes=raw_bytes,
        )


def _start(column: Any) -> int:
    """The offset at which Arrow starts to read, also for corrupt footers."""
    data, dictionary = int(column.data_page_offset), int(column.dictionary_page_offset or 0)
    return dictionary if 0 < dictionary < data else data


def _stored_width(stored: str, kind: pa.DataType) -> int | None:
    """Bytes of a stored value that needs no conversion, 0 for text; None if Arrow converts values."""
    if stored == "BYTE_ARRAY":
        return 0 if offset_width(kind) else None
    width = _WIDTHS.get(stored)
    return width if width is not None and _is_unconverted(kind) and width * 8 == kind.bit_width else None


def _is_unconverted(kind: pa.DataType) -> bool:
    """Whether Arrow copies the stored values of this type unchanged."""
    if pt.is_timestamp(kind):
        return bool(kind.unit != "s")
    return any(
        check(kind) for check in (pt.is_integer, pt.is_float32, pt.is_float64, pt.is_date32, pt.is_time64)
    )


def _has_nulls(column: Any) -> bool:
    statistics = column.statistics
    return statistics is not None and statistics.has_null_count and statistics.null_count > 0


def integer_bounds(statistics: Any) -> tuple[int, int] | None:
    """Minimum and maximum of a chunk of integers from its statistics; None for other types or missing statistics."""
    if statistics is None or statistics.physical_type not in _INTEGERS or not statistics.has_min_max:
        return None
    low, high = int(statistics.min_raw), int(statistics.max_raw)
    # statistics of unsigned columns are in unsigned order, so low can exceed high
    return (low, high) if low <= high else None


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.memory = np.empty(_SCRATCH_BYTES, np.uint8)


_SCRATCH = _Scratch()


def decode(
    file: pa.NativeFile,
    columns: Sequence[Sequence[Chunk]],
    packings: Sequence[Packing],
    targets: NDArray[np.uint32],
    outs: Sequence[NDArray[np.uint8]],
) -> list[bool]:
    """Decode columns; value i of a column, over all its chunks, is packed into ``targets[i]`` of its ``out``.

    Returns False for each column without chunks, or with a chunk that is declined or holds a value that does
    not fit its packing; ``out`` can be partially written then.
    """
    jobs, pages, stops = [], [], [0]
    for chunks, packing, out in zip(columns, packings, outs, strict=True):
        first, address = 0, address_of(out)
        for chunk in chunks:
            # keeps the buffers alive, since jobs hold raw addresses; a chunk without pages is declined
            pages.append(_read_pages(file, chunk))
            where = (0, 0) if pages[-1] is None else (pages[-1].address, pages[-1].size)
            how = (chunk.snappy, chunk.optional, chunk.width, chunk.rows)
            jobs.append((*where, *how, *packing, first, address, False))
            first += chunk.rows
        stops.append(len(jobs))
    job_table, scratch = np.array(jobs, np.int64).reshape(len(jobs), -1), _SCRATCH.memory
    LIBRARY.windrow_decode_packed(len(job_table), job_table, targets, scratch, len(scratch))
    done = job_table[:, -1].tolist()
    return [start < stop and all(done[start:stop]) for start, stop in pairwise(stops)]


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
    capacity = sum(chunk.raw_bytes for chunk in chunks) + _SLACK_BYTES
    if capacity > _MAX_TEXT_BYTES or any(chunk.width for chunk in chunks):
        return None
    stored = [pages for chunk in chunks if (pages := _read_pages(file, chunk)) is not None]
    if len(stored) < len(chunks):
        return None
    text, at = pool.take(capacity), pool.take(targets.nbytes).view(np.uint32)
    scratch = _SCRATCH.memory
    end = used = 0
    for chunk, pages in zip(chunks, stored, strict=True):
        start, end = end, end + chunk.rows
        how, memory = (chunk.snappy, chunk.optional, chunk.rows), (scratch, len(scratch), text)
        used = LIBRARY.windrow_find_text(
            pages, pages.size, *how, targets[start:end], at, *memory, used, capacity
        )
        if used < 0:
            return None
    arrays = [_gather(text, at[rows], kind, pool) for rows in cuts]
    found = [array for array in arrays if array is not None]
    return found if len(found) == len(arrays) else None


def _gather(
    text: NDArray[np.uint8], at: NDArray[np.uint32], kind: pa.DataType, pool: BufferPool
) -> pa.Array | None:
    """Gather the values at some offsets; None if their total size exceeds the range of the type's offsets."""
    rows, width = len(at), offset_width(kind)
    offsets = pool.take(width * (rows + 1))
    total = LIBRARY.windrow_measure_text(text, at, rows, width, offsets)
    if not fits_offsets(total, width):
        return None
    out = pool.take(total)
    LIBRARY.windrow_gather_text(text, at, rows, out, total)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(offsets), pa.py_buffer(out)], null_count=0)


def _read_pages(file: pa.NativeFile, chunk: Chunk) -> pa.Buffer | None:
    file.seek(chunk.start)
    pages = file.read_buffer(chunk.size_bytes)
    return pages if pages.size == chunk.size_bytes else None

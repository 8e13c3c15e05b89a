"""Where the pages of a column chunk lie, and which rows they hold.

The offset index of a chunk says it, if the writer wrote one. Else the headers of the pages are read one after another,
as far as needed: of a mapped file that is a look at a few bytes for each page. Of a remote file a request for each
header would take a round trip each, some thousand of them in sequence, so the chunk is read once in large pieces that
are dropped again. What was found is remembered in the process.

Pages of repeated values in the first version can begin within a row, and only their levels say where rows begin.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.io.parquet import decoder_library
from windrow.io.parquet.decoder_library import UNCOMPRESSED
from windrow.io.parquet.thrift_compact import STRUCT, Reader, Struct, ThriftError

ReadRange = Callable[[int, int], pa.Buffer]
"""Reads a range of the file; shorter where the file ends."""

# Smaller pages are noted together, so that what is remembered of a chunk is less than a thousandth of it.
_UNIT_BYTES = 16 * 2**10
# headers that are read at once: few at first, since those of a few rows are enough for some
_FIRST_BATCH, _BATCH = 16, 256
# of remote files: the first piece, for those who need the first rows alone, and further ones
_FIRST_PIECE_BYTES, _PIECE_BYTES = 2**20, 8 * 2**20
_DATA, _INDEX, _DICTIONARY, _DATA_V2 = range(4)
_RLE = 3
_DICTIONARY_ENCODINGS = (2, 8)


@dataclass(frozen=True)
class StoredChunk:
    """What a footer says of the pages of a chunk."""

    start: int  # offset of its first page
    stop: int
    rows: int
    max_repetition: int
    codec: str
    index: tuple[int, int] | None = None  # offset and bytes of its offset index


class PageSpan(NamedTuple):
    """Adjacent pages of a chunk, by their offsets in the file, and the rows of the row group that begin in them."""

    start: int
    stop: int
    first_row: int
    stop_row: int
    begins_row: bool  # else the first page begins within the row before


class _Page(NamedTuple):
    """A page as its header states it, with the fields that C finds; those that are missing are -1."""

    start: int
    header_bytes: int
    stored_bytes: int
    raw_bytes: int
    type: int
    values: int
    rows: int
    encoding: int
    levels_encoding: int

    @property
    def body(self) -> int:
        return self.start + self.header_bytes

    @property
    def stop(self) -> int:
        return self.body + self.stored_bytes

    @property
    def has_values(self) -> bool:
        return self.type in (_DATA, _DATA_V2)


_FIELDS = len(_Page._fields)


@dataclass(frozen=True)
class Headers:
    """What the headers of adjacent pages state together; `rows` is -1 if only the levels say it."""

    values: int
    rows: int
    raw_bytes: int  # of the pages and their headers
    needs_dictionary: bool


def read_headers(pages: pa.Buffer) -> Headers | None:
    """Read the headers of complete pages; None if they are not those of pages with values."""
    if decoder_library.LIBRARY is not None:
        sums: NDArray[np.int64] = np.empty(4, np.int64)
        if decoder_library.LIBRARY.windrow_sum_pages(pages.address, pages.size, sums):
            return None
        in_values, in_rows, in_bytes, uses_dictionary = sums.tolist()
        return Headers(in_values, in_rows, in_bytes, bool(uses_dictionary))
    values = rows = raw_bytes = at = 0
    needs_dictionary = False
    while at < pages.size:
        found = _find_pages(pages.slice(at))
        if not found or at + found[-1].stop > pages.size:
            return None
        for page in found:
            if page.type != _INDEX and not page.has_values:
                return None
            values += max(page.values, 0)
            known = page.rows if page.type == _DATA_V2 else -1 if page.has_values else 0
            rows = -1 if known < 0 or rows < 0 else rows + known
            raw_bytes += page.header_bytes + page.raw_bytes
            needs_dictionary |= page.encoding in _DICTIONARY_ENCODINGS
        at += found[-1].stop
    return Headers(values, rows, raw_bytes, needs_dictionary)


def measure_dictionary(page: pa.Buffer) -> int | None:
    """The decompressed bytes of a dictionary page and its header; None if it is not one."""
    found = _find_pages(page)
    if not found or found[0].type != _DICTIONARY or found[0].stop > page.size:
        return None
    return found[0].header_bytes + found[0].raw_bytes


@dataclass(eq=False)
class ChunkPages:
    """The pages of a chunk, as far as they have been looked for; thread-safe."""

    chunk: StoredChunk
    number: int = field(
        default_factory=count(1).__next__, init=False
    )  # no other object of the process has it
    piece_bytes: int | None = (
        _FIRST_PIECE_BYTES  # of a remote file; None: all of the chunk can be mapped at once
    )
    dictionary: tuple[int, int] | None = None  # its offset and bytes, once pages have been looked for
    # by unit, some adjacent pages: its offset, the rows that begin before it, and whether it begins with a row
    starts: list[int] = field(default_factory=list)
    first_rows: list[int] = field(default_factory=list)
    begins: list[bool] = field(default_factory=list)
    # where the offset index lies that `cover` will read first
    unread_index: tuple[int, int] | None = None
    _batch: int = _FIRST_BATCH
    _next: int = 0
    _rows: int = 0
    _failed: bool = False
    _lock: Any = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._next = self.chunk.start
        # some writers index pages that begin within a row
        self.unread_index = None if self.chunk.max_repetition else self.chunk.index

    def cover(self, read: ReadRange, first: int, stop: int) -> PageSpan | None:
        """The pages that hold rows ``first`` to ``stop``, at least one row; None if they are not found."""
        with self._lock:
            if self.unread_index is not None:
                self._load_index(read, *self.unread_index)
                self.unread_index = None
            while not self._failed and not self._knows(stop):
                self._find_more(read)
            # rows ahead of corrupt pages are found whatever was looked for before
            return self._look_up(first, stop) if self._knows(stop) else None

    def nearest_start(self, row: int) -> int:
        """The row nearest to another with which known pages begin."""
        at = bisect_left(self.first_rows, row)
        return min(self.first_rows[max(at - 1, 0) : at + 1], key=lambda first: abs(first - row), default=row)

    def _knows(self, stop: int) -> bool:
        if not self.chunk.max_repetition:
            return self._rows >= stop
        # repeated values of a row can go on in other pages, up to one in which the next row begins
        return self._rows > stop or (self._rows == self.chunk.rows and self._next >= self.chunk.stop)

    def _look_up(self, first: int, stop: int) -> PageSpan | None:
        # a unit in which no row begins has the same first row as the next one
        begin = bisect_right(self.first_rows, first) - 1
        end = bisect_left(self.first_rows, stop)
        if end < len(self.starts) and not self.begins[end]:
            # the last row goes on, up to the unit in which another begins
            end = bisect_right(self.first_rows, stop)
        if begin < 0:
            return None
        is_last = end == len(self.starts)
        return PageSpan(
            start=self.starts[begin],
            stop=self._next if is_last else self.starts[end],
            first_row=self.first_rows[begin],
            stop_row=self._rows if is_last else self.first_rows[end],
            begins_row=self.begins[begin],
        )

    # --- the offset index

    def _load_index(self, read: ReadRange, offset: int, size_bytes: int) -> None:
        """Read the offset index; one that contradicts the footer is ignored."""
        chunk = self.chunk
        try:
            _, (kind, locations) = Reader(read(offset, offset + size_bytes).to_pybytes()).struct()[1]
            places = [(int(each[1][1]), int(each[3][1])) for each in locations] if kind == STRUCT else []
        except (ThriftError, KeyError, TypeError, ValueError):
            places = []
        starts, rows = [start for start, _ in places], [row for _, row in places]
        ends = [*starts[1:], chunk.stop], [*rows[1:], chunk.rows]
        is_sound = places and rows[0] == 0 and chunk.start <= starts[0]
        if not is_sound or any(map(int.__ge__, starts, ends[0])) or any(map(int.__ge__, rows, ends[1])):
            return
        if starts[0] > chunk.start:
            self.dictionary = chunk.start, starts[0] - chunk.start
        for start, row in zip(starts, rows, strict=True):
            self._note(start, row, True)
        self._next, self._rows = chunk.stop, chunk.rows

    def _note(self, start: int, row: int, begins_row: bool) -> None:
        is_small = bool(self.starts) and start - self.starts[-1] < _UNIT_BYTES
        if not is_small:
            self.starts.append(start)
            self.first_rows.append(row)
            self.begins.append(begins_row)

    # --- the headers

    def _find_more(self, read: ReadRange) -> None:
        start, stop = self._next, self.chunk.stop
        if self.piece_bytes is not None:
            stop = min(start + self.piece_bytes, stop)
        piece = read(start, stop) if start < stop else None
        used = 0 if piece is None else self._add(piece)
        if used:
            self._next += used
            if self.piece_bytes is not None:
                self.piece_bytes = max(min(2 * self.piece_bytes, _PIECE_BYTES), self.piece_bytes)
        elif not self._failed and self.piece_bytes is not None and stop < self.chunk.stop:
            # a page of several megabytes
            self.piece_bytes *= 2
        else:
            self._failed = True

    def _add(self, piece: pa.Buffer) -> int:
        """Note the pages at the beginning of some bytes, up to one that contradicts the footer; returns their bytes."""
        used = 0
        found, self._batch = _find_pages(piece, self._batch), min(2 * self._batch, _BATCH)
        for page in found:
            start = self._next + page.start
            if page.type == _DICTIONARY:
                if self.dictionary is not None or self.starts:
                    self._failed = True
                    return used
                self.dictionary = start, page.stop - page.start
            elif page.has_values:
                rows, begins_row = self._count_rows(page, piece)
                if rows == _INCOMPLETE:
                    return used
                if rows < 0 or self._rows + rows > self.chunk.rows:
                    self._failed = True
                    return used
                if page.values:
                    self._note(start, self._rows, begins_row)
                    self._rows += rows
            used = page.stop
        return used

    def _count_rows(self, page: _Page, piece: pa.Buffer) -> tuple[int, bool]:
        """The number of rows that begin in a page, negative if it is not known, and whether it begins with one."""
        is_second = page.type == _DATA_V2
        if not self.chunk.max_repetition:
            return (-1 if is_second and page.rows != page.values else page.values), True
        width = self.chunk.max_repetition.bit_length()
        if is_second:
            levels = bytes(
                memoryview(piece)[page.body : page.body + min(page.stored_bytes, _FIRST_LEVEL_BYTES)]
            )
            if len(levels) < min(page.stored_bytes, _FIRST_LEVEL_BYTES):
                return _INCOMPLETE, False
            level = _read_first_level(levels, width)
            return (-1 if level < 0 else page.rows), level == 0
        if page.stop > piece.size:
            return _INCOMPLETE, False
        if decoder_library.LIBRARY is None or page.levels_encoding != _RLE:
            return -1, False
        body = _decompress(piece.slice(page.body, page.stored_bytes), page.raw_bytes, self.chunk.codec)
        if body is None:
            return -1, False
        found = decoder_library.LIBRARY.windrow_count_rows(body.address, body.size, width, page.values)
        return found >> 1, bool(found & 1)


_INCOMPLETE = -2
# the header of a run of levels, and its first bytes
_FIRST_LEVEL_BYTES = 16


def _read_first_level(levels: bytes, width: int) -> int:
    """The first of levels that are stored as runs and bit-packed groups, -1 if they do not begin with one.

    >>> _read_first_level(bytes([10 << 1, 1]), 1), _read_first_level(bytes([1 << 1 | 1, 0b110]), 1)
    (1, 0)
    """
    reader = Reader(levels)
    try:
        head = reader.varint()
    except ThriftError:
        return -1
    value = int.from_bytes(levels[reader.at : reader.at + (width + 7) // 8], "little")
    return value & ((1 << width) - 1) if head >> 1 and reader.at < len(levels) else -1


def _decompress(body: pa.Buffer, raw_bytes: int, codec: str) -> pa.Buffer | None:
    if codec == UNCOMPRESSED:
        return body
    # the older framing of LZ4, of the same name, cannot be decompressed here
    name = "lz4_raw" if codec == "LZ4" else codec.lower()
    try:
        return pa.decompress(body, raw_bytes, codec=name)
    except (pa.ArrowException, OSError, ValueError):
        return None


def _find_pages(pages: pa.Buffer, most: int = _BATCH) -> list[_Page]:
    """The next pages, up to ``most`` of them, from bytes that begin with a header; none if that cannot be read."""
    if decoder_library.LIBRARY is None:
        return _find_slowly(pages)
    found: NDArray[np.int64] = np.empty((most, _FIELDS), np.int64)
    count = decoder_library.LIBRARY.windrow_find_pages(pages.address, pages.size, found, most)
    return [_Page(*row) for row in found[:count].tolist()]


def _find_slowly(pages: pa.Buffer) -> list[_Page]:
    """The same without the C library: one page, whose header has less than `_UNIT_BYTES`."""
    raw = pages.slice(0, min(pages.size, _UNIT_BYTES)).to_pybytes()
    reader = Reader(raw)
    try:
        header = reader.struct()
        kind, raw_bytes, stored_bytes = (header[number][1] for number in (1, 2, 3))
        inner: Struct = header.get({_DATA: 5, _DICTIONARY: 7, _DATA_V2: 8}.get(kind, 0), (STRUCT, {}))[1]
        is_second = kind == _DATA_V2
        numbers = (1, 3 if is_second else 0, 4 if is_second else 2, 4)
        values, rows, encoding, levels = (inner.get(number, (0, -1))[1] for number in numbers)
    except (ThriftError, KeyError, TypeError, AttributeError):
        return []
    if min(raw_bytes, stored_bytes) < 0 or (kind in (_DATA, _DATA_V2) and values < 0):
        return []
    return [_Page(0, reader.at, stored_bytes, raw_bytes, kind, values, rows, encoding, levels)]

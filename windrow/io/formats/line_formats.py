"""Formats of lines: files are split into byte ranges that are read independently, where encodings permit; text.

A range covers the lines that begin in it, including the rest of its last line beyond the range,
as in Hadoop and Dask. Thus every line is read exactly once, and each range can be read alone.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.io.catalog.file_format import join_tables
from windrow.io.catalog.manifest import FragmentFacts
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.file_encodings import decode_head, decode_text, decompress, find_codec, is_cuttable
from windrow.io.formats.row_group_format import HEAD_BYTES, Head, SampledFormat, estimate_facts, read_heads
from windrow.io.storage.error_causes import exceeds_arrow

# Saved manifests count row groups of this size: a change needs a new name in `LineFiles.__str__`.
RANGE_BYTES = 16 * 2**20

# read beyond the end of a range, where its last line ends
_BEYOND_BYTES = 64 * 1024
_GROWTH = 4
_NEWLINE = re.compile(rb"\n")
# the magic number and the header of a page; text has no such control characters
_PARQUET = re.compile(rb"PAR1[\x00-\x08\x0e-\x1f]")

# Arrow's parsers work block by block, and each line must fit into one block.
BLOCK_BYTES = 2**20
_LARGEST_BYTES = 2**31 - 1
_SCHEMA = pa.schema([pa.field("text", pa.string())])
# string offsets have 32 bits
_CHUNK_BYTES = 2**30


@dataclass(frozen=True)
class LineFiles:
    """How lines are stored in files.

    ``compression`` is a codec, ``"infer"`` (by suffix), or None; ``encoding`` the canonical name of the
    encoding. Files that are not ``cuttable``, because a row can span lines, are read as a whole.
    """

    compression: str | None
    encoding: str
    cuttable: bool = True

    def __str__(self) -> str:
        cut = f"cut into {RANGE_BYTES} bytes" if self.cuttable else "whole"
        return f"compression={self.compression}, encoding={self.encoding}, {cut}"

    def is_cut(self, file: OpenFile) -> bool:
        """Whether a file is split into ranges, each a row group; otherwise the whole file is one row group."""
        return (
            self.cuttable and find_codec(self.compression, file.name) is None and is_cuttable(self.encoding)
        )

    def group_bytes(self, file: OpenFile, head: Head) -> list[int]:
        """(row groups,) the uncompressed bytes of each."""
        if not self.is_cut(file):
            return [head.content_bytes] if head.content_bytes else []
        starts = range(0, file.size_bytes, RANGE_BYTES)
        return [min(RANGE_BYTES, file.size_bytes - start) for start in starts]

    def heads(self, file: OpenFile) -> Iterator[Head]:
        """Yield ever longer heads of a file, as UTF-8."""
        for head in read_heads(file, find_codec(self.compression, file.name)):
            if _PARQUET.match(head.data):
                raise SourceError(f"{file.name} is not text but Parquet: read it with read_parquet()")
            try:
                text = decode_head(head.data, self.encoding, whole=head.whole)
            except UnicodeError as error:
                raise SourceError(f"{file.name}: {error}; check encoding=") from error
            yield replace(head, data=text)

    def where(self, file: OpenFile, start: int, stop: int) -> str:
        """Describe row groups for error messages."""
        if not self.is_cut(file):
            return file.name
        last = min(stop * RANGE_BYTES, file.size_bytes)
        return f"{file.name}, lines from byte {start * RANGE_BYTES:,} to {last:,}"

    def fetch(self, file: OpenFile, start: int, stop: int, *, head: bool) -> None:
        """Prefetch what `read` needs, and optionally the file's head."""
        spans = [(0, min(HEAD_BYTES, file.size_bytes))] if head else []
        if self.is_cut(file):
            first, last = max(start * RANGE_BYTES - 1, 0), stop * RANGE_BYTES + _BEYOND_BYTES
            spans.append((first, min(last, file.size_bytes)))
        else:
            spans.append((0, file.size_bytes))
        file.fetch(spans)

    def read(self, file: OpenFile, start: int, stop: int) -> pa.Buffer:
        """Read the lines of row groups ``start`` to ``stop`` as UTF-8."""
        if not self.is_cut(file):
            data = decompress(find_codec(self.compression, file.name), file.read_range(0, file.size_bytes))
        else:
            data = _read_lines(file, start * RANGE_BYTES, min(stop * RANGE_BYTES, file.size_bytes))
        return decode_text(data, self.encoding, at_start=start == 0)

    def read_whole(self, file: OpenFile) -> pa.Buffer:
        """Read a whole file as UTF-8, whether or not it is cut."""
        file.fetch([(0, file.size_bytes)])
        return self.read(file, 0, -(-file.size_bytes // RANGE_BYTES))


@dataclass(frozen=True, eq=False)
class Piece:
    """Lines of a file that are parsed at once, as UTF-8."""

    file: OpenFile
    text: pa.Buffer
    where: str  # names their range in errors
    first_row: int = 0  # of the range
    at_start: bool = True  # of the file


class LineFormat(SampledFormat):
    """A format of text lines, whose row groups are ranges of lines."""

    lines: LineFiles

    def heads(self, file: OpenFile) -> Iterator[Head]:
        """Yield ever longer heads of a file, as UTF-8, cut to whole lines."""
        return map(cut_lines, self.lines.heads(file))

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        return join_tables(self._parse_range(file, start, stop, schema))

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read range by range, to hold little text in memory."""
        for group in range(start, stop):
            yield from self._parse_range(file, group, group + 1, schema)

    def texts(self, file: OpenFile, start: int, stop: int) -> Iterator[pa.Buffer]:
        """Read the lines of row groups as UTF-8, in the pieces that are parsed at once; at least one."""
        yield self.lines.read(file, start, stop)

    def _parse_range(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        self.lines.fetch(file, start, stop, head=start > 0 and self.needs_head)
        where = self.lines.where(file, start, stop)
        piece = Piece(file, pa.py_buffer(b""), where, at_start=start == 0)
        try:
            for text in self.texts(file, start, stop):
                piece = replace(piece, text=text)
                table = self.parse(piece, schema)
                yield table
                piece = replace(piece, first_row=piece.first_row + table.num_rows)
        except (pa.ArrowException, UnicodeError) as error:
            if file.failed or exceeds_arrow(error):
                raise
            why = self.explain(error, piece, schema)
            raise CorruptBlockError(f"{where}: {why}") from error

    @property
    def needs_head(self) -> bool:
        """Whether other ranges cannot be parsed without the head of the file."""
        return False

    def parse(self, piece: Piece, schema: pa.Schema) -> pa.Table:
        """Parse lines to a table."""
        raise NotImplementedError

    def explain(self, error: Exception, piece: Piece, schema: pa.Schema) -> str:
        """Extend an error of the parser by the column's name, where it is known, and a fix."""
        raise NotImplementedError


def cut_lines(head: Head) -> Head:
    """A file's head up to its last complete line."""
    return head if head.whole else replace(head, data=head.data.slice(0, bytes(head.data).rfind(b"\n") + 1))


def parse_in_blocks(text: pa.Buffer, parse: Callable[[int], pa.Table]) -> pa.Table:
    """Parse text with a parser of Arrow, which gets the size of its blocks; a larger one for very long lines."""
    try:
        return parse(BLOCK_BYTES)
    except pa.ArrowInvalid as error:
        if "straddling" not in str(error):
            raise
        return parse(min(text.size, _LARGEST_BYTES))


def _read_lines(file: OpenFile, start: int, stop: int) -> pa.Buffer:
    """Read the lines that begin in a byte range."""
    # the byte before the range decides whether a line begins exactly at its start
    base = max(start - 1, 0)
    beyond = _BEYOND_BYTES
    while True:
        limit = min(stop + beyond, file.size_bytes)
        data = file.read_range(base, limit)
        begin = _after_newline(data, 0) if start else 0
        if begin is None or base + begin >= stop:
            return data.slice(0, 0)
        if stop == file.size_bytes:
            return data.slice(begin)
        end = _after_newline(data, stop - 1 - base)
        if end is not None:
            return data.slice(begin, end - begin)
        if limit == file.size_bytes:
            return data.slice(begin)
        beyond *= _GROWTH


def _after_newline(data: Any, at: int) -> int | None:
    found = _NEWLINE.search(data, at)
    return None if found is None else found.end()


@dataclass(frozen=True)
class TextFormat(LineFormat):
    """Files of lines; each line is a row of the column ``text``."""

    lines: LineFiles
    drop_empty_lines: bool = True
    name: str = "text"

    @property
    def options(self) -> str:
        return f"{self.lines}, drop_empty_lines={self.drop_empty_lines}"

    def parse(self, piece: Piece, schema: pa.Schema) -> pa.Table:
        return self._split(piece.text)

    def explain(self, error: Exception, piece: Piece, schema: pa.Schema) -> str:
        return f"{error}; repair the file, or check encoding= and compression="

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        try:
            sample = self._split(head.data)
        except pa.ArrowInvalid as error:
            why = self.explain(error, Piece(file, head.data, file.name), _SCHEMA)
            raise SourceError(f"{file.name} is not valid text: {why}") from error
        return estimate_facts(sample, head.data.size, self.lines.group_bytes(file, head))

    def _split(self, text: pa.Buffer) -> pa.Table:
        chunks, at = [], 0
        while at < text.size:
            end = text.size
            if end - at > _CHUNK_BYTES:
                end = at + bytes(text[at : at + _CHUNK_BYTES]).rfind(b"\n") + 1
                if end == at:
                    raise pa.ArrowInvalid(f"a line has more than {_CHUNK_BYTES:,} bytes")
            chunks.append(self._split_chunk(text.slice(at, end - at)))
            at = end
        return pa.Table.from_arrays([pa.chunked_array(chunks, pa.string())], schema=_SCHEMA)

    def _split_chunk(self, text: pa.Buffer) -> pa.Array:
        import pyarrow.compute as pc

        ends = pa.py_buffer(np.array([0, text.size], np.int32))
        whole = pa.Array.from_buffers(pa.binary(), 1, [None, ends, text])
        lines = pc.split_pattern(whole, b"\n").values
        if bytes(text[-1:]) == b"\n":
            lines = lines.slice(0, len(lines) - 1)
        if pc.any(pc.ends_with(lines, b"\r")).as_py():
            lines = pc.replace_substring_regex(lines, rb"\r$", b"")
        if self.drop_empty_lines:
            lengths = pc.binary_length(lines)
            if pc.min(lengths).as_py() == 0:
                lines = lines.filter(pc.greater(lengths, 0))
        return lines.cast(pa.string())

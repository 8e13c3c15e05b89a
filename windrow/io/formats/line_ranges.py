"""Files of lines: cut into ranges of bytes that end at newlines, where that can be.

A range goes from the first line that begins in it to the last one that does, wherever that
ends, as in Hadoop and Dask. So every line is read once, and each range can be read alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.compression import decompress, find_codec
from windrow.io.formats.file_head import HEAD_BYTES, Head, read_heads
from windrow.io.formats.text_encoding import decode_head, decode_text, is_cuttable

__all__ = ["RANGE_BYTES", "LineFiles", "cut_lines"]

# It is part of what a saved manifest means by a row group: another size needs another name of it.
RANGE_BYTES = 16 * 2**20

# The last line of a range ends in the next one.
_BEYOND_BYTES = 64 * 1024
_GROWTH = 4
_NEWLINE = re.compile(rb"\n")


@dataclass(frozen=True)
class LineFiles:
    """How lines are stored.

    Attributes
    ----------
    compression
        A codec, ``"infer"`` (by suffix), or None.
    encoding
        The canonical name of an encoding.
    cuttable
        False where a row may go on in the next line, so that only its file is read as a whole.
    """

    compression: str | None
    encoding: str
    cuttable: bool = True

    def __str__(self) -> str:
        cut = f"cut into {RANGE_BYTES} bytes" if self.cuttable else "whole"
        return f"compression={self.compression}, encoding={self.encoding}, {cut}"

    def is_cut(self, file: OpenFile) -> bool:
        """Whether a file is cut into ranges, each a row group; else it is one as a whole."""
        return (
            self.cuttable and find_codec(self.compression, file.name) is None and is_cuttable(self.encoding)
        )

    def group_bytes(self, file: OpenFile, head: Head) -> list[int]:
        """(row groups,) the bytes of each."""
        if not self.is_cut(file):
            return [head.content_bytes] if head.content_bytes else []
        starts = range(0, file.size_bytes, RANGE_BYTES)
        return [min(RANGE_BYTES, file.size_bytes - start) for start in starts]

    def heads(self, file: OpenFile) -> Iterator[tuple[Head, pa.Buffer]]:
        """The beginning of a file, longer each time, and the same as UTF-8.

        Raises
        ------
        SourceError
            If it is not of the encoding.
        """
        for head in read_heads(file, find_codec(self.compression, file.name)):
            try:
                text = decode_head(head.data, self.encoding, whole=head.whole)
            except UnicodeError as error:
                raise SourceError(f"{file.name}: {error}; see whether encoding= is right") from error
            yield head, text

    def where(self, file: OpenFile, start: int, stop: int) -> str:
        """Row groups in words, for errors."""
        if not self.is_cut(file):
            return file.name
        last = min(stop * RANGE_BYTES, file.size_bytes)
        return f"{file.name}, lines from byte {start * RANGE_BYTES:,} to {last:,}"

    def fetch(self, file: OpenFile, start: int, stop: int, *, head: bool) -> None:
        """Read what `read` needs ahead, and perhaps the file's beginning with it."""
        spans = [(0, min(HEAD_BYTES, file.size_bytes))] if head else []
        if self.is_cut(file):
            first, last = max(start * RANGE_BYTES - 1, 0), stop * RANGE_BYTES + _BEYOND_BYTES
            spans.append((first, min(last, file.size_bytes)))
        else:
            spans.append((0, file.size_bytes))
        file.fetch(spans)

    def read(self, file: OpenFile, start: int, stop: int) -> pa.Buffer:
        """The lines of row groups ``start`` to ``stop``, as UTF-8.

        Raises
        ------
        OSError
            If they cannot be decompressed.
        UnicodeDecodeError
            If they are not of the encoding.
        """
        if not self.is_cut(file):
            data = decompress(find_codec(self.compression, file.name), file.read_range(0, file.size_bytes))
        else:
            data = _read_lines(file, start * RANGE_BYTES, min(stop * RANGE_BYTES, file.size_bytes))
        return decode_text(data, self.encoding, begins=start == 0)


def cut_lines(text: pa.Buffer) -> pa.Buffer:
    """The whole lines of a file's beginning."""
    return text.slice(0, bytes(text).rfind(b"\n") + 1)


def _read_lines(file: OpenFile, start: int, stop: int) -> pa.Buffer:
    """The lines that begin in a range of bytes."""
    # the byte before tells whether a line begins at once
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

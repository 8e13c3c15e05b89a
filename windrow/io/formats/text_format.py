"""Text files: one row per line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.source import CorruptBlockError
from windrow.io.catalog.fragments import Fragment, FragmentFacts
from windrow.io.catalog.hive_partitions import Partitions
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.file_head import look_at
from windrow.io.formats.line_ranges import LineFiles, cut_lines
from windrow.io.formats.row_estimate import estimate_facts
from windrow.io.formats.table_reader import TableReader
from windrow.io.storage.filesystems import Files

if TYPE_CHECKING:
    import pyarrow.compute as pc

__all__ = ["TextFormat"]

_SCHEMA = pa.schema([pa.field("text", pa.string())])
# string offsets have 32 bits
_CHUNK_BYTES = 2**30
_FIX = "repair the file, or check encoding= and compression="


@dataclass(frozen=True)
class TextFormat:
    """Files of lines; each line is a row of the column ``text``."""

    lines: LineFiles
    drop_empty_lines: bool = True
    name: str = "text"
    rows_known: bool = False
    joins_files: bool = False

    @property
    def options(self) -> str:
        """The options that affect rows."""
        return f"{self.lines}, drop_empty_lines={self.drop_empty_lines}"

    def look(self, files: Files, path: str) -> Fragment:
        """Estimate a file's number of lines from its head.

        Raises
        ------
        SourceError
            If the file cannot be read.
        """
        return look_at(files, path, self._summarise)

    def reader(
        self,
        files: Files,
        schema: pa.Schema,
        stored: pa.Schema,
        partitions: Partitions,
        row_filter: pc.Expression | None,
    ) -> TableReader:
        """Make a reader of blocks, each within one file."""
        return TableReader(self, files, schema, stored, partitions, row_filter)

    def read(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> pa.Table:
        """Read ranges of a file as a table; raises `CorruptBlockError` for bytes that are not valid text."""
        self.lines.fetch(file, start, stop, head=False)
        try:
            return self._split(self.lines.read(file, start, stop))
        except (pa.ArrowInvalid, UnicodeError) as error:
            if file.failed:
                raise
            where = self.lines.where(file, start, stop)
            raise CorruptBlockError(f"{where}: {error}; {_FIX}") from error

    def can_map(self, schema: pa.Schema) -> bool:
        """Always true: parsing copies."""
        return True

    def tables(self, file: OpenFile, start: int, stop: int, schema: pa.Schema) -> Iterator[pa.Table]:
        """Read range by range, to hold little text in memory."""
        for group in range(start, stop):
            yield self.read(file, group, group + 1, schema)

    def _summarise(self, file: OpenFile) -> FragmentFacts:
        for head, text in self.lines.heads(file):
            whole = text if head.whole else cut_lines(text)
            try:
                sample = self._split(whole)
            except pa.ArrowInvalid as error:
                raise SourceError(f"{file.name} is not valid text: {error}; {_FIX}") from error
            if sample.num_rows or head.whole:
                return estimate_facts(sample, whole.size, self.lines.group_bytes(file, head))
        raise AssertionError("the last head is the whole file")

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

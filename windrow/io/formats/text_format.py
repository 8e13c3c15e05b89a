"""Text files: one row per line."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.io.catalog.fragments import FragmentFacts
from windrow.io.formats.block_files import OpenFile
from windrow.io.formats.line_ranges import LineFiles, LineFormat
from windrow.io.formats.sampled_format import Head, estimate_facts

__all__ = ["TextFormat"]

_SCHEMA = pa.schema([pa.field("text", pa.string())])
# string offsets have 32 bits
_CHUNK_BYTES = 2**30


@dataclass(frozen=True)
class TextFormat(LineFormat):
    """Files of lines; each line is a row of the column ``text``."""

    lines: LineFiles
    drop_empty_lines: bool = True
    name: str = "text"

    @property
    def options(self) -> str:
        """The options that affect rows."""
        return f"{self.lines}, drop_empty_lines={self.drop_empty_lines}"

    def parse(
        self,
        file: OpenFile,
        text: pa.Buffer,
        schema: pa.Schema,
        where: str,
        *,
        first_row: int,
        at_start: bool,
    ) -> pa.Table:
        """Split text into lines."""
        return self._split(text)

    def explain(
        self, error: Exception, file: OpenFile, text: pa.Buffer, schema: pa.Schema, *, first_row: int = 0
    ) -> str:
        """Add a fix to an error."""
        return f"{error}; repair the file, or check encoding= and compression="

    def describe(self, file: OpenFile, head: Head) -> FragmentFacts:
        """Estimate the number of lines from those in the head."""
        try:
            sample = self._split(head.data)
        except pa.ArrowInvalid as error:
            why = self.explain(error, file, head.data, _SCHEMA)
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

"""Quoted values in CSV: detect those that span lines before a file is split at newlines."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

__all__ = ["Quoting"]

_WINDOW_BYTES = 2**18
_TAIL_BYTES = 64 * 1024
_NEWLINE = 10


@dataclass(frozen=True)
class Quoting:
    """How values are quoted. Each character is one ASCII byte; ``escape`` can be empty."""

    delimiter: str
    quote: str
    double: bool
    escape: str

    def open_line(self, text: pa.Buffer) -> int | None:
        """The offset of the first line that ends inside a quoted value; None if no line does.

        Without an escape character, such a line has an odd number of quotes. So only those lines
        are scanned byte by byte, and most files have none.
        """
        data = np.frombuffer(text, np.uint8)
        mark, begin, carried = ord(self.quote), 0, 0
        for start in range(0, len(data), _WINDOW_BYTES):
            window = data[start : start + _WINDOW_BYTES]
            places = np.flatnonzero((window == mark) | (window == _NEWLINE))
            newlines = np.flatnonzero(window[places] == _NEWLINE)
            counts = np.diff(newlines, prepend=-1) - 1
            if not len(counts):
                carried += len(places)
                continue
            counts[0] += carried
            ends = places[newlines] + start
            begins = np.concatenate([[begin], ends[:-1] + 1])
            for line in np.flatnonzero(counts if self.escape else counts & 1).tolist():
                if self._ends_open(bytes(data[begins[line] : ends[line]])):
                    return int(begins[line])
            begin, carried = int(ends[-1]) + 1, len(places) - 1 - int(newlines[-1])
        return begin if carried and self._ends_open(bytes(data[begin:])) else None

    def closes(self, text: pa.Buffer, lines: int) -> bool:
        """Whether the text certainly has ``lines`` lines and the last of them closes its quotes.

        If parsing the text gave as many rows, then no quoted value spans lines anywhere. This check
        costs a fraction of `open_line`.
        """
        data = np.frombuffer(text, np.uint8)
        windows = range(0, len(data), _WINDOW_BYTES)
        found = sum(int(np.count_nonzero(data[at : at + _WINDOW_BYTES] == _NEWLINE)) for at in windows)
        tail = bytes(data[-_TAIL_BYTES:])
        ended = tail.endswith(b"\n")
        if found + (not ended) != lines:
            return False
        begin = tail.rfind(b"\n", 0, len(tail) - ended) + 1
        return (begin > 0 or len(tail) == len(data)) and not self._ends_open(tail[begin:].rstrip(b"\n"))

    def whole_rows(self, text: pa.Buffer) -> pa.Buffer:
        """The complete rows of a file's head, where values can contain newlines."""
        data = bytes(text)
        rows = self._row_end(data)
        return text.slice(0, rows)

    def _row_end(self, data: bytes) -> int:
        """The offset after the last newline outside of quotes."""
        end = at = 0
        while True:
            newline = data.find(b"\n", at)
            if newline < 0:
                return end
            if not self._ends_open(data[end:newline]):
                end = newline + 1
            at = newline + 1

    def _ends_open(self, line: bytes) -> bool:
        """Whether a sequence of rows ends inside quotes; quotes open only at the beginning of a value."""
        delimiter, quote = self.delimiter.encode(), self.quote.encode()
        at = 0
        while at <= len(line):
            if line[at : at + 1] == quote:
                closed = self._closing(line, at + 1)
                if closed is None:
                    return True
                at = closed
            at = self._next_value(line, at, delimiter)
        return False

    def _closing(self, line: bytes, at: int) -> int | None:
        """The offset after the quote that closes a value."""
        quote, escape = self.quote.encode(), self.escape.encode()
        while at < len(line):
            byte = line[at : at + 1]
            if escape and byte == escape:
                at += 2
            elif byte != quote:
                at += 1
            elif self.double and line[at + 1 : at + 2] == quote:
                at += 2
            else:
                return at + 1
        return None

    def _next_value(self, line: bytes, at: int, delimiter: bytes) -> int:
        """The offset of the next value, after a delimiter or newline; past the end if there is none."""
        found = [place for place in (line.find(delimiter, at), line.find(b"\n", at)) if place >= 0]
        return min(found) + 1 if found else len(line) + 1

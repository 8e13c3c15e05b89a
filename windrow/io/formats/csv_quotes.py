"""Quotes of CSV: values that go on in the next line, found before they are cut apart."""

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
    """How values are quoted; each character is one byte of ASCII, and ``escape`` may be empty."""

    delimiter: str
    quote: str
    double: bool
    escape: str

    def open_line(self, text: pa.Buffer) -> int | None:
        """Where the first line begins that ends within a quoted value; None where there is none.

        A line that does so has an odd number of quotes, unless they are escaped by others
        than quotes. So only such lines are looked at closely, and most have none at all.
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
        """Whether a text surely has so many lines, and the last of them no value that goes on.

        If parsing them gave as many rows, then no value goes on in any other line either. This
        takes a fraction of what `open_line` does.
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
        """The rows of a file's beginning that end before it does, where values may have newlines."""
        data = bytes(text)
        rows = self._row_end(data)
        return text.slice(0, rows)

    def _row_end(self, data: bytes) -> int:
        """The byte behind the last newline outside of quotes."""
        end = at = 0
        while True:
            newline = data.find(b"\n", at)
            if newline < 0:
                return end
            if not self._ends_open(data[end:newline]):
                end = newline + 1
            at = newline + 1

    def _ends_open(self, line: bytes) -> bool:
        """Whether the end of some whole or half rows is within quotes, which open at a value's beginning only."""
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
        """The byte behind the quote that closes a value."""
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
        """Where the next value begins, behind a delimiter or a newline; behind the end where there is none."""
        found = [place for place in (line.find(delimiter, at), line.find(b"\n", at)) if place >= 0]
        return min(found) + 1 if found else len(line) + 1

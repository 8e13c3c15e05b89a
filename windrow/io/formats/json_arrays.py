"""JSON documents that are one array of objects, rewritten as JSON lines piece by piece.

Commas between the elements become newlines, and newlines within an element become spaces. Strings hold no raw
newlines in JSON, so no value changes. The text is scanned in pieces, so only one piece is held twice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# what is scanned at once stays in the cache
_STEP_BYTES = 2**16
# what the parser gets at once
_PIECE_BYTES = 8 * 2**20
_START_BYTES = 1024

_QUOTE, _OPEN, _CLOSE, _COMMA, _NEWLINE, _BACKSLASH = range(1, 7)
_KINDS = np.full(256, 0, np.uint8)
for _characters, _kind in (
    (b'"', _QUOTE), (b"[{", _OPEN), (b"]}", _CLOSE), (b",", _COMMA), (b"\r\n", _NEWLINE), (b"\\", _BACKSLASH)
):  # fmt: skip
    _KINDS[list(_characters)] = _kind


def is_array(text: pa.Buffer) -> bool:
    """Whether text begins as a JSON array.

    >>> is_array(pa.py_buffer(b' [{"x": 1}]')), is_array(pa.py_buffer(b'{"x": [1]}'))
    (True, False)
    """
    return bytes(text[:_START_BYTES]).lstrip()[:1] == b"["


def array_lines(text: pa.Buffer) -> Iterator[pa.Buffer]:
    r"""Yield the elements of an array as JSON lines, some MiB at a time; ``ArrowInvalid`` if it does not end.

    >>> [piece.to_pybytes() for piece in array_lines(pa.py_buffer(b'[{"x": "a,b"},\n{"x": "c"}]'))]
    [b' {"x": "a,b"}\n {"x": "c"} ']
    """
    scanner, held, held_bytes = _Scanner(), list[NDArray[np.uint8]](), 0
    data = np.frombuffer(text, np.uint8)
    for start in range(0, len(data), _STEP_BYTES):
        lines, end = scanner.scan(data[start : start + _STEP_BYTES])
        held_bytes += len(lines)
        if held_bytes < _PIECE_BYTES or not end:
            held.append(lines)
            continue
        yield _join([*held, lines[:end]])
        held, held_bytes = [lines[end:]], len(lines) - end
    scanner.check_end()
    if held_bytes:
        yield _join(held)


def array_head(text: pa.Buffer, *, whole: bool) -> pa.Buffer:
    """The complete elements in the beginning of an array, as JSON lines."""
    scanner = _Scanner()
    lines, end = scanner.scan(np.frombuffer(text, np.uint8))
    if whole:
        scanner.check_end()
        end = len(lines)
    return pa.py_buffer(lines[:end])


def _join(pieces: list[NDArray[np.uint8]]) -> pa.Buffer:
    return pa.py_buffer(pieces[0] if len(pieces) == 1 else np.concatenate(pieces))


class _Scanner:
    """Where a scan is: how deep within brackets, whether inside a string, and whether after a backslash."""

    def __init__(self) -> None:
        self._depth = 0
        self._is_quoted = False
        self._is_escaped = False
        self._has_ended = False

    def scan(self, data: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], int]:
        """Convert the next bytes; returns them with the place after the last comma between elements, or 0."""
        if self._has_ended:
            _check_blank(data)
            return data, 0
        kinds = _KINDS[data]
        self._unmark_escaped(kinds)
        places = np.flatnonzero(kinds != 0)
        found = kinds[places]
        quotes = found == _QUOTE
        # odd after an opening quote; a quote itself is neither a bracket nor a comma
        quoted = (np.cumsum(quotes, dtype=np.int32) + self._is_quoted) & 1 == 1
        if len(quoted):
            self._is_quoted = bool(quoted[-1])
        outside = ~quoted & ~quotes
        places, found = places[outside], found[outside]
        steps = (found == _OPEN).astype(np.int32) - (found == _CLOSE)
        depths = np.cumsum(steps, dtype=np.int32) + self._depth
        lines = data.copy()
        lines[places[found == _NEWLINE]] = ord(" ")
        commas = places[(found == _COMMA) & (depths == 1)]
        lines[commas] = ord("\n")
        if not self._depth and len(depths) and (begin := np.flatnonzero(depths == 1)).size:
            lines[places[begin[0]]] = ord(" ")
        closed = np.flatnonzero((found == _CLOSE) & (depths == 0))
        if closed.size:
            self._end(data, lines, int(places[closed[0]]))
        self._depth = int(depths[-1]) if len(depths) else self._depth
        return lines, int(commas[-1]) + 1 if commas.size else 0

    def check_end(self) -> None:
        if not self._has_ended:
            raise pa.ArrowInvalid("the array that the file holds is not closed: the file is truncated")

    def _end(self, data: NDArray[np.uint8], lines: NDArray[np.uint8], place: int) -> None:
        self._has_ended = True
        lines[place] = ord(" ")
        _check_blank(data[place + 1 :])

    def _unmark_escaped(self, kinds: NDArray[np.uint8]) -> None:
        """Clear the kind of every character that follows an odd number of backslashes, and of backslashes."""
        slashes = np.flatnonzero(kinds == _BACKSLASH)
        was_escaped, self._is_escaped = self._is_escaped, False
        if was_escaped and len(kinds):
            kinds[0] = 0
            slashes = slashes[slashes > 0]
        if not slashes.size:
            return
        firsts = np.flatnonzero(np.diff(slashes, prepend=-2) != 1)
        lengths = np.diff(firsts, append=len(slashes))
        escaped = (slashes[firsts] + lengths)[lengths & 1 == 1]
        if escaped.size and escaped[-1] == len(kinds):
            self._is_escaped = True
            escaped = escaped[:-1]
        kinds[slashes] = 0
        kinds[escaped] = 0


def _check_blank(rest: NDArray[np.uint8]) -> None:
    if rest.tobytes().strip():
        raise pa.ArrowInvalid("text follows the array that the file holds")

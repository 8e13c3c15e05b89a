"""Validates Parquet footers before Arrow parses their column chunks, since invalid ones crash the process.

Arrow's accessors of column chunks abort the process on footers with contents that no writer produces. So each
footer is parsed here first, by ``_footer.c`` or, where that was not built, by the same steps in Python. Tests
check on corrupt footers that both give the same result.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from windrow.io.parquet import decoder_library

# lower limit of a schema element's bytes in the footer, and bytes of a Leaf in C
_LEAF_STORED_BYTES, _LEAF_BYTES = 4, 16
_PROBLEMS = (
    "",
    "it is truncated, or not a footer",
    "a row group has a different number of columns than the schema",
    "a column chunk has a different type than its column",
    "a column chunk has an unknown codec",
    "a column chunk has statistics of a different type",
    "a column is encrypted, which windrow does not support",
)
# same values as in C
_FITS, _BROKEN, _COLUMNS_DIFFER, _TYPES_DIFFER, _UNKNOWN_CODEC, _BAD_STATISTICS, _ENCRYPTED = range(7)
_STOP, _TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(13)
_TYPE_BYTES, _TYPE_FIXED = 6, 7
# bytes of a value by physical type; BYTE_ARRAY has no fixed width
_WIDTHS = (1, 4, 8, 12, 4, 8, 0)
_DEPTH, _FIELD_DEPTH, _LAST_CODEC = 64, 8, 7
_MASK = 2**64 - 1


def check_footer(raw: bytes, texts: NDArray[np.int64]) -> str:
    """Return the problem of a footer that would crash Arrow ("" for none), and extract its text sizes.

    ``texts``, (row groups, columns), receives the text bytes of each chunk that states them, which Arrow's
    API does not expose.
    """
    if decoder_library.LIBRARY is None:
        return _PROBLEMS[find_problem(raw, texts)]
    stored = np.frombuffer(raw, np.uint8)
    max_leaves = len(raw) // _LEAF_STORED_BYTES
    leaves = np.empty(max_leaves * _LEAF_BYTES // 4, np.int32)
    check = decoder_library.LIBRARY.windrow_check_footer
    return _PROBLEMS[check(stored, len(raw), leaves, max_leaves, texts, texts.size)]


def find_problem(raw: bytes, texts: NDArray[np.int64]) -> int:
    """The Python version of ``windrow_check_footer``: returns an index into `_PROBLEMS`."""
    parser = _FooterParser(raw, len(raw) // _LEAF_STORED_BYTES, texts.reshape(-1))
    parser.check()
    return parser.problem or (_BROKEN if parser.bad else _FITS)


class _Leaf(NamedTuple):
    type: int
    type_bytes: int
    definitions: int
    repetitions: int


@dataclass
class _FooterParser:
    """Parser of Thrift's compact protocol, as far as footers use it; ``bad`` is set when the input is malformed."""

    raw: bytes
    max_leaves: int
    texts: NDArray[np.int64]
    at: int = 0
    bad: bool = False
    problem: int = _FITS
    chunk: int = 0
    leaves: list[_Leaf] = field(default_factory=list)

    # --- Thrift

    def varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            if self.at >= len(self.raw):
                break
            byte = self.raw[self.at]
            self.at += 1
            value |= (byte & 127) << shift
            if byte < 128:
                return value & _MASK
        self.bad = True
        return 0

    def signed(self, bits: int) -> int:
        value = self.varint() & (2**bits - 1)
        return (value >> 1) ^ -(value & 1)

    def skip_bytes(self, count: int) -> None:
        if count > len(self.raw) - self.at:
            self.bad = True
        else:
            self.at += count

    def fields(self) -> Iterator[tuple[int, int]]:
        """The id and type of each field of a struct; the caller must read or skip the field's value."""
        number = 0
        while True:
            if self.bad or self.at >= len(self.raw):
                self.bad = True
                return
            head = self.raw[self.at]
            self.at += 1
            if head & 15 == _STOP:
                return
            number = number + (head >> 4) if head >> 4 else self.signed(64)
            # field ids have 16 bits
            number = (number + 2**15) % 2**16 - 2**15
            if self.bad:
                return
            yield number, head & 15

    def list_length(self) -> tuple[int, int]:
        """The length of a list, and the type of its elements."""
        if self.at >= len(self.raw):
            self.bad = True
            return 0, 0
        head = self.raw[self.at]
        self.at += 1
        length = self.varint() if head >> 4 == 15 else head >> 4
        if length > len(self.raw) - self.at:
            self.bad = True
        return (0 if self.bad else length), head & 15

    def elements(self) -> Iterator[int]:
        """The type of each element of a list."""
        length, kind = self.list_length()
        for _ in range(length):
            if self.bad:
                return
            yield kind

    def skip(self, kind: int, depth: int) -> None:
        if depth > _FIELD_DEPTH:
            self.bad = True
        elif kind in (_I16, _I32, _I64):
            self.varint()
        elif kind == _BINARY:
            self.skip_bytes(self.varint())
        elif kind == _STRUCT:
            for _, inner in self.fields():
                self.skip(inner, depth + 1)
        elif kind in (_LIST, _SET):
            for inner in self.elements():
                if inner in (_TRUE, _FALSE):
                    # in a list each boolean takes one byte
                    self.skip_bytes(1)
                else:
                    self.skip(inner, depth + 1)
        elif kind in (_BYTE, _DOUBLE):
            self.skip_bytes(1 if kind == _BYTE else 8)
        elif kind not in (_TRUE, _FALSE):
            # Parquet has no maps
            self.bad = True

    # --- footers

    def report(self, problem: int) -> None:
        self.problem = self.problem or problem

    def check(self) -> None:
        """FileMetaData: field 2 is the schema, 4 the row groups."""
        has_schema = False
        for number, kind in self.fields():
            if kind == _LIST and number == 2:
                if has_schema:
                    self.report(_BROKEN)
                else:
                    self._read_schema()
                has_schema = True
            elif kind == _LIST and number == 4:
                for _ in self.elements():
                    self._check_group()
                    if self.problem:
                        return
                # a schema after the row groups would not be the one that they were checked against
                has_schema = True
            else:
                self.skip(kind, 0)
            if self.problem:
                return

    def _read_schema(self) -> None:
        """Schema elements are in depth-first order, each with its number of children."""
        # per depth: remaining elements, and the definition and repetition levels that they inherit
        above = [[1, 0, 0]]
        for place, _ in enumerate(self.elements()):
            stated = {1: -1, 2: 0, 3: 0, 5: 0}
            for number, kind in self.fields():
                if kind == _I32 and number in stated:
                    stated[number] = self.signed(32)
                else:
                    self.skip(kind, 1)
            physical_type, type_bytes, repetition, children = stated.values()
            while len(above) > 1 and above[-1][0] == 0:
                above.pop()
            left, definitions, repetitions = above[-1]
            above[-1][0] -= 1
            if left <= 0:
                self.report(_BROKEN)
                return
            # the root's repetition type is ignored
            definitions += place > 0 and repetition in (1, 2)
            repetitions += place > 0 and repetition == 2
            if children > 0:
                if len(above) > _DEPTH:
                    self.report(_BROKEN)
                    return
                above.append([children, definitions, repetitions])
            elif physical_type >= 0:
                if len(self.leaves) == self.max_leaves:
                    self.report(_BROKEN)
                    return
                self.leaves.append(_Leaf(physical_type, type_bytes, definitions, repetitions))

    def _check_group(self) -> None:
        """RowGroup: field 1 is the column chunks."""
        for number, kind in self.fields():
            if kind != _LIST or number != 1:
                self.skip(kind, 1)
                continue
            length, _ = self.list_length()
            if length != len(self.leaves):
                self.report(_COLUMNS_DIFFER)
                return
            for leaf in self.leaves:
                if self.bad or self.problem:
                    break
                if leaf.type > _TYPE_FIXED or leaf.type_bytes < 0:
                    self.report(_BROKEN)
                    return
                self._check_column(leaf)
                self.chunk += 1

    def _check_column(self, leaf: _Leaf) -> None:
        """ColumnChunk: field 3 is the metadata, 8 and 9 are encryption."""
        described = False
        for number, kind in self.fields():
            if kind == _STRUCT and number == 3:
                self._check_chunk(leaf)
                described = True
                continue
            if number in (8, 9):
                self.report(_ENCRYPTED)
            self.skip(kind, 1)
        if not described:
            self.report(_BROKEN)

    def _check_chunk(self, leaf: _Leaf) -> None:
        """ColumnMetaData: field 1 is the type, 4 the codec, 12 statistics, 16 size statistics."""
        for number, kind in self.fields():
            if kind == _I32 and number == 1:
                if self.signed(32) != leaf.type:
                    self.report(_TYPES_DIFFER)
            elif kind == _I32 and number == 4:
                if not 0 <= self.signed(32) <= _LAST_CODEC:
                    self.report(_UNKNOWN_CODEC)
            elif kind == _STRUCT and number == 12:
                self._check_statistics(leaf)
            elif kind == _STRUCT and number == 16:
                self._check_sizes(leaf)
            else:
                self.skip(kind, 2)

    def _check_statistics(self, leaf: _Leaf) -> None:
        """Statistics: fields 1, 2, 5 and 6 are the encoded minimum and maximum values."""
        width = leaf.type_bytes if leaf.type == _TYPE_FIXED else _WIDTHS[leaf.type]
        for number, kind in self.fields():
            if kind == _BINARY and number in (1, 2, 5, 6):
                size = self.varint()
                if size < width:
                    self.report(_BAD_STATISTICS)
                self.skip_bytes(size)
            else:
                self.skip(kind, 3)

    def _check_sizes(self, leaf: _Leaf) -> None:
        """SizeStatistics: field 1 is text bytes, 2 and 3 are histograms of repetition and definition levels."""
        for number, kind in self.fields():
            if kind == _LIST and number in (2, 3):
                levels = 1 + (leaf.repetitions if number == 2 else leaf.definitions)
                length, _ = self.list_length()
                if length not in (0, levels):
                    self.report(_BAD_STATISTICS)
                for _ in range(length):
                    if self.bad:
                        break
                    self.varint()
            elif kind == _I64 and number == 1:
                if leaf.type != _TYPE_BYTES:
                    self.report(_BAD_STATISTICS)
                value = self.signed(64)
                if self.chunk < len(self.texts):
                    self.texts[self.chunk] = value
            else:
                self.skip(kind, 3)

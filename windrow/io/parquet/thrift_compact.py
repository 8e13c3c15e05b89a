"""Reads and writes Thrift's compact protocol, as Parquet uses it.

A struct is a dict from field id to the type and value of the field; a list is the type of its elements and a Python
list. Binary values and doubles stay bytes. Arrow does not expose what these structs say of the places of pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, SET, MAP, STRUCT = range(1, 13)
_INTEGERS = (I16, I32, I64)
_DOUBLE_BYTES, _DEPTH, _LONG_LIST = 8, 64, 15

Struct = dict[int, tuple[int, Any]]


class ThriftError(ValueError):
    """The bytes are not what the protocol allows."""


class Reader:
    """Reads values one after another; raises `ThriftError` for bytes that the protocol does not allow.

    >>> reader = Reader(dump({1: (I32, -3), 4: (LIST, (BINARY, [b"ab"]))}))
    >>> reader.struct()
    {1: (5, -3), 4: (9, (8, [b'ab']))}
    >>> reader.at
    8
    """

    def __init__(self, raw: bytes, at: int = 0) -> None:
        self.raw, self.at = raw, at

    def varint(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise ThriftError("an integer has more than 64 bits")

    def signed(self) -> int:
        value = self.varint()
        return (value >> 1) ^ -(value & 1)

    def fields(self) -> Iterator[tuple[int, int]]:
        """The id and type of each field of a struct; the caller must read the value of each."""
        number = 0
        while (head := self._byte()) & 15:
            number = number + (head >> 4) if head >> 4 else self.signed()
            yield number, head & 15

    def list_header(self) -> tuple[int, int]:
        """The type and number of the elements of a list."""
        head = self._byte()
        length = self.varint() if head >> 4 == _LONG_LIST else head >> 4
        if length > len(self.raw) - self.at:
            raise ThriftError("a list is longer than what holds it")
        return head & 15, length

    def struct(self, depth: int = 0) -> Struct:
        if depth > _DEPTH:
            raise ThriftError("structs are nested too deeply")
        return {number: (kind, self.value(kind, depth)) for number, kind in self.fields()}

    def value(self, kind: int, depth: int = 0) -> Any:
        """The value of a field of this type."""
        if kind in (TRUE, FALSE):
            return kind == TRUE
        if kind in (LIST, SET):
            inner, length = self.list_header()
            return inner, [self._element(inner, depth + 1) for _ in range(length)]
        return self._element(kind, depth)

    def _element(self, kind: int, depth: int) -> Any:
        if kind in _INTEGERS:
            return self.signed()
        if kind == BINARY:
            return self._bytes(self.varint())
        if kind == STRUCT:
            return self.struct(depth + 1)
        if kind == DOUBLE:
            return self._bytes(_DOUBLE_BYTES)
        if kind in (LIST, SET) and depth <= _DEPTH:
            return self.value(kind, depth)
        # a boolean has a byte in lists only
        if kind in (TRUE, FALSE, BYTE):
            return self._byte()
        raise ThriftError(f"a value has the type {kind}, which Parquet does not use")

    def _byte(self) -> int:
        if self.at >= len(self.raw):
            raise ThriftError("the bytes end within a value")
        self.at += 1
        return self.raw[self.at - 1]

    def _bytes(self, count: int) -> bytes:
        start, self.at = self.at, self.at + count
        if self.at > len(self.raw):
            raise ThriftError("the bytes end within a value")
        return bytes(self.raw[start : self.at])


def dump(struct: Struct) -> bytes:
    """Encode a struct."""
    out = bytearray()
    _write_struct(out, struct)
    return bytes(out)


def _write_struct(out: bytearray, struct: Struct) -> None:
    last = 0
    for number, (kind, value) in sorted(struct.items()):
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        step = number - last
        if 0 < step < 16:
            out.append(step << 4 | kind)
        else:
            out.append(kind)
            _write_signed(out, number)
        last = number
        if kind not in (TRUE, FALSE):
            _write_value(out, kind, value)
    out.append(0)


def _write_value(out: bytearray, kind: int, value: Any) -> None:
    if kind in _INTEGERS:
        _write_signed(out, value)
    elif kind == BINARY:
        _write_varint(out, len(value))
        out += value
    elif kind == DOUBLE:
        out += value
    elif kind == STRUCT:
        _write_struct(out, value)
    elif kind in (LIST, SET):
        inner, elements = value
        if len(elements) < _LONG_LIST:
            out.append(len(elements) << 4 | inner)
        else:
            out.append(_LONG_LIST << 4 | inner)
            _write_varint(out, len(elements))
        for element in elements:
            _write_value(out, inner, element)
    else:
        out.append(value)


def _write_signed(out: bytearray, value: int) -> None:
    _write_varint(out, value << 1 if value >= 0 else ~(value << 1))


def _write_varint(out: bytearray, value: int) -> None:
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)

"""Integers of variable length, seven bits a byte, the lowest first: of Protocol Buffers, Avro and Snappy."""

from __future__ import annotations


def parse_varint(data: memoryview, at: int) -> tuple[int, int]:
    """Parse one, and tell where it ends; an IndexError if the data ends before it does.

    >>> parse_varint(memoryview(bytes([0x96, 0x01, 0x07])), 0)
    (150, 2)
    """
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at

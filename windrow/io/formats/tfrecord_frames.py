"""The frames of TFRecord files: a length, its checksum, the record, its checksum."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from windrow.core.optional_dependencies import require

__all__ = ["FrameError", "frame_bytes", "iter_records", "load_checksum", "mask"]

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
frame_bytes = _HEADER.size + _FOOTER.size


class FrameError(ValueError):
    """What is stored is no frame, or another one than was written."""


def load_checksum() -> Any:
    """The function that gives the CRC-32C of some bytes.

    Raises
    ------
    PlanError
        If its library is not installed.
    """
    return require("google_crc32c", "tfrecords", "TFRecord").value


def mask(checksum: int) -> int:
    """A checksum as TFRecord stores it: rotated and shifted, as it may be stored among what it is of."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def iter_records(data: pa.Buffer, *, whole: bool = True) -> Iterator[bytes]:
    """The records of a file, or of a file's beginning as far as they are ``whole``, each checked.

    Raises
    ------
    FrameError
        Naming the record, if it is truncated or corrupt.
    """
    checksum = load_checksum()
    view, at, number = memoryview(data), 0, 0
    while at < len(view):
        if at + _HEADER.size > len(view):
            if whole:
                raise FrameError(f"record {number}, from byte {at:,} on, is truncated")
            return
        length, expected = _HEADER.unpack_from(view, at)
        if mask(checksum(bytes(view[at : at + 8]))) != expected:
            raise FrameError(
                f"record {number}, from byte {at:,} on, has a length that is not what was written"
            )
        begin = at + _HEADER.size
        at = begin + length + _FOOTER.size
        if at > len(view):
            if whole:
                raise FrameError(f"record {number}, from byte {begin - _HEADER.size:,} on, is truncated")
            return
        record = bytes(view[begin : begin + length])
        if mask(checksum(record)) != _FOOTER.unpack_from(view, begin + length)[0]:
            raise FrameError(f"record {number}, from byte {begin:,} on, is not what was written")
        yield record
        number += 1

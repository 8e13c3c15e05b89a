"""Split TFRecord files into records and verify their checksums.

A record is framed by its length, the length's checksum, and its own checksum.
"""

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
    """A frame is truncated or corrupt, or the data is not TFRecord."""


def load_checksum() -> Any:
    """Import the function that computes the CRC-32C of bytes.

    Raises
    ------
    PlanError
        If its library is not installed.
    """
    return require("google_crc32c", "tfrecords", "TFRecord").value


def mask(checksum: int) -> int:
    """Mask a checksum as TFRecord does, so that a checksum of data that contains checksums stays meaningful."""
    return (((checksum >> 15) | (checksum << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def iter_records(data: pa.Buffer, *, whole: bool = True) -> Iterator[bytes]:
    """Iterate over verified records; unless ``whole``, ``data`` is a head, and iteration stops where it ends.

    Raises
    ------
    FrameError
        If a record is truncated or corrupt; the error names it.
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

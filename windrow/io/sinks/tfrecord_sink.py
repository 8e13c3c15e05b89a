"""Write TFRecord files of ``tf.train.Example`` messages, without TensorFlow.

A record is its length (8 bytes, little endian), the masked CRC-32C of these 8 bytes, the message, and
the masked CRC-32C of the message.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.io.sinks.compression import compressed, compression_suffix
from windrow.io.sinks.sink import check_types
from windrow.io.sinks.tf_example import encode_examples, feature_kind

__all__ = ["TfRecordSink"]

# rows that are encoded together
_BATCH_ROWS = 4096
_COMPRESSIONS = (None, "gzip")


@dataclass(frozen=True)
class TfRecordSink:
    """Writes TFRecord files; see ``windrow.io.sinks.sink.Sink``.

    Attributes
    ----------
    compression
        Of the whole file, as TensorFlow reads it: ``"gzip"`` or None.
    """

    compression: str | None = None

    def __post_init__(self) -> None:
        if self.compression not in _COMPRESSIONS:
            raise PlanError(f"compression={self.compression!r} must be one of {_COMPRESSIONS}")

    @property
    def name(self) -> str:
        """``"TFRecord"``."""
        return "TFRecord"

    @property
    def suffix(self) -> str:
        """``".tfrecord"`` plus the suffix of the compression."""
        return f".tfrecord{compression_suffix(self.compression)}"

    def check(self, schema: pa.Schema) -> None:
        """Raise for types other than text, bytes, integers, 32-bit floats, and lists of these."""
        check_types(self.name, schema, _fix)
        require("google_crc32c", "tfrecords", "write_tfrecords()")

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        """Write one file."""
        with compressed(stream, self.compression) as inner:
            for table in tables:
                for start in range(0, table.num_rows, _BATCH_ROWS):
                    inner.write(_frame(encode_examples(table.slice(start, _BATCH_ROWS))))


def _frame(messages: list[bytes]) -> bytes:
    """Frame messages as consecutive records."""
    checksum = require("google_crc32c", "tfrecords", "write_tfrecords()").value
    parts: list[bytes] = []
    for message in messages:
        length = struct.pack("<Q", len(message))
        parts += [length, _masked(checksum(length)), message, _masked(checksum(message))]
    return b"".join(parts)


def _masked(crc: int) -> bytes:
    """Mask a checksum as TFRecord does, so that a checksum of data that contains checksums stays meaningful."""
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def _fix(kind: pa.DataType) -> str | None:
    types = pa.types
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(test(kind) for test in lists):
        kind = kind.value_type
    if feature_kind(kind):
        return None
    if types.is_float64(kind):
        return "its floats have 32 bits: cast it to pa.float32()"
    if types.is_temporal(kind) or types.is_uint64(kind):
        return "cast it to pa.int64()"
    if types.is_nested(kind):
        return "make a column of each part of it, or write Parquet or Arrow"
    return "cast it to pa.float32(), pa.int64(), pa.string() or pa.binary()"

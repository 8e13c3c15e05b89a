"""Write TFRecord files of ``tf.train.Example`` messages, without TensorFlow.

A record is its length (8 bytes, little endian), the masked CRC-32C of these 8 bytes, the message, and
the masked CRC-32C of the message. Messages are encoded in the Protocol Buffers wire format::

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }
    Feature   { oneof: BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; }
    *List     { repeated ... value = 1; }  numbers are packed

A null feature is omitted; an empty list is a list without values.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.io.sinks.sink import CompressedSink, check_types, compressed

# rows that are encoded together
_BATCH_ROWS = 4096
# protobuf tags of fields 1 to 3, length-delimited
_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"
_FIELDS = {"bytes": _FIRST, "float": _SECOND, "int64": _THIRD}


@dataclass(frozen=True)
class TfRecordSink(CompressedSink):
    """Writes TFRecord files; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "TFRecord"
    extension: ClassVar[str] = ".tfrecord"
    # what TensorFlow reads
    compressions: ClassVar[Collection[str | None]] = (None, "gzip")

    def check(self, schema: pa.Schema) -> None:
        check_types(self.name, schema, _fix)
        require("google_crc32c", "tfrecords", "write_tfrecords()")

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        with compressed(stream, self.compression) as inner:
            for table in tables:
                for start in range(0, table.num_rows, _BATCH_ROWS):
                    inner.write(_frame(_encode_examples(table.slice(start, _BATCH_ROWS))))


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
    if _feature_kind(kind):
        return None
    if types.is_float64(kind):
        return "its floats have 32 bits: cast it to pa.float32()"
    if types.is_temporal(kind) or types.is_uint64(kind):
        return "cast it to pa.int64()"
    if types.is_nested(kind):
        return "make a column of each part of it, or write Parquet or Arrow"
    return "cast it to pa.float32(), pa.int64(), pa.string() or pa.binary()"


def _feature_kind(kind: pa.DataType) -> str | None:
    """``"bytes"``, ``"float"`` or ``"int64"``: the list that stores a type losslessly; None if none does."""
    types = pa.types
    if types.is_dictionary(kind):
        return _feature_kind(kind.value_type)
    if types.is_float16(kind) or types.is_float32(kind):
        return "float"
    if types.is_boolean(kind) or (types.is_integer(kind) and kind != pa.uint64()):
        return "int64"
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return "bytes" if types.is_fixed_size_binary(kind) or any(test(kind) for test in texts) else None


def _encode_examples(table: pa.Table) -> list[bytes]:
    """(rows,) the serialized messages."""
    columns = [_entries(name, column) for name, column in zip(table.schema.names, table.columns, strict=True)]
    if not columns:
        return [_sized(_FIRST, b"")] * table.num_rows
    return [_sized(_FIRST, b"".join(entries)) for entries in zip(*columns, strict=True)]


def _entries(name: str, column: pa.ChunkedArray) -> list[bytes]:
    """(rows,) a column's entries in the map of features; empty for null."""
    key = _sized(_FIRST, name.encode())
    entries: list[bytes] = []
    for chunk in column.chunks:
        array = chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk
        entries += [b"" if value is None else _sized(_FIRST, key + value) for value in _features(name, array)]
    return entries


def _features(name: str, array: pa.Array) -> Sequence[bytes | None]:
    """(rows,) a column's features, as field 2 of their entries; None for null."""
    import pyarrow.compute as pc

    if not pa.types.is_nested(array.type):
        lengths = pc.is_valid(array).cast(pa.int64())
        items = array.drop_null()
    else:
        lengths, items = pc.list_value_length(array).fill_null(0), pc.list_flatten(array)
        if items.null_count:
            raise PlanError(f"column {name!r} has nulls in its lists, which TFRecord cannot carry: fill them")
    kind = _feature_kind(items.type) or ""
    ends = np.cumsum(lengths.to_numpy(zero_copy_only=False))
    lists = _LISTS[kind](items, np.append(0, ends).tolist())
    field = _FIELDS[kind]
    valid = array.is_valid().to_pylist()
    return [
        _sized(_SECOND, _sized(field, values)) if known else None
        for values, known in zip(lists, valid, strict=True)
    ]


def _bytes_lists(items: pa.Array, bounds: list[int]) -> list[bytes]:
    binary = pa.large_binary()
    fields = [_sized(_FIRST, value) for value in items.cast(binary).to_pylist()]
    return [b"".join(fields[start:stop]) for start, stop in pairwise(bounds)]


def _float_lists(items: pa.Array, bounds: list[int]) -> list[bytes]:
    data = items.to_numpy(zero_copy_only=False).astype("<f4").tobytes()
    return [
        _sized(_FIRST, data[4 * start : 4 * stop]) if stop > start else b""
        for start, stop in pairwise(bounds)
    ]


def _int64_lists(items: pa.Array, bounds: list[int]) -> list[bytes]:
    numbers = [_varint(value & 0xFFFF_FFFF_FFFF_FFFF) for value in items.cast(pa.int64()).to_pylist()]
    return [
        _sized(_FIRST, b"".join(numbers[start:stop])) if stop > start else b""
        for start, stop in pairwise(bounds)
    ]


_LISTS: dict[str, Callable[[Any, list[int]], list[bytes]]] = {
    "bytes": _bytes_lists,
    "float": _float_lists,
    "int64": _int64_lists,
}


def _sized(field: bytes, value: bytes) -> bytes:
    return b"".join((field, _varint(len(value)), value))


def _varint(number: int) -> bytes:
    if number < 128:
        return _SMALL[number]
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


_SMALL = [bytes([number]) for number in range(128)]

"""Encode rows as ``tf.train.Example`` messages, directly in the Protocol Buffers wire format.

::

    Example   { Features features = 1; }
    Features  { map<string, Feature> feature = 1; }
    Feature   { oneof: BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; }
    *List     { repeated ... value = 1; }  numbers are packed

A null feature is omitted; an empty list is a list without values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.core.errors import PlanError

__all__ = ["encode_examples", "feature_kind"]

# protobuf tags of fields 1 to 3, length-delimited
_FIRST, _SECOND, _THIRD = b"\x0a", b"\x12", b"\x1a"
_FIELDS = {"bytes": _FIRST, "float": _SECOND, "int64": _THIRD}


def feature_kind(kind: pa.DataType) -> str | None:
    """``"bytes"``, ``"float"`` or ``"int64"``: the list that stores a type losslessly; None if none does."""
    types = pa.types
    if types.is_dictionary(kind):
        return feature_kind(kind.value_type)
    if types.is_float16(kind) or types.is_float32(kind):
        return "float"
    if types.is_boolean(kind) or (types.is_integer(kind) and kind != pa.uint64()):
        return "int64"
    texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    return "bytes" if types.is_fixed_size_binary(kind) or any(test(kind) for test in texts) else None


def encode_examples(table: pa.Table) -> list[bytes]:
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
    kind = feature_kind(items.type) or ""
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

"""Read the features of ``tf.train.Example`` as columns: protobuf parses messages, NumPy decodes numbers.

The messages are declared here, with one difference from TensorFlow's: the packed numbers of a list
are declared as bytes, which have the same wire format. Protobuf then returns them undecoded, and NumPy
decodes all numbers of a column in one vectorized pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
from numpy.typing import NDArray

from windrow.core.optional_dependencies import require
from windrow.core.text_types import offset_width
from windrow.io.catalog.value_sizes import is_list

_KINDS = {"bytes_list": pa.binary(), "float_list": pa.float32(), "int64_list": pa.int64()}

_VARINT_BYTES = 10


class FeatureError(ValueError):
    """A feature does not match its column."""


@cache
def load_example() -> Any:
    """Build the protobuf class that parses an example; a PlanError if protobuf is not installed."""
    require("google.protobuf", "tfrecords", "TFRecord")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    field_of = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="windrow_example.proto", package="windrow", syntax="proto3"
    )

    def declare(message: Any, name: str, number: int, kind: int, *, many: bool = False, of: str = "") -> Any:
        label = field_of.LABEL_REPEATED if many else field_of.LABEL_OPTIONAL
        return message.field.add(
            name=name, number=number, type=kind, label=label, type_name=f".windrow.{of}" if of else None
        )

    declare(file.message_type.add(name="List"), "value", 1, field_of.TYPE_BYTES, many=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(_KINDS, 1):
        declare(feature, name, number, field_of.TYPE_MESSAGE, of="List").oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    declare(entry, "key", 1, field_of.TYPE_STRING)
    declare(entry, "value", 2, field_of.TYPE_MESSAGE, of="Feature")
    declare(features, "feature", 1, field_of.TYPE_MESSAGE, many=True, of="Features.FeatureEntry")
    declare(file.message_type.add(name="Example"), "features", 1, field_of.TYPE_MESSAGE, of="Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("windrow.Example"))


@dataclass(eq=False)
class Feature:
    """The values of one feature over all examples; filled incrementally, and the only mutable class here.

    ``kind`` is the kind of list, empty until an example shows it; ``values``, (examples,), the packed
    numbers or the byte strings of each, empty where absent; ``absent`` the examples without it.
    """

    name: str
    kind: str = ""
    values: list[Any] = field(default_factory=list)
    absent: list[int] = field(default_factory=list)

    def add(self, message: Any) -> None:
        kind = message.WhichOneof("kind")
        if kind is None:
            self.skip()
            return
        if kind != self.kind:
            if self.kind:
                raise FeatureError(f"feature {self.name!r} is a {kind}, but a {self.kind} in other records")
            self.kind = kind
        stored = getattr(message, kind).value
        if kind == "bytes_list":
            self.values.append(list(stored))
        elif len(stored) == 1:
            self.values.append(stored[0])
        else:
            self.values.append(b"".join(stored) or _unpacked(kind, getattr(message, kind)))

    def skip(self) -> None:
        """Mark the next example as lacking this feature."""
        self.absent.append(len(self.values))
        self.values.append(())

    def decode(self) -> tuple[NDArray[np.int64], pa.Array]:
        """(examples,) the number of values of each, and the concatenated values."""
        if self.kind == "bytes_list":
            lengths = np.fromiter(map(len, self.values), np.int64, len(self.values))
            return lengths, pa.array([value for values in self.values for value in values], pa.binary())
        packed = [value or b"" for value in self.values]
        sizes = np.fromiter(map(len, packed), np.int64, len(packed))
        if self.kind == "int64_list":
            return _decode_integers(self.name, b"".join(packed), sizes)
        if (sizes % 4).any():
            raise FeatureError(f"feature {self.name!r} has truncated floats")
        return sizes // 4, pa.array(np.frombuffer(b"".join(packed), "<f4"))


def gather_features(
    records: Sequence[bytes], kinds: Mapping[str, str] | None, *, complete: bool
) -> dict[str, Feature]:
    """Collect the features of serialized examples.

    ``kinds`` are the features to collect, and the kind of each; None collects all. ``complete`` makes any
    other feature an error.
    """
    from google.protobuf.message import DecodeError

    example = load_example()
    found = {name: Feature(name, kind) for name, kind in (kinds or {}).items()}
    collected = list(found.values())
    for number, record in enumerate(records):
        try:
            features = example.FromString(record).features.feature
        except DecodeError as error:
            raise FeatureError(f"record {number} is not an example: {error}") from error
        present = 0
        for feature in collected:
            if feature.name in features:
                feature.add(features[feature.name])
                present += 1
            else:
                feature.skip()
        if len(features) == present or not (complete or kinds is None):
            continue
        for name in sorted(set(features) - set(found)):
            if kinds is not None:
                raise FeatureError(
                    f"feature {name!r} is missing from the beginning of every file: name it in features=, or "
                    f"exclude it with columns="
                )
            found[name] = Feature(name, values=[()] * number, absent=list(range(number)))
            found[name].add(features[name])
            collected.append(found[name])
    return found


def list_kind(column_type: pa.DataType) -> str | None:
    """The kind of list in a feature that stores a column type; None if there is none.

    >>> kinds = (pa.int8(), pa.list_(pa.float32(), 3), pa.string(), pa.date32())
    >>> tuple(map(list_kind, kinds))
    ('int64_list', 'float_list', 'bytes_list', None)
    """
    value = _value_type(column_type)
    if pt.is_null(value):
        return ""
    if pt.is_floating(value):
        return "float_list"
    if pt.is_integer(value) or pt.is_boolean(value):
        return "int64_list"
    return "bytes_list" if offset_width(value) else None


def infer_type(feature: Feature) -> pa.DataType:
    """Infer a scalar type if every present feature has exactly one value, else a list type."""
    if not feature.kind:
        return pa.null()
    lengths, values = feature.decode()
    single = (np.delete(lengths, feature.absent) == 1).all()
    return values.type if single else pa.list_(values.type)


def to_array(feature: Feature, column_type: pa.DataType) -> pa.Array:
    """Convert a feature to a column: one value per row, or a list."""
    if pt.is_null(column_type) or not feature.kind:
        return pa.nulls(len(feature.values), column_type)
    lengths, values = feature.decode()
    values = values.cast(_value_type(column_type))
    if isinstance(column_type, pa.FixedShapeTensorType):
        stored = _fixed_lists(feature, lengths, values, column_type.storage_type)
        return pa.ExtensionArray.from_storage(column_type, stored)
    if pt.is_fixed_size_list(column_type):
        return _fixed_lists(feature, lengths, values, column_type)
    if is_list(column_type):
        return _lists(feature, lengths, values, pt.is_large_list(column_type)).cast(column_type)
    return _single(feature, lengths, values)


def _single(feature: Feature, lengths: NDArray[np.int64], values: pa.Array) -> pa.Array:
    if (lengths == 1).all():
        return values
    _check_lengths(feature, np.flatnonzero(lengths > 1), lengths, "one value", "pa.list_(...)")
    places = np.cumsum(lengths) - 1
    return values.take(pa.array(places, mask=lengths == 0))


def _lists(feature: Feature, lengths: NDArray[np.int64], values: pa.Array, large: bool) -> pa.Array:
    kind: Any = pa.LargeListArray if large else pa.ListArray
    offsets = np.append(0, np.cumsum(lengths)).astype(np.int64 if large else np.int32)
    absent = np.zeros(len(lengths), np.bool_)
    absent[feature.absent] = True
    return kind.from_arrays(pa.array(offsets), values, mask=pa.array(absent) if absent.any() else None)


def _fixed_lists(feature: Feature, lengths: NDArray[np.int64], values: pa.Array, kind: Any) -> pa.Array:
    wrong = lengths != kind.list_size
    wrong[feature.absent] = False
    size = kind.list_size
    _check_lengths(feature, np.flatnonzero(wrong), lengths, f"{size} values", "pa.list_(...)")
    if feature.absent:
        return _lists(feature, lengths, values, large=False).cast(kind)
    return pa.FixedSizeListArray.from_arrays(values, type=kind)


def _check_lengths(
    feature: Feature, rows: NDArray[Any], lengths: NDArray[np.int64], expected: str, fix: str
) -> None:
    if len(rows):
        raise FeatureError(
            f"feature {feature.name!r} has {lengths[rows[0]]} values in record {rows[0]}, where its column has "
            f"{expected}: give features={{{feature.name!r}: {fix}}}"
        )


def _value_type(column_type: pa.DataType) -> pa.DataType:
    if isinstance(column_type, pa.FixedShapeTensorType):
        return column_type.value_type
    return column_type.value_type if is_list(column_type) else column_type


def _unpacked(kind: str, message: Any) -> bytes:
    """Convert the numbers of a list that was written unpacked, each with its own tag, to packed encoding."""
    stored = message.SerializeToString()
    if kind == "float_list":
        return b"".join(stored[at + 1 : at + 5] for at in range(0, len(stored), 5))
    packed, at = bytearray(), 0
    while at < len(stored):
        end = at + 1
        while stored[end] & 0x80:
            end += 1
        packed += stored[at + 1 : end + 1]
        at = end + 1
    return bytes(packed)


def _decode_integers(
    name: str, packed: bytes, sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], pa.Array]:
    """Decode varints: 7 bits per byte, least significant first; the last byte is below 128."""
    data = np.frombuffer(packed, np.uint8)
    last = data < 0x80
    ends = np.cumsum(sizes)
    if len(data) and not last[ends[sizes > 0] - 1].all():
        raise FeatureError(f"feature {name!r} has truncated integers")
    places = np.flatnonzero(last)
    lengths = np.diff(places, prepend=-1)
    if lengths.max(initial=0) > _VARINT_BYTES:
        raise FeatureError(f"feature {name!r} has integers of more than 64 bits")
    begins = places - lengths + 1
    values = (data[begins] & 0x7F).astype(np.uint64)
    for byte in range(1, int(lengths.max(initial=0))):
        longer = np.flatnonzero(lengths > byte)
        part = (data[begins[longer] + byte] & 0x7F).astype(np.uint64)
        values[longer] |= part << np.uint64(7 * byte)
    counts = np.diff(np.searchsorted(places, ends, side="left"), prepend=0) if len(sizes) else sizes
    return counts, pa.array(values.view(np.int64))

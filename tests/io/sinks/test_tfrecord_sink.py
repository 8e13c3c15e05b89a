"""TFRecord: Google's protobuf library parses the records, and their checksums are correct."""

from __future__ import annotations

import gzip
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.io.sinks.columns import OTHERS, TYPES, arrays, write_bytes
from tests.laws.examples import examples
from windrow.core.errors import PlanError
from windrow.io.sinks.tfrecord_sink import TfRecordSink

pytest.importorskip("google_crc32c")
pytest.importorskip("google.protobuf")

INTEGERS = [kind for kind in TYPES if pa.types.is_integer(kind) and kind != pa.uint64()]
TEXTS = [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)]
LISTS = [pa.list_(pa.int16()), pa.large_list(pa.string()), pa.list_(pa.float32(), 2)]
DICTIONARY = pa.dictionary(pa.int8(), pa.string())
CARRIED = [pa.bool_(), *INTEGERS, *TEXTS, *LISTS, DICTIONARY, pa.float16(), pa.float32()]


def example_class() -> Any:
    """``tf.train.Example``, built from its own definition rather than from this project's."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="example.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, kind in (("BytesList", "TYPE_BYTES"), ("FloatList", "TYPE_FLOAT"), ("Int64List", "TYPE_INT64")):
        file.message_type.add(name=name).field.add(
            name="value", number=1, label=kinds.LABEL_REPEATED, type=getattr(kinds, kind)
        )
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for at, name in enumerate(("Bytes", "Float", "Int64"), 1):
        feature.field.add(
            name=f"{name.lower()}_list",
            number=at,
            label=1,
            type=kinds.TYPE_MESSAGE,
            type_name=f".t.{name}List",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, label=1, type=kinds.TYPE_STRING)
    entry.field.add(name="value", number=2, label=1, type=kinds.TYPE_MESSAGE, type_name=".t.Feature")
    features.field.add(
        name="feature", number=1, label=3, type=kinds.TYPE_MESSAGE, type_name=".t.Features.FeatureEntry"
    )
    example = file.message_type.add(name="Example")
    example.field.add(name="features", number=1, label=1, type=kinds.TYPE_MESSAGE, type_name=".t.Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


EXAMPLE = example_class()


def records(data: bytes) -> list[bytes]:
    found, at = [], 0
    while at < len(data):
        (size,) = struct.unpack_from("<Q", data, at)
        assert struct.unpack_from("<I", data, at + 8)[0] == masked(data[at : at + 8])
        found.append(data[at + 12 : at + 12 + size])
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked(found[-1])
        at += size + 16
    return found


def masked(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def told(message: bytes) -> dict[str, list[Any]]:
    """A record's features as Python values; floats in hexadecimal, since NaN does not equal itself."""
    example = EXAMPLE.FromString(message)
    found = {}
    for name, feature in example.features.feature.items():
        values = getattr(feature, feature.WhichOneof("kind")).value
        found[name] = [value.hex() if isinstance(value, float) else value for value in values]
    return found


def expected(name: str, value: Any) -> list[Any]:
    values = value if isinstance(value, list) else [value]
    if "float" in name:
        return [float(np.float32(inner)).hex() for inner in values]
    return [_plain(inner) for inner in values]


def _plain(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value if isinstance(value, bytes) else int(value)


def _without_nulls(column: pa.Array) -> pa.Array:
    if not pa.types.is_list(column.type) and not pa.types.is_large_list(column.type):
        return column
    lists = [
        None if row is None else [value for value in row if value is not None] for row in column.to_pylist()
    ]
    return pa.array(lists, column.type)


@examples(12)
@given(data=st.data())
def test_protobuf_parses_the_written_values(data: st.DataObject) -> None:
    rows = data.draw(st.integers(0, 3))
    columns = {str(kind): _without_nulls(data.draw(arrays(kind, rows=rows))) for kind in CARRIED}
    table = pa.table({**columns, "row": pa.array(range(rows), pa.int64())})
    messages = records(write_bytes(TfRecordSink(), table))
    assert len(messages) == rows
    for message, row in zip(messages, table.to_pylist(), strict=True):
        assert told(message) == {
            name: expected(name, value) for name, value in row.items() if value is not None
        }


@pytest.mark.parametrize("kind", [*TYPES, *OTHERS], ids=str)
def test_types_that_an_example_cannot_hold_raise(kind: pa.DataType) -> None:
    schema = pa.schema([("good", pa.int8()), ("c", kind)])
    if kind in CARRIED:
        TfRecordSink().check(schema)
        return
    with pytest.raises(
        PlanError, match=r"TFRecord cannot carry every column: column 'c' is .*: .*(cast|make)"
    ):
        TfRecordSink().check(schema)


def test_nulls_in_lists_raise_and_files_are_compressed() -> None:
    with pytest.raises(PlanError, match="column 'c' has nulls in its lists"):
        write_bytes(TfRecordSink(), pa.table({"c": [[1, None]]}))
    table = pa.table({"c": range(5000)})
    assert gzip.decompress(write_bytes(TfRecordSink("gzip"), table)) == write_bytes(TfRecordSink(), table)
    assert TfRecordSink("gzip").suffix == ".tfrecord.gz"

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windrow.io.catalog.value_sizes import fixed_bits, leaf_types, offset_bytes


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        (pa.null(), 0),
        (pa.bool_(), 1),
        (pa.float16(), 16),
        (pa.date64(), 64),
        (pa.decimal256(40, 2), 256),
        (pa.binary(5), 40),
        (pa.list_(pa.bool_(), 3), 3),
        (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int16(), 2))]), 40),
        (pa.fixed_shape_tensor(pa.float32(), (2, 3)), 192),
        (pa.string(), None),
        (pa.list_(pa.int8()), None),
        (pa.list_(pa.string(), 2), None),
        (pa.struct([("a", pa.string())]), None),
        (pa.dictionary(pa.int8(), pa.int8()), None),
        (pa.map_(pa.int8(), pa.int8()), None),
    ],
)
def test_fixed_bits(kind: pa.DataType, bits: int | None) -> None:
    assert fixed_bits(kind) == bits


def test_leaves_are_in_parquet_order() -> None:
    kind = pa.struct(
        [
            ("a", pa.list_(pa.int8())),
            ("b", pa.map_(pa.string(), pa.struct([("x", pa.int16()), ("y", pa.bool_())]))),
            ("c", pa.list_(pa.float32(), 2)),
        ]
    )
    leaves = leaf_types(kind)
    assert leaves == [pa.int8(), pa.string(), pa.int16(), pa.bool_(), pa.float32()]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.schema([("s", kind)]).empty_table(), sink)
    stored = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    assert len(stored) == len(leaves)


def test_offset_bytes() -> None:
    assert [offset_bytes(kind) for kind in (pa.string(), pa.large_list(pa.int8()), pa.int8())] == [4, 8, 0]
    assert offset_bytes(pa.dictionary(pa.int16(), pa.string())) == 2

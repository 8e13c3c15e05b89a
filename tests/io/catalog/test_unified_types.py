from __future__ import annotations

import pyarrow as pa
import pytest

from windrow.io.catalog.schemas import unify_types

TEXT_CODES = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize(
    ("left", "right", "unified"),
    [
        (pa.null(), TEXT_CODES, TEXT_CODES),
        (pa.int8(), pa.int64(), pa.int64()),
        (pa.uint8(), pa.uint16(), pa.uint16()),
        (pa.uint32(), pa.int8(), pa.int64()),
        (pa.uint64(), pa.int8(), None),
        (pa.float16(), pa.float32(), pa.float32()),
        (pa.int64(), pa.float64(), pa.float64()),
        (pa.int64(), pa.float32(), pa.float64()),
        (pa.uint16(), pa.float32(), pa.float32()),
        (pa.int32(), pa.float16(), pa.float64()),
        (pa.int8(), pa.float16(), pa.float16()),
        (pa.uint64(), pa.float16(), pa.float64()),
        (pa.bool_(), pa.int8(), None),
        (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("ns")),
        (pa.timestamp("s", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "UTC")),
        (pa.timestamp("s", "UTC"), pa.timestamp("s"), None),
        (pa.time32("ms"), pa.time64("us"), pa.time64("us")),
        (pa.time32("s"), pa.time32("ms"), pa.time32("ms")),
        (pa.duration("ms"), pa.duration("us"), pa.duration("us")),
        (pa.date32(), pa.timestamp("s"), None),
        (pa.string(), pa.large_string(), pa.large_string()),
        (pa.binary(), pa.large_binary(), pa.large_binary()),
        (pa.string(), pa.binary(), None),
        (TEXT_CODES, pa.string(), pa.string()),
        (TEXT_CODES, pa.large_string(), pa.large_string()),
        (TEXT_CODES, pa.int8(), None),
        (TEXT_CODES, pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.string())),
        (TEXT_CODES, pa.dictionary(pa.int8(), pa.string(), ordered=True), None),
        (pa.list_(pa.int8()), pa.large_list(pa.int32()), pa.large_list(pa.int32())),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int16(), 2), pa.list_(pa.int16(), 2)),
        (pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3), None),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.int64())]), pa.struct([("a", pa.int64())])),
        (pa.struct([("a", pa.int8())]), pa.struct([("a", pa.string())]), None),
        (pa.struct([("a", pa.int8()), ("a", pa.int8())]), pa.struct([("a", pa.int8())]), None),
        (pa.decimal128(5, 2), pa.decimal128(6, 2), pa.decimal128(6, 2)),
        (pa.decimal128(5, 4), pa.decimal128(6, 2), pa.decimal128(8, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 10), pa.decimal256(48, 10)),
        (pa.decimal256(5, 2), pa.decimal128(5, 2), pa.decimal256(5, 2)),
        (pa.decimal256(76, 0), pa.decimal128(5, 2), None),
        (pa.decimal128(5, 2), pa.float64(), None),
        (pa.string_view(), pa.string(), pa.large_string()),
        (pa.binary_view(), pa.binary(), pa.large_binary()),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.string(), pa.int64()), pa.map_(pa.string(), pa.int64())),
        (pa.map_(pa.string(), pa.int8()), pa.map_(pa.int8(), pa.int8()), None),
        (pa.bool8(), pa.int8(), pa.int8()),
        (pa.bool8(), pa.opaque(pa.int8(), "x", "y"), None),
    ],
)
def test_types_are_unified_without_loss(
    left: pa.DataType, right: pa.DataType, unified: pa.DataType | None
) -> None:
    assert unify_types(left, right) == unified
    assert unify_types(right, left) == unified


def test_structs_have_the_fields_of_both_and_those_that_one_lacks_are_nullable() -> None:
    one = pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.int8(), nullable=False)])
    other = pa.struct([pa.field("c", pa.string()), pa.field("b", pa.float64(), nullable=False)])
    assert unify_types(pa.list_(one), pa.list_(other)) == pa.list_(
        pa.struct([("a", pa.int8()), pa.field("b", pa.float64(), nullable=False), ("c", pa.string())])
    )

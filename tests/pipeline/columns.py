"""Columns of every type, for the tests of batches."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pyarrow as pa

UTC = datetime.timezone.utc
NUMBER_TYPES = [
    *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
    *(pa.float16(), pa.float32(), pa.float64()),
    pa.bool_(),
]
TIME_TYPES = [
    *(pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")),
    pa.timestamp("us", "Europe/Paris"),
    pa.date32(),
    pa.date64(),
    pa.duration("ms"),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")),
]
OBJECT_TYPES = [
    *(pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary(3)),
    *(pa.decimal128(9, 2), pa.decimal256(40, 3)),
    pa.dictionary(pa.int8(), pa.string()),
    pa.dictionary(pa.int32(), pa.large_string()),
    pa.list_(pa.int32()),
    pa.large_list(pa.string()),
    pa.struct([pa.field("x", pa.int32()), pa.field("y", pa.string())]),
    pa.map_(pa.string(), pa.int64()),
    pa.null(),
]
SHAPED_TYPES = [
    pa.list_(pa.float32(), 3),
    pa.list_(pa.list_(pa.int16(), 2), 2),
    pa.fixed_shape_tensor(pa.int32(), [2, 3]),
    pa.fixed_shape_tensor(pa.float64(), [2, 3], permutation=[1, 0]),
    pa.fixed_shape_tensor(pa.uint8(), [2, 3, 4], permutation=[2, 0, 1]),
]
ALL_TYPES = [*NUMBER_TYPES, *TIME_TYPES, *OBJECT_TYPES, *SHAPED_TYPES, pa.dictionary(pa.int8(), pa.int64())]


def make_array(arrow_type: pa.DataType, rows: int, *, nulls: bool, start: int = 0) -> pa.Array:
    """Make ``rows`` values that differ; every third is null where ``nulls``."""
    missing = [nulls and i % 3 == 1 for i in range(rows)]
    if isinstance(arrow_type, pa.FixedShapeTensorType):
        storage = make_array(arrow_type.storage_type, rows, nulls=nulls, start=start)
        return pa.ExtensionArray.from_storage(arrow_type, storage)
    if pa.types.is_dictionary(arrow_type):
        return (
            make_array(arrow_type.value_type, rows, nulls=nulls, start=start)
            .dictionary_encode()
            .cast(arrow_type)
        )
    values = [None if gap else make_value(arrow_type, start + i) for i, gap in enumerate(missing)]
    if pa.types.is_temporal(arrow_type):
        width = pa.int32() if arrow_type.bit_width == 32 else pa.int64()
        return pa.array(values, width).cast(arrow_type)
    return pa.array(values, arrow_type)


def make_value(arrow_type: pa.DataType, i: int) -> Any:
    """Make the i-th value of a type (times as integers)."""
    if pa.types.is_null(arrow_type):
        return None
    if pa.types.is_boolean(arrow_type):
        return i % 2 == 0
    if pa.types.is_float16(arrow_type):
        return np.float16(i % 100 + 0.5)
    if pa.types.is_floating(arrow_type):
        return i + 0.5
    if arrow_type == pa.date64():
        return 86_400_000 * i
    if pa.types.is_integer(arrow_type):
        return 2**62 + i if arrow_type.bit_width == 64 else i % 100
    if pa.types.is_temporal(arrow_type):
        return i
    if pa.types.is_string(arrow_type) or pa.types.is_large_string(arrow_type):
        return f"row {i % 50}"
    if pa.types.is_fixed_size_binary(arrow_type):
        return f"{i % 1000:03}".encode()
    if pa.types.is_binary(arrow_type) or pa.types.is_large_binary(arrow_type):
        return b"\x00\xff" * (i % 4)
    if pa.types.is_decimal(arrow_type):
        return decimal.Decimal(i).scaleb(-2)
    return _make_nested(arrow_type, i)


def _make_nested(arrow_type: pa.DataType, i: int) -> Any:
    if pa.types.is_struct(arrow_type):
        return {field.name: make_value(field.type, i) for field in arrow_type}
    if pa.types.is_map(arrow_type):
        return [(f"key {j}", i * j) for j in range(i % 3)]
    size = arrow_type.list_size if pa.types.is_fixed_size_list(arrow_type) else i % 4
    return [make_value(arrow_type.value_type, 10 * i + j) for j in range(size)]


@st.composite
def arrays(draw: st.DrawFn, types: list[pa.DataType] = ALL_TYPES, nulls: bool | None = None) -> pa.Array:
    """Draw arrays, also sliced ones, whose buffers begin before them."""
    arrow_type = draw(st.sampled_from(types))
    rows, before, after = draw(st.integers(0, 20)), draw(st.integers(0, 11)), draw(st.integers(0, 3))
    with_nulls = draw(st.booleans()) if nulls is None else nulls
    whole = make_array(arrow_type, before + rows + after, nulls=with_nulls, start=draw(st.integers(0, 50)))
    return whole.slice(before, rows)


def batch_of(**columns: Any) -> pa.RecordBatch:
    """Make a batch of lists or Arrow arrays."""
    return pa.RecordBatch.from_pydict(columns)

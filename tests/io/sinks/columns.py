"""Columns of every type, with values that are hard to store, and helpers to write and compare them."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import math
from typing import Any, BinaryIO, cast

import numpy as np
import pyarrow as pa
from hypothesis import strategies as st

from windrow.io.sinks.sink import Sink
from windrow.io.sinks.write_files import DigestingStream

_DATES = st.dates(dt.date(1, 1, 2), dt.date(9999, 12, 30))
_MOMENTS = st.datetimes(dt.datetime(1700, 1, 1), dt.datetime(2200, 1, 1))
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from(
    ["", '"', "a,b", "\\", "\x00\x01", "\r\n", "é\u2028😀", "null", "NaN"]
)


def _ints(bits: int, signed: bool) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.sampled_from([low, high, 0])


def _decimals(precision: int, scale: int) -> st.SearchStrategy[decimal.Decimal]:
    limit = 10**precision - 1
    return st.integers(-limit, limit).map(
        lambda number: decimal.Decimal(number).scaleb(-scale, decimal.Context(prec=80))
    )


def _moments(unit: str) -> st.SearchStrategy[int]:
    per = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}[unit]
    return st.integers(-(2**33) * per, 2**33 * per).filter(lambda number: abs(number) < 2**62)


SCALARS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    **{getattr(pa, f"int{bits}")(): _ints(bits, True) for bits in (8, 16, 32, 64)},
    **{getattr(pa, f"uint{bits}")(): _ints(bits, False) for bits in (8, 16, 32, 64)},
    pa.float16(): st.floats(width=16).map(np.float16),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(20, 3): _decimals(20, 3),
    pa.decimal256(50, 3): _decimals(50, 3),
    pa.date32(): _DATES,
    pa.date64(): _DATES,
    pa.time32("s"): st.integers(0, 86_399),
    pa.time64("ns"): st.integers(0, 86_399 * 10**9),
    pa.timestamp("s"): _moments("s"),
    pa.timestamp("ns"): _moments("ns"),
    pa.timestamp("us", "UTC"): _moments("us"),
    pa.timestamp("ms", "Europe/Berlin"): _moments("ms"),
    pa.duration("us"): st.integers(-(2**60), 2**60),
    pa.string(): _TEXTS,
    pa.large_string(): _TEXTS,
    pa.string_view(): _TEXTS,
    pa.binary(): st.binary(max_size=8),
    pa.large_binary(): st.binary(max_size=8),
    pa.binary(3): st.binary(min_size=3, max_size=3),
    pa.dictionary(pa.int8(), pa.string()): _TEXTS,
}
TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    **SCALARS,
    pa.null(): st.none(),
    pa.list_(pa.int16()): st.lists(st.none() | _ints(16, True), max_size=3),
    pa.large_list(pa.string()): st.lists(st.none() | _TEXTS, max_size=3),
    pa.list_(pa.float32(), 2): st.lists(st.floats(width=32), min_size=2, max_size=2),
    pa.list_(pa.list_(pa.int64())): st.lists(st.lists(_ints(64, True), max_size=2), max_size=2),
    pa.struct([("a", pa.int8()), ("b c", pa.list_(pa.string()))]): st.fixed_dictionaries(
        {"a": st.none() | _ints(8, True), "b c": st.none() | st.lists(_TEXTS, max_size=2)}
    ),
    pa.map_(pa.string(), pa.int32()): st.lists(st.tuples(_TEXTS, _ints(32, True)), max_size=2),
}
# types without generated values, for the tests of unsupported types
OTHERS = [
    pa.month_day_nano_interval(),
    pa.binary_view(),
    pa.run_end_encoded(pa.int32(), pa.int64()),
    pa.dense_union([pa.field("a", pa.int32())]),
    pa.uuid(),
]


@st.composite
def arrays(draw: st.DrawFn, kind: pa.DataType, *, rows: int, nulls: bool = True) -> pa.Array:
    """An array, sometimes a slice of a longer one."""
    values = st.none() | TYPES[kind] if nulls else TYPES[kind]
    skipped = draw(st.integers(0, 2))
    drawn = draw(st.lists(values, min_size=rows + skipped, max_size=rows + skipped))
    return pa.array(drawn, kind).slice(skipped)


def csv_type(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's CSV reader returns for a type; a cast restores the original."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    # before pyarrow 21, the reader does not return durations
    return pa.int64() if pa.types.is_duration(kind) else kind


def write_bytes(sink: Sink, *tables: pa.Table, label: str = "00000") -> bytes:
    """The content of the file that a sink writes for these tables."""
    file = io.BytesIO()
    sink.check(tables[0].schema)
    sink.write(tables, cast("BinaryIO", DigestingStream(cast("BinaryIO", file))), label)
    return file.getvalue()


def same(left: pa.ChunkedArray | pa.Array, right: pa.ChunkedArray | pa.Array) -> bool:
    """Whether two columns have one type and equal values; NaN equals NaN, and -0.0 differs from 0.0."""
    return bool(left.type == right.type) and _told(left.to_pylist()) == _told(right.to_pylist())


def _told(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_told(inner) for inner in value]
    if isinstance(value, dict):
        return {key: _told(inner) for key, inner in value.items()}
    # before pyarrow 21, half floats become NumPy's
    if isinstance(value, (float, np.float16)):
        return "nan" if math.isnan(value) else float(value).hex()
    return value

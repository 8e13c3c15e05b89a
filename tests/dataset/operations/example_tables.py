"""Tables with every type that rows can be sorted and grouped by, and rows in a form that compares NaN as equal."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

import windrow

MOMENTS = [datetime.datetime(2020, 1, day) for day in (1, 2, 3)]
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "integer": (pa.int16(), [-3, 0, 5, None]),
    "float": (pa.float64(), [-1.5, 0.0, -0.0, 2.5, float("nan"), float("inf"), None]),
    "text": (pa.string(), ["", "a", "ab", "Ä", None]),
    "bytes": (pa.large_binary(), [b"", b"\x00", b"z", None]),
    "decimal": (pa.decimal128(6, 2), [decimal.Decimal("1.10"), decimal.Decimal("-2.00"), None]),
    "moment": (pa.timestamp("us"), [*MOMENTS, None]),
    "day": (pa.date32(), [moment.date() for moment in MOMENTS]),
    "flag": (pa.bool_(), [True, False, None]),
    "category": (pa.dictionary(pa.int8(), pa.string()), ["x", "y", None]),
    "nothing": (pa.null(), [None]),
}


@st.composite
def tables(draw: st.DrawFn, max_rows: int = 60) -> pa.Table:
    """Return rows of every type, of few values each, with a unique column ``row`` and numbers ``x``."""
    count = draw(st.integers(0, max_rows))
    columns: dict[str, Any] = {"row": pa.array(range(count), pa.int64())}
    for name, (kind, values) in VALUES.items():
        drawn = draw(st.lists(st.sampled_from(values), min_size=count, max_size=count))
        columns[name] = pa.array(drawn, kind)
    numbers = st.none() | st.floats(-1e6, 1e6, allow_nan=False)
    columns["x"] = pa.array(draw(st.lists(numbers, min_size=count, max_size=count)), pa.float64())
    return pa.table(columns)


def in_blocks(table: pa.Table, block_bytes: int) -> windrow.Dataset:
    """Return a dataset of the rows in blocks of about a size, on threads."""
    return windrow.from_arrow(table, target_block_bytes=block_bytes).options(
        executor="threads", progress=False
    )


def plain(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that can be compared with ==."""
    return [{name: _plain(value) for name, value in row.items()} for row in rows]


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        return "nan" if value != value else float(f"{value:.9g}") + 0.0
    return value

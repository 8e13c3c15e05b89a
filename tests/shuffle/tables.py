"""Random Arrow tables of every type that the shuffle supports, as slices in several chunks."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from windrow.shuffle.kernels.fixed_width import Validity, column_widths, fixed_width_bytes, wrap_values
from windrow.shuffle.kernels.map_output import MapOutput

_TEXTS = ["", "a", "wind", "row" * 9, "ünïcode"]
_DAYS = [dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1815, 6, 18)]
_TIMES = [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 12, 30, 1), dt.datetime(1815, 6, 18, 11)]
_POINT = pa.struct([("x", pa.int32()), ("name", pa.string())])
_PAIRS = pa.list_(pa.field("pair", pa.list_(pa.int8(), 2), nullable=False), 2)

# Each type with some of its values.
KINDS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [-128, 0, 5]),
    "uint16": (pa.uint16(), [0, 65535, 77]),
    "int32": (pa.int32(), [-(2**31), 0, 9]),
    "int64": (pa.int64(), [-(2**63), 2**63 - 1, 3]),
    "uint64": (pa.uint64(), [0, 2**64 - 1, 3]),
    "float16": (pa.float16(), [np.float16(0.5), np.float16(-2), np.float16(7)]),
    "float32": (pa.float32(), [0.5, -0.25, 1e30]),
    "float64": (pa.float64(), [0.1, -1e300, 4.0]),
    "bool": (pa.bool_(), [True, False]),
    "date32": (pa.date32(), _DAYS),
    "date64": (pa.date64(), _DAYS),
    "time32": (pa.time32("s"), [dt.time(1, 2, 3), dt.time(23, 59)]),
    "time64": (pa.time64("us"), [dt.time(1, 2, 3, 4), dt.time(23, 59)]),
    "timestamp": (pa.timestamp("us"), _TIMES),
    "timestamp_tz": (
        pa.timestamp("ms", tz="Europe/Paris"),
        [t.replace(tzinfo=dt.timezone.utc) for t in _TIMES],
    ),
    "duration": (pa.duration("us"), [dt.timedelta(0), dt.timedelta(days=-3, microseconds=5)]),
    "decimal128": (pa.decimal128(20, 2), [Decimal("1.50"), Decimal("-99999999.99")]),
    "decimal256": (pa.decimal256(50, 3), [Decimal("1.500"), Decimal("-99999999.999")]),
    "fixed_binary": (pa.binary(5), [b"abcde", b"\0\0\0\0\0", b"zzzzz"]),
    "fixed_binary_wide": (pa.binary(64), [b"abcdefgh" * 8, b"12345678" * 8]),
    "fixed_binary_8": (pa.binary(8), [b"abcdefgh", b"12345678"]),
    "string": (pa.string(), _TEXTS),
    "large_string": (pa.large_string(), _TEXTS),
    "string_view": (pa.string_view(), [*_TEXTS, "longer than twelve bytes"]),
    "binary": (pa.binary(), [t.encode() for t in _TEXTS]),
    "large_binary": (pa.large_binary(), [t.encode() for t in _TEXTS]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), _TEXTS),
    "list": (pa.list_(pa.int64()), [[], [1], [2, None, 4]]),
    "large_list": (pa.large_list(pa.string()), [[], ["a"], ["b", None, "dd"]]),
    "list_of_views": (pa.list_(pa.string_view()), [[], ["longer than twelve bytes"], ["b", None]]),
    "fixed_list": (pa.list_(pa.float32(), 3), [[1.0, 2.0, 3.0], [0.5, 0.25, 0.0]]),
    "fixed_list_wide": (pa.list_(pa.float32(), 20), [[x / 2] * 19 + [x] for x in (1.0, 2.0, 3.0)]),
    "fixed_list_bool": (pa.list_(pa.bool_(), 3), [[True, False, True], [False, False, True]]),
    "fixed_list_nulls": (pa.list_(pa.int16(), 2), [[1, None], [2, 3]]),
    "fixed_list_deep": (pa.list_(pa.list_(pa.int8(), 2), 2), [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]),
    "fixed_list_text": (pa.list_(pa.string(), 2), [["a", "b"], ["", "dd"]]),
    "struct": (_POINT, [{"x": 1, "name": "a"}, {"x": None, "name": ""}]),
    "struct_with_view": (
        pa.struct([("text", pa.string_view()), ("pairs", _PAIRS)]),
        [{"text": "longer than twelve bytes", "pairs": [[1, 2], [3, 4]]}, {"text": None, "pairs": None}],
    ),
    "map": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1)], [("b", 2), ("c", None)]]),
    "null": (pa.null(), [None]),
    "tensor": (pa.fixed_shape_tensor(pa.int32(), [2, 2]), [[1, 2, 3, 4], [5, 6, 7, 8]]),
}


def make_column(kind: str, rows: int, rng: np.random.Generator, nulls: bool) -> pa.ChunkedArray:
    """Make rows of a type, as one to three slices of larger arrays."""
    of_type, values = KINDS[kind]
    chunks: list[pa.Array] = []
    left, most = rows, int(rng.integers(1, 4))
    while left or not chunks:
        length = left if len(chunks) + 1 == most else int(rng.integers(0, left + 1))
        before, after = (int(n) for n in rng.integers(0, 12, 2))
        cells = [values[i] for i in rng.integers(0, len(values), before + length + after)]
        cells = [None if nulls and rng.random() < 0.3 else cell for cell in cells]
        chunks.append(make_array(of_type, cells).slice(before, length))
        left -= length
    return pa.chunked_array(chunks, type=of_type)


def make_array(of_type: pa.DataType, cells: list[Any]) -> pa.Array:
    """Make an array of Python values; a dictionary holds only values that occur, in order of occurrence."""
    if isinstance(of_type, pa.BaseExtensionType):
        return of_type.wrap_array(pa.array(cells, of_type.storage_type))
    return pa.array(cells, of_type)


def contents_of(array: pa.Array) -> list[bytes | None]:
    """All bytes of an array's buffers: also of values below nulls, which no comparison of Arrow looks at."""
    return [None if each is None else each.to_pybytes() for each in array.buffers()]


def make_table(kinds: list[str], rows: int, rng: np.random.Generator, nulls: list[bool]) -> pa.Table:
    """Make a table with columns of the given kinds; without columns it still has rows."""
    if not kinds:
        return pa.table({"rows": pa.nulls(rows)}).select([])
    fields = [pa.field(f"{i}-{kind}", KINDS[kind][0]) for i, kind in enumerate(kinds)]
    columns = [
        make_column(kind, rows, rng, with_nulls) for kind, with_nulls in zip(kinds, nulls, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields, metadata={"made": "for tests"}))


def _validity(map_output: MapOutput, number: int) -> Validity | None:
    bits = map_output.validity.get(number)
    if bits is None:
        return None
    return Validity(
        bits,
        map_output.num_rows - int(np.unpackbits(bits, count=map_output.num_rows, bitorder="little").sum()),
    )


def rows_of(map_output: MapOutput) -> pa.RecordBatch:
    """Return the rows of a map output as an Arrow batch, grouped by run."""
    schema = map_output.schema
    columns = dict(zip(column_widths(schema).others, map_output.others.columns, strict=True))
    for at, number in enumerate(column_widths(schema).fixed):
        kind = schema.field(number).type
        values = map_output.values_of(at, fixed_width_bytes(kind), slice(0, map_output.num_rows))
        columns[number] = wrap_values(values, kind, _validity(map_output, number))
    return pa.RecordBatch.from_arrays([columns[i] for i in sorted(columns)], schema=schema)

"""Write JSON lines: one object per row, with every column in each; the text is made column by column."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

import pyarrow as pa

from windrow.io.sinks.sink import CompressedSink, check_types, compressed, rows_within

# limits of the rows that are converted to text together
_BATCH_BYTES = 8 * 2**20
_BATCH_ROWS = 65_536
_CONTROLS = "".join(map(chr, range(32)))


@dataclass(frozen=True)
class JsonSink(CompressedSink):
    """Writes JSON lines; see ``windrow.io.sinks.sink.Sink``."""

    name: ClassVar[str] = "JSON"
    extension: ClassVar[str] = ".jsonl"

    def check(self, schema: pa.Schema) -> None:
        check_types(self.name, schema, json_fix)

    def write(self, tables: Iterable[pa.Table], stream: BinaryIO, label: str) -> None:
        with compressed(stream, self.compression) as inner:
            for table in tables:
                rows = min(_BATCH_ROWS, rows_within(table, _BATCH_BYTES))
                for batch in table.to_batches(max_chunksize=rows):
                    inner.write(_bytes_of(_json_lines(batch)))


def _bytes_of(texts: Any) -> Any:
    """The concatenated texts: the values buffer, without a copy."""
    _, offsets, values = texts.buffers()
    if values is None or not len(texts):
        return b""
    bounds = memoryview(offsets).cast("q")
    first, last = bounds[texts.offset], bounds[texts.offset + len(texts)]
    return values.slice(first, last - first)


def json_fix(kind: pa.DataType) -> str | None:
    """How to fix a type that JSON cannot represent; None if it can."""
    types = pa.types
    if types.is_dictionary(kind):
        return json_fix(kind.value_type)
    if types.is_map(kind):
        return "make it a list of structs of key and value"
    if types.is_struct(kind):
        return next(filter(None, (json_fix(kind.field(at).type) for at in range(kind.num_fields))), None)
    lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(test(kind) for test in lists):
        return json_fix(kind.value_type)
    tests = (
        *(types.is_null, types.is_boolean, types.is_integer, types.is_float32, types.is_float64),
        *(types.is_decimal128, types.is_decimal256, types.is_date32, types.is_timestamp),
        *(types.is_string, types.is_large_string, types.is_string_view),
    )
    if any(test(kind) for test in tests):
        return None
    if types.is_float16(kind):
        return "cast it to pa.float32()"
    return "cast it to pa.string() or an integer, or write Parquet or Arrow"


def _json_lines(batch: pa.RecordBatch) -> pa.Array:
    """(rows,) each row as a JSON object and a newline."""
    fields = [
        (name, json_texts(column)) for name, column in zip(batch.schema.names, batch.columns, strict=True)
    ]
    return _objects(fields, batch.num_rows, "\n")


def json_texts(array: pa.Array) -> pa.Array:
    """(rows,) each value as JSON, ``null`` for null; lossless, as large strings.

    Dates and times are ISO 8601 and decimals are strings. Non-finite floats are ``NaN``,
    ``Infinity`` and ``-Infinity``, as Python and Arrow read them.
    """
    kind = array.type
    if pa.types.is_dictionary(kind):
        return json_texts(array.dictionary_decode())
    if pa.types.is_struct(kind):
        texts = _objects(_children(array), len(array), "")
    elif pa.types.is_nested(kind):
        texts = _arrays(array)
    elif pa.types.is_floating(kind):
        texts = _floats(array)
    elif pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_null(kind):
        texts = array.cast(pa.large_string())
    else:
        if pa.types.is_timestamp(kind) and kind.tz:
            # historical zone offsets have seconds, which ISO 8601 text cannot express
            array = array.cast(pa.timestamp(kind.unit, "UTC"))
        texts = _quoted(array.cast(pa.large_string()))
    return _null_where(array, texts)


def _null_where(array: pa.Array, texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    if not array.null_count:
        return texts
    return pc.if_else(array.is_null(), _text("null"), texts)


def _text(text: str) -> Any:
    return pa.scalar(text, pa.large_string())


def _children(array: pa.StructArray) -> list[tuple[str, pa.Array]]:
    names = [array.type.field(at).name for at in range(array.type.num_fields)]
    return [(name, json_texts(child)) for name, child in zip(names, array.flatten(), strict=True)]


def _objects(fields: list[tuple[str, pa.Array]], rows: int, end: str) -> pa.Array:
    import pyarrow.compute as pc

    if not fields:
        return pa.repeat(_text(f"{{}}{end}"), rows)
    parts: list[Any] = []
    for at, (name, texts) in enumerate(fields):
        parts += [_text(f"{',' if at else '{'}{json.dumps(name, ensure_ascii=False)}:"), texts]
    return pc.binary_join_element_wise(*parts, _text(f"}}{end}"), _text(""))


def _arrays(array: pa.Array) -> pa.Array:
    """Lists of every kind: convert all items at once, then join them per list."""
    import pyarrow.compute as pc

    lengths = pc.list_value_length(array).fill_null(0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    lists = pa.LargeListArray.from_arrays(offsets, json_texts(pc.list_flatten(array)))
    return pc.binary_join_element_wise(_text("["), pc.binary_join(lists, _text(",")), _text("]"), _text(""))


def _floats(array: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    texts = array.cast(pa.large_string())
    if pc.all(pc.is_finite(array)).as_py() is not False:
        return texts
    for arrow, ours in (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity")):
        texts = pc.if_else(pc.equal(texts, _text(arrow)), _text(ours), texts)
    return texts


def _quoted(texts: pa.Array) -> pa.Array:
    import pyarrow.compute as pc

    texts = pc.replace_substring(texts, "\\", "\\\\")
    texts = pc.replace_substring(texts, '"', '\\"')
    if pc.any(pc.match_substring_regex(texts, r"[\x00-\x1f]")).as_py():
        for control in _CONTROLS:
            texts = pc.replace_substring(texts, control, json.dumps(control)[1:-1])
    return pc.binary_join_element_wise(_text('"'), texts, _text('"'), _text(""))

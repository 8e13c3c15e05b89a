"""Convert Arrow arrays to JSON text, vectorized over whole columns."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

__all__ = ["json_lines", "json_texts"]

_CONTROLS = "".join(map(chr, range(32)))


def json_lines(batch: pa.RecordBatch) -> pa.Array:
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

"""Parquet, Arrow IPC, CSV and JSON lines: every type is read back unchanged, or raises an error."""

from __future__ import annotations

import gzip
import io
import json
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.io.sinks.columns import OTHERS, TYPES, arrays, csv_type, same, write_bytes
from tests.laws.examples import examples
from tests.library_versions import ARROW, parquet_stores_nulls
from windrow.core.errors import PlanError
from windrow.io.sinks.arrow_sinks import CsvSink, IpcSink, ParquetSink
from windrow.io.sinks.json_sink import JsonSink
from windrow.io.sinks.sink import Sink


def read_parquet(data: bytes, schema: pa.Schema) -> pa.Table:
    return pq.read_table(io.BytesIO(data)).cast(schema)


def read_ipc(data: bytes, schema: pa.Schema) -> pa.Table:
    table = pa.ipc.open_file(io.BytesIO(data)).read_all()
    assert table.schema == schema
    return table


def read_csv(data: bytes, schema: pa.Schema) -> pa.Table:
    return pa_csv.read_csv(
        io.BytesIO(data),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True),
        convert_options=pa_csv.ConvertOptions(
            column_types={field.name: csv_type(field.type) for field in schema},
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        ),
    ).cast(schema)


def read_json(data: bytes, schema: pa.Schema) -> pa.Table:
    if not data:
        return schema.empty_table()
    types = pa.schema([(field.name, _json_type(field.type)) for field in schema])
    options = pa_json.ParseOptions(explicit_schema=types, unexpected_field_behavior="error")
    return pa_json.read_json(io.BytesIO(data), parse_options=options).select(schema.names).cast(schema)


def _json_type(kind: pa.DataType) -> pa.DataType:
    """The type that Arrow's JSON reader can return for a type; a cast restores the original."""
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if pa.types.is_date32(kind):
        return pa.timestamp("s")
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_json_type(kind.value_type))
    return kind


ROUND_TRIPS: list[tuple[Sink, Any]] = [
    (ParquetSink(), read_parquet),
    (IpcSink(), read_ipc),
    (CsvSink(), read_csv),
    (JsonSink(), read_json),
]


def carries(sink: Sink, kind: pa.DataType) -> bool:
    """Whether a sink should support a type, specified independently of the code under test."""
    types = pa.types
    if sink.name == "Parquet" and kind in (pa.string_view(), pa.binary_view()):
        return ARROW >= 21
    if kind in OTHERS:
        return sink.name == "Arrow IPC" or (sink.name == "Parquet" and kind == pa.uuid())
    if sink.name == "CSV":
        plain = types.is_primitive(kind) or types.is_null(kind) or types.is_dictionary(kind) or _is_text(kind)
        return plain and kind not in (pa.float16(), pa.decimal256(50, 3), pa.string_view())
    if sink.name == "JSON":
        awkward = (pa.float16(), pa.date64(), pa.duration("us"))
        return not (kind in awkward or types.is_time(kind) or types.is_map(kind) or "binary" in str(kind))
    return True


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_decimal(kind))


@pytest.mark.parametrize(("sink", "read"), ROUND_TRIPS, ids=[sink.name for sink, _ in ROUND_TRIPS])
@examples(15)
@given(data=st.data())
def test_supported_types_are_read_back_unchanged(sink: Sink, read: Any, data: st.DataObject) -> None:
    kinds = [kind for kind in TYPES if carries(sink, kind)]
    rows = data.draw(st.integers(0, 4))
    columns = {}
    for kind in kinds:
        nulls = sink.name != "Parquet" or parquet_stores_nulls(kind)
        columns[str(kind)] = data.draw(arrays(kind, rows=rows, nulls=nulls))
    table = pa.table({**columns, "row": pa.array(range(rows), pa.int64())})
    cut = data.draw(st.integers(0, rows))
    found = read(write_bytes(sink, table.slice(0, cut), table.slice(cut)), table.schema)
    assert found.num_rows == rows
    assert [name for name in columns if not same(found.column(name), table.column(name))] == []


@pytest.mark.parametrize("kind", [*TYPES, *OTHERS], ids=str)
@pytest.mark.parametrize("sink", [sink for sink, _ in ROUND_TRIPS], ids=lambda sink: sink.name)
def test_types_that_a_sink_cannot_store_raise(sink: Sink, kind: pa.DataType) -> None:
    schema = pa.schema([("good", pa.int64()), ("c", kind)])
    if carries(sink, kind):
        sink.check(schema)
        return
    with pytest.raises(PlanError, match=rf"{sink.name} cannot carry every column: column 'c' is .*: .*[a-z]"):
        sink.check(schema)


@pytest.mark.skipif(ARROW >= 25, reason="pyarrow writes them")
def test_nulls_in_lists_of_a_fixed_size_raise() -> None:
    table = pa.table({"row": [0, 1], "x": pa.array([[1, 2], None], pa.list_(pa.int8(), 2))})
    with pytest.raises(PlanError, match=r"column 'x' has nulls in lists of a fixed size.*: fill them"):
        write_bytes(ParquetSink(), table)


def test_compressed_files_have_the_same_content() -> None:
    table = pa.table({"x": range(100), "y": ["a"] * 100})
    plain = write_bytes(CsvSink(), table)
    assert gzip.decompress(write_bytes(CsvSink("gzip"), table)) == plain
    for name in ("bz2", "zstd", "lz4"):
        data = write_bytes(CsvSink(name), table)
        assert pa.CompressedInputStream(pa.BufferReader(data), name).read() == plain
    lines = gzip.decompress(write_bytes(JsonSink("gzip"), table)).splitlines()
    assert [json.loads(line)["x"] for line in lines] == list(range(100))
    assert (CsvSink("zstd").suffix, JsonSink("gzip").suffix) == (".csv.zst", ".jsonl.gz")
    for sink in (ParquetSink("zstd"), ParquetSink(None), IpcSink("lz4"), IpcSink("zstd")):
        read = read_parquet if sink.name == "Parquet" else read_ipc
        assert read(write_bytes(sink, table), table.schema).equals(table)


@pytest.mark.parametrize("make", [ParquetSink, IpcSink, CsvSink, JsonSink])
def test_unknown_compressions_raise(make: Any) -> None:
    with pytest.raises(PlanError, match="compression='zip' must be one of"):
        make("zip")


def test_json_is_valid_for_the_standard_library() -> None:
    table = pa.table({"x": [1.5, None], 'q"': ["a\n", None], "l": [[{"k": True}], None]})
    lines = write_bytes(JsonSink(), table).splitlines()
    assert [json.loads(line) for line in lines] == table.to_pylist()


def test_single_null_column_in_csv_raises() -> None:
    with pytest.raises(PlanError, match=r"column 'x' has nulls and is alone.* fill them"):
        write_bytes(CsvSink(), pa.table({"x": [1, None]}))


def test_parquet_row_groups_are_limited_in_size() -> None:
    data = write_bytes(ParquetSink(), pa.table({"x": ["a" * 2**20] * 130}))
    assert [pq.ParquetFile(io.BytesIO(data)).metadata.row_group(at).num_rows for at in range(3)] == [
        63,
        63,
        4,
    ]


def test_different_dictionaries_are_unified() -> None:
    kind = pa.dictionary(pa.int8(), pa.string())
    tables = [pa.table({"x": pa.array(values, kind)}) for values in (["a", "b"], ["c"], ["b"])]
    assert read_ipc(write_bytes(IpcSink(), *tables), tables[0].schema)["x"].to_pylist() == [
        "a",
        "b",
        "c",
        "b",
    ]


@pytest.mark.parametrize(("sink", "read"), ROUND_TRIPS[2:], ids=["CSV", "JSON"])
def test_historical_utc_offsets_keep_their_seconds(sink: Sink, read: Any) -> None:
    """Berlin was 53 minutes and 28 seconds ahead of UTC, and offsets in text have no seconds."""
    moments = pa.array([-(2**32), 0], pa.timestamp("s", "Europe/Berlin"))
    table = pa.table({"t": moments, "row": [0, 1]})
    assert same(read(write_bytes(sink, table), table.schema)["t"], moments)

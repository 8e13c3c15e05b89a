"""read_avro: files of fastavro, the rows that fastavro reads of them, and files that it does not write."""

from __future__ import annotations

import datetime
import decimal
import io
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import all_rows
from tests.io.formats.shuffled_passes import check_passes
from tests.io.formats.stored import CountingStore, read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError
from windrow.io.formats import avro_format, row_group_format

fastavro = pytest.importorskip("fastavro")

_INTS, _LONGS = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
_TEXTS, _FLOATS = st.text("aé漢", max_size=4), st.floats(width=32, allow_nan=False)
_MOMENTS = st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2100, 1, 1))
_RECORD = {
    "type": "record",
    "name": "Part",
    "fields": [
        {"name": "a", "type": "int"},
        {"name": "b", "type": ["null", {"type": "map", "values": "long"}]},
    ],
}


def _logical(kind: str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": kind, "logicalType": name, **more}


def _milliseconds(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _utc(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(tzinfo=datetime.timezone.utc)


KINDS: dict[str, tuple[Any, pa.DataType, st.SearchStrategy[Any]]] = {
    "boolean": ("boolean", pa.bool_(), st.booleans()),
    "int": ("int", pa.int32(), _INTS),
    "long": ("long", pa.int64(), _LONGS),
    "float": ("float", pa.float32(), _FLOATS),
    "double": ("double", pa.float64(), st.floats(allow_nan=False)),
    "bytes": ("bytes", pa.binary(), st.binary(max_size=5)),
    "string": ("string", pa.string(), _TEXTS),
    "fixed": ({"type": "fixed", "name": "F", "size": 3}, pa.binary(3), st.binary(min_size=3, max_size=3)),
    "enum": ({"type": "enum", "name": "E", "symbols": ["X", "Y"]}, pa.string(), st.sampled_from("XY")),
    "uuid": (_logical("string", "uuid"), pa.string(), st.uuids()),
    "date": (_logical("int", "date"), pa.date32(), st.dates()),
    "time": (_logical("long", "time-micros"), pa.time64("us"), st.times()),
    "moment": (_logical("long", "timestamp-micros"), pa.timestamp("us", "UTC"), _MOMENTS.map(_utc)),
    "local": (_logical("long", "local-timestamp-millis"), pa.timestamp("ms"), _MOMENTS.map(_milliseconds)),
    "decimal": (
        _logical("bytes", "decimal", precision=38, scale=4),
        pa.decimal128(38, 4),
        st.integers(1 - 10**38, 10**38 - 1).map(lambda digits: decimal.Decimal(f"{digits}E-4")),
    ),
    "list": (
        {"type": "array", "items": ["null", _logical("bytes", "decimal", precision=4)]},
        pa.list_(pa.decimal128(4, 0)),
        st.lists(st.none() | st.integers(-9999, 9999).map(decimal.Decimal), max_size=3),
    ),
    "map": (
        {"type": "map", "values": "string"},
        pa.map_(pa.string(), pa.field("value", pa.string(), False)),
        st.dictionaries(_TEXTS, _TEXTS, max_size=2),
    ),
    "record": (
        _RECORD,
        pa.struct(
            [
                pa.field("a", pa.int32(), False),
                pa.field("b", pa.map_(pa.string(), pa.field("value", pa.int64(), False))),
            ]
        ),
        st.fixed_dictionaries({"a": _INTS, "b": st.none() | st.dictionaries(_TEXTS, _LONGS, max_size=2)}),
    ),
}


@st.composite
def files(draw: st.DrawFn) -> tuple[dict[str, Any], pa.Schema, list[dict[str, Any]]]:
    """A schema of Avro, the same in Arrow, and rows."""
    names = draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=5, unique=True))
    fields, columns, values = [], [], {}
    for name in names:
        kind, arrow, value = KINDS[name]
        nullable = draw(st.booleans())
        fields.append({"name": name, "type": ["null", kind] if nullable else kind})
        columns.append(pa.field(name, arrow, nullable))
        values[name] = st.none() | value if nullable else value
    rows = draw(st.lists(st.fixed_dictionaries(values), max_size=20))
    return {"type": "record", "name": "Row", "namespace": "n.s", "fields": fields}, pa.schema(columns), rows


def write(
    path: Path, schema: Any, rows: Sequence[Any], codec: str = "null", block_bytes: int = 16_000
) -> Path:
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, codec=codec, sync_interval=block_bytes)
    return path


def as_arrow(value: Any) -> Any:
    """A value of fastavro as Arrow returns it; records of these tests have no maps that look like them."""
    if isinstance(value, uuid.UUID):
        return str(value)
    if isinstance(value, dict) and set(value) == {"a", "b"} and isinstance(value["a"], int):
        return {"a": value["a"], "b": as_arrow(value["b"])}
    return list(value.items()) if isinstance(value, dict) else value


@examples(60)
@given(
    files(),
    st.sampled_from(["null", "deflate", "bzip2", "xz"]),
    st.integers(1, 200),
    st.integers(1, 300),
    st.integers(1, 200),
    st.integers(1, 600),
)
def test_rows_are_those_of_fastavro(
    tmp_path_factory: pytest.TempPathFactory,
    file: tuple[dict[str, Any], pa.Schema, list[dict[str, Any]]],
    codec: str,
    avro_bytes: int,
    range_bytes: int,
    part_bytes: int,
    block_bytes: int,
) -> None:
    schema, columns, rows = file
    path = write(tmp_path_factory.mktemp("avro") / "x.avro", schema, rows, codec, avro_bytes)
    with path.open("rb") as opened:
        expected = [{name: as_arrow(value) for name, value in row.items()} for row in fastavro.reader(opened)]
    store, last = CountingStore(), columns.names[-1]
    store.pipe_file("/x.avro", path.read_bytes())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(avro_format, "RANGE_BYTES", range_bytes)
        patch.setattr(row_group_format, "PART_BYTES", part_bytes)
        ds = windrow.read_avro(path, target_block_bytes=block_bytes)
        assert ds.schema() == columns
        assert ds.count() == len(rows)
        assert all_rows(ds) == expected
        remote = windrow.read_avro(
            "/x.avro", filesystem=store, columns=[last], target_block_bytes=block_bytes
        )
        assert remote.num_blocks() == ds.num_blocks()
        assert all_rows(remote) == [{last: row[last]} for row in expected]


NUMBERS = {
    "type": "record",
    "name": "Row",
    "fields": [{"name": "x", "type": "long"}, {"name": "s", "type": ["null", "string"]}],
}


def numbers(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"x": at, "s": None if at % 3 else f"row {at}"} for at in range(start, start + count)]


def test_windows_are_shuffled_and_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_format, "RANGE_BYTES", 300)
    for part in range(3):
        write(tmp_path / f"{part}.avro", NUMBERS, numbers(50, 50 * part), block_bytes=40)
    ds = windrow.read_avro(tmp_path, target_block_bytes=1)
    assert ds.num_blocks() >= 6
    check_passes(ds, batches_before=7)
    same_order_as_parquet(ds, tmp_path)


def test_rows_have_ids_and_manifests_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_format, "RANGE_BYTES", 300)
    path = write(tmp_path / "x.avro", NUMBERS, numbers(60), block_bytes=40)
    ds = windrow.read_avro(path).options(row_id_column="id")
    assert [row["id"] for row in ds.take(60)] == list(range(60))
    (origin,) = ds.row_lineage([59])
    assert origin.path == str(path)
    windrow.read_avro(path).save_manifest(tmp_path / "m")
    assert windrow.read_avro(path, manifest=tmp_path / "m").take(60) == numbers(60)


def test_files_that_grew(tmp_path: Path) -> None:
    """Later files widen a column, add one with a default, and drop one."""
    fields = [
        [{"name": "x", "type": "int"}, {"name": "s", "type": "string"}],
        [{"name": "x", "type": "long"}, {"name": "y", "type": "float", "default": 2.0}],
        [{"name": "x", "type": ["null", "double"]}],
    ]
    rows = [{"x": 1, "s": "a"}, {"x": 2**40, "y": 0.5}, {"x": None}]
    for part, (some, row) in enumerate(zip(fields, rows, strict=True)):
        write(tmp_path / f"{part}.avro", {"type": "record", "name": f"R{part}", "fields": some}, [row])
    ds = windrow.read_avro(tmp_path)
    assert ds.schema() == pa.schema([("x", pa.float64()), ("s", pa.string()), ("y", pa.float32())])
    assert ds.take() == [
        {"x": 1.0, "s": "a", "y": None},
        {"x": 2.0**40, "s": None, "y": 0.5},
        {"x": None, "s": None, "y": None},
    ]
    given = windrow.read_avro(tmp_path, schema=pa.schema([("y", pa.float64()), ("x", pa.decimal128(20, 1))]))
    assert given.take(2) == [
        {"y": None, "x": decimal.Decimal("1.0")},
        {"y": 0.5, "x": decimal.Decimal(2**40)},
    ]
    kept = windrow.read_avro(tmp_path, columns=["s"], filter=pc.field("x") > 1)
    assert kept.take() == [{"s": None}]
    paths = windrow.read_avro(tmp_path, columns=["path"], include_paths=True)
    assert [row["path"][-6:] for row in paths.take()] == ["0.avro", "1.avro", "2.avro"]


def test_types_without_columns_are_errors_where_they_are_selected(tmp_path: Path) -> None:
    tree = {"type": "record", "name": "Tree", "fields": [{"name": "next", "type": ["null", "Tree"]}]}
    fields = [
        {"name": "x", "type": "int"},
        {"name": "mixed", "type": ["null", "int", "string"]},
        {"name": "tree", "type": tree},
        {"name": "wide", "type": _logical("bytes", "decimal", precision=90)},
        {"name": "number", "type": ["int", "null", "double"]},
    ]
    row = {"x": 1, "mixed": "a", "tree": {"next": {"next": None}}, "wide": b"5", "number": 3}
    path = write(tmp_path / "x.avro", {"type": "record", "name": "Row", "fields": fields}, [row])
    reasons = {
        "mixed": "a union of null, int, string, and a column has one type",
        "tree": "a recursive type, 'Tree'",
        "wide": "a decimal of 90 digits",
    }
    for name, reason in reasons.items():
        with pytest.raises(windrow.SourceError, match=f"column '{name}' in {path} is {reason}.*columns="):
            windrow.read_avro(path, columns=["x", name])
        with pytest.raises(windrow.PlanError, match=f"gives string for '{name}'"):
            windrow.read_avro(path, schema=pa.schema([(name, pa.string())]))
    assert windrow.read_avro(path, columns=["number", "x"]).take() == [{"number": 3.0, "x": 1}]


def test_null_can_be_written_as_an_object(tmp_path: Path) -> None:
    null = {"type": "null"}
    fields = [{"name": "x", "type": [null, "int"]}, {"name": "y", "type": null}]
    rows = [{"x": None, "y": None}, {"x": 3, "y": None}]
    path = write(tmp_path / "x.avro", {"type": "record", "name": "R", "fields": fields}, rows)
    assert windrow.read_avro(path).take() == rows


def test_named_types_may_be_defined_in_columns_that_are_not_read(tmp_path: Path) -> None:
    fixed = {"type": "fixed", "name": "F", "size": 2}
    fields = [{"name": "a", "type": fixed}, {"name": "b", "type": {"type": "array", "items": "n.F"}}]
    schema = {"type": "record", "name": "R", "namespace": "n", "fields": fields}
    path = write(tmp_path / "x.avro", schema, [{"a": b"12", "b": [b"34", b"56"]}])
    assert windrow.read_avro(path, columns=["b"]).take() == [{"b": [b"34", b"56"]}]


def test_times_that_python_lacks_are_read(tmp_path: Path) -> None:
    kind = _logical("long", "timestamp-micros")
    moment = 20_000 * 365 * 86_400 * 10**6
    fields = [{"name": "at", "type": kind}]
    path = write(tmp_path / "x.avro", {"type": "record", "name": "R", "fields": fields}, [{"at": moment}])
    table = read_blocks(windrow.read_avro(path))
    assert table["at"].type == pa.timestamp("us", "UTC")
    assert table["at"].cast(pa.int64()).to_pylist() == [moment]


@pytest.mark.parametrize(("codec", "library"), [("snappy", "cramjam"), ("zstandard", "backports.zstd")])
def test_codecs_that_arrow_decompresses(tmp_path: Path, codec: str, library: str) -> None:
    pytest.importorskip(library)
    path = write(tmp_path / "x.avro", NUMBERS, numbers(500), codec, block_bytes=1000)
    assert windrow.read_avro(path).take(500) == numbers(500)
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptBlockError, match=f"{path}.*cannot be decompressed"):
        all_rows(windrow.read_avro(path))


def test_file_without_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "x.avro", NUMBERS, [])
    assert windrow.read_avro(path).count() == 0
    assert windrow.read_avro(path).take() == []
    write(tmp_path / "y.avro", NUMBERS, numbers(2))
    assert windrow.read_avro(tmp_path).take() == numbers(2)


def test_values_can_hold_the_sync_marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(avro_format, "RANGE_BYTES", 64)
    schema = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "bytes"}]}
    marker = b"sync marker, 16b"
    rows = [{"b": marker * (at % 9) + bytes([at])} for at in range(40)]
    path = tmp_path / "x.avro"
    with path.open("wb") as file:
        fastavro.writer(file, schema, rows, sync_interval=1, sync_marker=marker)
    ds = windrow.read_avro(path, target_block_bytes=1)
    assert all_rows(ds) == rows
    # no block of Avro begins in some ranges
    assert 0 in source_of(ds).blocks.rows
    check_passes(ds, batches_before=3)


def test_large_blocks_are_skipped_at_planning() -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "b", "type": "bytes"}]}
    content = io.BytesIO()
    fastavro.writer(content, schema, [{"b": bytes(3 * 2**20)} for _ in range(10)], sync_interval=1)
    store = CountingStore()
    store.pipe_file("/x.avro", content.getvalue())
    ds = windrow.read_avro("/x.avro", filesystem=store)
    assert store.read_bytes < 10 * 2**20, "one block is decoded, others are skipped"
    sizes = source_of(ds).blocks.memory_bytes
    assert abs(int(sizes.sum()) - 30 * 2**20) < 2**20


def test_headers_of_small_blocks_share_requests() -> None:
    content = io.BytesIO()
    fastavro.writer(content, NUMBERS, numbers(300_000))
    size, store = len(content.getvalue()), CountingStore()
    store.pipe_file("/x.avro", content.getvalue())
    ds = windrow.read_avro("/x.avro", filesystem=store)
    assert ds.count() == 300_000
    assert store.reads < size / 2**20 + 6
    assert store.read_bytes < size + 2**20

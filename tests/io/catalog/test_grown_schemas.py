"""Files of one dataset whose schemas differ: what is read, and which error names what."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.files import open_parquet, read_all, write
from tests.library_versions import ARROW
from windrow.core.errors import PlanError, SourceError
from windrow.io.catalog.file_source import FileSource

READERS = {"parquet": windrow.read_parquet, "arrow": windrow.read_arrow}


def write_tables(folder: Path, tables: Sequence[pa.Table], kind: str = "parquet") -> Path:
    folder.mkdir(exist_ok=True)
    for number, table in enumerate(tables):
        path = folder / f"{number}.{kind}"
        if kind == "parquet":
            pq.write_table(table, path)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    return folder


def read_both_ways(source: FileSource) -> list[dict[str, Any]]:
    """The rows of every block, which parts and columns of parts must give too."""
    rows = read_all(source).to_pylist()
    parts = [
        part.select(list(range(len(source.schema)))).to_pylist()
        for address in source.addresses(range(len(source.blocks.rows)))
        for part in source.reader.parts(address)
    ]
    assert [row for part in parts for row in part] == rows
    return rows


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_columns_that_files_lack_are_null(tmp_path: Path, kind: str, shuffled: bool) -> None:
    tables = [
        pa.table({"x": [1, 2], "s": ["a", None], "n": [[1], None]}),
        pa.table({"x": [3], "new": ["b"]}),
        pa.table({"other": [0, 0]}),
        pa.table({"n": [[5, 6]], "x": pa.array([4], pa.int8()), "s": [{"t": "c"}]}).drop_columns("s"),
    ]
    expected: list[dict[str, Any]] = [
        {"x": 1, "s": "a", "n": [1], "new": None},
        {"x": 2, "s": None, "n": None, "new": None},
        {"x": 3, "s": None, "n": None, "new": "b"},
        *[{"x": None, "s": None, "n": None, "new": None}] * 2,
        {"x": 4, "s": None, "n": [5, 6], "new": None},
    ]
    ds = READERS[kind](write_tables(tmp_path, tables, kind), columns=["x", "s", "n", "new"])
    source = ds._plan.source
    assert source.null_counts == {"x": 2, "s": 5, "n": None, "new": 5} or kind == "arrow"
    assert source.blocks.rows.tolist() == [2, 1, 2, 1]
    rows: list[dict[str, Any]] = ds.random_shuffle(seed=3).take() if shuffled else ds.take()
    key = str
    assert sorted(rows, key=key) == sorted(expected, key=key) if shuffled else rows == expected
    for name in ("x", "s", "n", "new"):
        narrow = READERS[kind](tmp_path, columns=[name])
        assert narrow.take() == [{name: row[name]} for row in expected]


@pytest.mark.parametrize("kind", READERS)
def test_order_of_columns_is_that_of_their_appearance(tmp_path: Path, kind: str) -> None:
    write_tables(tmp_path, [pa.table({"b": [1]}), pa.table({"c": [1], "a": [2], "b": [3]})], kind)
    assert READERS[kind](tmp_path).take() == [{"b": 1, "c": None, "a": None}, {"b": 3, "c": 1, "a": 2}]


def test_only_selected_columns_have_to_agree(tmp_path: Path) -> None:
    write_tables(tmp_path, [pa.table({"x": [1], "y": ["a"]}), pa.table({"x": [2], "y": [5]})])
    assert open_parquet(tmp_path, columns=["x"]).schema.names == ["x"]
    for arguments in ({}, {"columns": ["y"]}, {"columns": ["x"], "filter": pc.field("y") == 5}):
        with pytest.raises(
            SourceError,
            match=rf"column 'y' is int64 in {tmp_path}/1\.parquet but string in .*/0\.parquet.*schema=",
        ):
            open_parquet(tmp_path, **arguments)
    filtered = open_parquet(tmp_path, columns=["x"], filter=pc.field("x") > 1)
    assert read_all(filtered).to_pylist() == [{"x": 2}]


def test_duplicate_names_matter_where_they_are_selected(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "b", "a"])
    write(tmp_path / "t.parquet", table)
    assert read_all(open_parquet(tmp_path, columns=["b"])).to_pylist() == [{"b": 2}]
    with pytest.raises(SourceError, match="more than one column 'a'"):
        open_parquet(tmp_path, columns=["b", "a"])


UTC_DAY = datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize(
    ("left", "right", "unified"),
    [
        (pa.array([1], pa.int32()), pa.array([0.5], pa.float32()), pa.float64()),
        (pa.array([2**53]), pa.array([0.5]), pa.float64()),
        (
            pa.array([Decimal("1.5")], pa.decimal128(5, 1)),
            pa.array([Decimal("0.125")], pa.decimal128(4, 3)),
            pa.decimal128(7, 3),
        ),
        (pa.array(["a"]).dictionary_encode(), pa.array(["b"]), pa.string()),
        (pa.array(["a"]), pa.array(["b"], pa.large_string()), pa.large_string()),
        (
            pa.array([UTC_DAY], pa.timestamp("ms", "UTC")),
            pa.array([UTC_DAY], pa.timestamp("us", "UTC")),
            None,
        ),
        (
            pa.array([[{"a": 1}], None]),
            pa.array([[{"b": "x", "a": 0.5}, None]]),
            pa.list_(pa.struct([("a", pa.float64()), ("b", pa.string())])),
        ),
        (
            pa.array([{"a": 1}, None]),
            pa.array([{"b": "x"}]),
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        (
            pa.array([{"p": {"q": 1}}]),
            pa.array([{"p": {"r": 2}}, {"p": None}]),
            pa.struct([("p", pa.struct([("q", pa.int64()), ("r", pa.int64())]))]),
        ),
        (pa.nulls(2), pa.array([b"x"] * 3, pa.binary(1)), pa.binary(1)),
    ],
    ids=str,
)
def test_types_are_widened(
    tmp_path: Path, kind: str, left: pa.Array, right: pa.Array, unified: pa.DataType | None
) -> None:
    def fill(value: Any, type: pa.DataType) -> Any:
        return pa.scalar(value, type=type).as_py()

    write_tables(tmp_path, [pa.table({"x": left}), pa.table({"x": right})], kind)
    ds = READERS[kind](tmp_path)
    (field,) = ds._plan.source.schema
    assert field.type == (right.type if unified is None else unified)
    stored = [*left.to_pylist(), *right.to_pylist()]
    assert [row["x"] for row in ds.take()] == [fill(value, field.type) for value in stored]
    shuffled = [row["x"] for row in ds.random_shuffle(seed=1).take()]
    assert sorted(map(str, shuffled)) == sorted(str(fill(value, field.type)) for value in stored)


@pytest.mark.parametrize("kind", READERS)
def test_value_that_the_wider_type_cannot_hold_is_an_error_with_its_place(tmp_path: Path, kind: str) -> None:
    first = pa.table({"x": pa.chunked_array([[0, 1], [2, 3], [4, 2**53 + 1]])})
    if kind == "parquet":
        write(tmp_path / "0.parquet", first, row_group_size=2)
    else:
        write_tables(tmp_path, [first], kind)
    write_tables(tmp_path / "more", [pa.table({"x": [0.5]})], kind)
    place = f"{tmp_path}/0\\.{kind}, row group" + (" 2: " if kind == "parquet" else "")
    for ds in (READERS[kind](tmp_path), READERS[kind](tmp_path).random_shuffle(seed=0)):
        with pytest.raises(
            SourceError,
            match=rf"{place}.*column 'x' is int64 and is read as double, .*9007199254740993 \(.*schema=",
        ) as caught:
            ds.take()
        assert "corrupt" not in str(caught.value)


def test_directory_states_a_column_that_only_some_files_store(tmp_path: Path) -> None:
    write(tmp_path / "k=1" / "a.parquet", pa.table({"x": [1], "k": [7]}))
    write(tmp_path / "k=2" / "b.parquet", pa.table({"x": [2]}))
    assert read_all(open_parquet(tmp_path)).to_pylist() == [{"x": 1, "k": 1}, {"x": 2, "k": 2}]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (pc.field("x") > 1, [3.0, 1.5, 4.0]),
        (pc.field("x").is_null(), [None]),
        (pc.field("new") == "b", [1.5]),
        (pc.field("s", "b") == 2, [4.0]),
        (pc.field("s", "b").is_null(), [1.0, 3.0, 1.5, None]),
    ],
    ids=["widened", "null", "lacking", "field", "null-field"],
)
@pytest.mark.parametrize("kind", READERS)
def test_filters_see_the_unified_columns(
    tmp_path: Path, kind: str, expression: pc.Expression, expected: list[float | None]
) -> None:
    tables = [
        pa.table({"x": [1, 3], "s": [{"a": 1}, {"a": 2}]}),
        pa.table({"x": [1.5], "new": ["b"]}),
        pa.table({"y": [0]}),
        pa.table({"x": pa.array([4], pa.int8()), "s": [{"b": 2, "c": "text"}]}),
    ]
    write_tables(tmp_path, tables, kind)
    # of the struct, the filter needs a field that is not selected
    ds = READERS[kind](tmp_path, columns=["s.a", "x"], filter=expression)
    source = ds._plan.source
    assert isinstance(source, FileSource)
    rows = read_both_ways(source)
    assert [row["x"] for row in rows] == expected
    structs: dict[Any, Any] = {1.0: {"a": 1}, 3.0: {"a": 2}, 4.0: {"a": None}}
    assert [row["s"] for row in rows] == [structs.get(value) for value in expected]


def test_fields_of_structs_are_read_alone(tmp_path: Path) -> None:
    struct = pa.array([{"a": 1, "b": {"c": "x", "d": 2.5}}, None, {"a": 3, "b": None}])
    lists = pa.array([[{"p": 1, "q": "z"}], [], None])
    table = pa.table({"s": struct, "x": [7, 8, 9], "l": lists, "s.b": ["dot"] * 3})
    write(tmp_path / "t.parquet", table)
    stored = pq.ParquetFile(tmp_path / "t.parquet")
    for columns in (
        ["s.a"],
        ["s.b.c"],
        ["s.b.d", "x", "s.a"],
        ["s.a", "s"],
        ["l.list.element.p"],
        ["l.list.item.q", "s.b.c"],
    ):
        source = open_parquet(tmp_path, columns=columns)
        paths = [name.replace("item", "element") for name in columns]
        expected = stored.read(columns=paths)
        if "s" not in columns:
            expected = expected.select(source.schema.names)
        assert read_both_ways(source) == expected.select(source.schema.names).to_pylist(), columns
        assert source.schema.types == expected.select(source.schema.names).schema.types
        shuffled = windrow.read_parquet(tmp_path, columns=columns).random_shuffle(seed=0).take()
        assert sorted(map(str, shuffled)) == sorted(
            map(str, expected.select(source.schema.names).to_pylist())
        )
    # a column of that name comes first
    assert read_both_ways(open_parquet(tmp_path, columns=["s.b"])) == [{"s.b": "dot"}] * 3


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("s.aa", r"columns= has no column 's\.aa': did you mean 's\.a'"),
        ("x.a", r"'x' is int64 and has no fields"),
        ("l.p", r"no column 'l\.p': there are 'l\.list\.element\.p'"),
        ("t.a", r"no column 't\.a'"),
    ],
)
def test_unknown_fields_raise(tmp_path: Path, name: str, message: str) -> None:
    write(tmp_path / "t.parquet", pa.table({"s": [{"a": 1}], "x": [1], "l": [[{"p": 1}]]}))
    with pytest.raises(PlanError, match=message):
        open_parquet(tmp_path, columns=[name])


def test_fields_that_a_file_lacks_are_null_in_structs_that_are_not(tmp_path: Path) -> None:
    write_tables(
        tmp_path,
        [
            pa.table({"s": [{"a": 1}, None]}),
            pa.table({"s": [{"b": 2}]}),
            pa.table({"s": [{"b": {"c": 5}}]}).drop_columns("s").append_column("x", [[1]]),
        ],
    )
    source = open_parquet(tmp_path, columns=["s.b"])
    assert read_both_ways(source) == [{"s": {"b": None}}, {"s": None}, {"s": {"b": 2}}, {"s": None}]


@pytest.mark.skipif(ARROW < 21, reason="pyarrow makes no extension types of these")
def test_logical_types_are_those_of_read_table(tmp_path: Path) -> None:
    unique = uuid.uuid4().bytes
    table = pa.table({"u": pa.array([unique, None], pa.uuid()), "j": pa.array(["{}", None], pa.json_())})
    pq.write_table(table, tmp_path / "t.parquet", store_schema=False)
    expected = pq.read_table(tmp_path / "t.parquet")
    source = open_parquet(tmp_path)
    assert source.schema.types == expected.schema.types == [pa.uuid(), pa.json_()]
    assert read_both_ways(source) == expected.to_pylist()
    filtered = open_parquet(tmp_path, filter=pc.field("u").is_valid())
    assert read_all(filtered).to_pylist() == expected.to_pylist()[:1]


def test_schemas_that_differ_in_groups_alone_are_told_apart(tmp_path: Path) -> None:
    pair = pa.struct([pa.field("key", pa.string(), False), pa.field("value", pa.int64())])
    mapped = pa.table({"m": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))})
    listed = pa.table({"m": pa.array([[("a", 1)]], pa.list_(pa.field("key_value", pair, nullable=False)))})
    for name, table in (("map", mapped), ("list", listed)):
        write(tmp_path / name / "t.parquet", table, store_schema=False, use_compliant_nested_type=False)
        assert read_all(open_parquet(tmp_path / name)).to_pylist() == table.to_pylist()


def test_saved_manifests_keep_the_schemas(tmp_path: Path) -> None:
    write_tables(tmp_path / "data", [pa.table({"x": [1], "y": ["a"]}), pa.table({"x": [2.5], "y": [5]})])
    open_parquet(tmp_path / "data", columns=["x"]).save_manifest(tmp_path / "m.npz")
    again = open_parquet(None, manifest=tmp_path / "m.npz", columns=["x"])
    assert read_all(again).to_pylist() == [{"x": 1.0}, {"x": 2.5}]
    assert again.schema_changes == ("x: int64 in 1 of 2 files, read as double",)
    with pytest.raises(
        SourceError, match=rf"column 'y' is int64 in {tmp_path}/data/1\.parquet but string in"
    ):
        open_parquet(None, manifest=tmp_path / "m.npz")


def test_schema_changes_are_shown(tmp_path: Path) -> None:
    first = pa.table({"price": pa.array([1], pa.int32()), "tags": ["a"], "s": [{"a": 1, "b": 2}]})
    write_tables(tmp_path, [first, pa.table({"price": [0.5], "s": [{"a": 1, "b": 2}]}), first])
    source = open_parquet(tmp_path)
    assert source.schema_changes == (
        "price: int32 in 2 of 3 files, read as double",
        "tags: null in 1 of 3 files (first: 1.parquet)",
    )
    shown = str(windrow.read_parquet(tmp_path).repeat(1).explain())
    assert (
        "schema   price: int32 in 2 of 3 files, read as double; tags: null in 1 of 3 files (first: 1.parquet)"
        in shown
    )
    # a selection is no change
    assert open_parquet(tmp_path, columns=["s.a"]).schema_changes == ()
    given = open_parquet(tmp_path, schema=pa.schema([("s", pa.struct([("a", pa.int8())]))]))
    assert given.schema_changes == ("s: struct<a: int64> in all files, read as struct<a: int8>",)

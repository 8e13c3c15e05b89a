"""read_orc: files of pyarrow's writer, the rows that pyarrow reads of them, and files that it does not write."""

from __future__ import annotations

import datetime
import decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.drawn_tables import drawn_tables
from tests.io.formats.shuffled_passes import check_passes
from tests.io.formats.stored import CountingStore, read_blocks, same_order_as_parquet, source_of
from tests.laws.examples import examples
from tests.library_versions import ARROW
from windrow.core.source import CorruptBlockError

orc = pytest.importorskip("pyarrow.orc")

_INTS, _TEXTS = st.integers(-100, 100), st.text("aé漢", max_size=30)
_MOMENTS = st.datetimes(datetime.datetime(1950, 1, 1), datetime.datetime(2100, 1, 1))
VALUES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): _INTS,
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32, allow_nan=False),
    pa.float64(): st.floats(allow_nan=False),
    pa.decimal128(9, 2): st.integers(-1000, 1000).map(decimal.Decimal),
    pa.decimal128(38, 5): st.integers(-(10**30), 10**30).map(decimal.Decimal),
    pa.date32(): st.dates(),
    pa.timestamp("ns"): _MOMENTS,
    pa.timestamp("ns", "UTC"): _MOMENTS.map(lambda moment: moment.replace(tzinfo=datetime.timezone.utc)),
    pa.string(): _TEXTS,
    pa.binary(): st.binary(max_size=20),
    pa.list_(pa.string()): st.lists(st.none() | _TEXTS, max_size=3),
    pa.struct([("a", pa.int32()), ("b", pa.string())]): st.fixed_dictionaries({"a": _INTS, "b": _TEXTS}),
    pa.map_(pa.string(), pa.int32()): st.lists(
        st.tuples(_TEXTS, _INTS), max_size=2, unique_by=lambda pair: pair[0]
    ),
    pa.list_(pa.struct([("a", pa.list_(pa.int32()))])): st.lists(
        st.fixed_dictionaries({"a": st.none() | st.lists(_INTS, max_size=2)}), max_size=2
    ),
}
newer = pytest.mark.skipif(
    ARROW < 26, reason="older versions can end the process for corrupt files, and wrap times that do not fit"
)
COMPRESSION = ["uncompressed", "zlib", "snappy", "lz4", "zstd"]


def write(path: Path, table: pa.Table, stripe_rows: int | None = None, **options: Any) -> Path:
    """Write a table; with ``stripe_rows``, in stripes of so many rows, which end where a batch of the writer does."""
    if stripe_rows is not None:
        options = {"stripe_size": 1, "batch_size": stripe_rows, **options}
    orc.write_table(table, path, **options)
    return path


@examples(50)
@given(drawn_tables(VALUES), st.sampled_from(COMPRESSION), st.integers(1, 12), st.integers(1, 900))
def test_rows_are_those_of_pyarrow(
    tmp_path_factory: pytest.TempPathFactory, table: pa.Table, compression: str, stripe: int, block_bytes: int
) -> None:
    path = write(tmp_path_factory.mktemp("orc") / "x.orc", table, stripe, compression=compression)
    ds = windrow.read_orc(path, target_block_bytes=block_bytes)
    expected = orc.read_table(path)
    assert expected.equals(table.cast(expected.schema))
    assert ds.schema() == expected.schema
    assert ds.count() == table.num_rows
    assert read_blocks(ds).equals(expected)
    assert source_of(ds).null_counts == {name: table[name].null_count for name in table.column_names}
    store, last = CountingStore(), table.column_names[-1]
    store.pipe_file("/x.orc", path.read_bytes())
    remote = windrow.read_orc("/x.orc", filesystem=store, columns=[last], target_block_bytes=block_bytes)
    assert remote.num_blocks() == ds.num_blocks()
    assert read_blocks(remote).equals(expected.select([last]))


def numbers(rows: int, start: int = 0) -> pa.Table:
    x = range(start, start + rows)
    return pa.table({"x": pa.array(x, pa.int64()), "s": [None if at % 3 else f"row {at}" for at in x]})


def test_windows_are_shuffled_and_resumed(tmp_path: Path) -> None:
    for part in range(3):
        write(tmp_path / f"{part}.orc", numbers(50, 50 * part), stripe_rows=20)
    ds = windrow.read_orc(tmp_path, target_block_bytes=1)
    assert source_of(ds).blocks.rows.tolist() == 3 * [20, 20, 10]
    check_passes(ds, batches_before=7)
    same_order_as_parquet(ds, tmp_path)


def test_sizes_are_those_of_statistics(tmp_path: Path) -> None:
    rows = 3_000
    table = pa.table(
        {
            "x": np.arange(rows),
            "s": [f"text {at}" * (at % 5) for at in range(rows)],
            "l": [[{"a": "é", "b": 1.5}] * (at % 4) for at in range(rows)],
            "m": pa.array([[("key", at)] for at in range(rows)], pa.map_(pa.string(), pa.int64())),
        }
    )
    ds = windrow.read_orc(write(tmp_path / "x.orc", table, stripe_rows=1000, compression="zstd"))
    facts = {name: int(sizes.memory.sum()) for name, sizes in source_of(ds).manifest.variable.items()}
    for name, size in facts.items():
        assert size == pytest.approx(table[name].nbytes, rel=0.05), name
    assert source_of(ds).blocks.memory_bytes.sum() == pytest.approx(table.nbytes, rel=0.05)
    exact = source_of(windrow.read_orc(tmp_path / "x.orc", columns=["x"])).blocks
    assert exact.bytes_exact
    assert exact.memory_bytes.sum() == 8 * rows


@pytest.mark.parametrize("compression", COMPRESSION)
def test_only_selected_columns_are_requested(compression: str) -> None:
    random = np.random.Generator(np.random.PCG64(1))
    table = pa.table({f"c{number}": random.random(50_000) for number in range(6)})
    sink = pa.BufferOutputStream()
    orc.write_table(table, sink, compression=compression)
    store = CountingStore()
    store.pipe_file("/x.orc", sink.getvalue().to_pybytes())
    ds = windrow.read_orc("/x.orc", filesystem=store, columns=["c3"])
    assert store.read_bytes < 200_000, "footers alone are read"
    store.forget()
    source = source_of(ds)
    (part,) = source.reader.parts(source.addresses([0])[0])
    assert part.select(["c3"]).equals(table.select(["c3"]))
    if compression != "lz4":
        assert store.read_bytes < 1.5 * 8 * 50_000
    assert store.reads <= 8


def test_fields_of_structs_are_read_alone(tmp_path: Path) -> None:
    rows = [{"a": {"b": at, "c": [{"d": at, "e": "x"}]}, "f": "y"} for at in range(10)]
    path = write(tmp_path / "x.orc", pa.table({"s": rows, "x": range(10)}))
    ds = windrow.read_orc(path, columns=["s.a.b", "x"])
    assert ds.take(10) == [{"s": {"a": {"b": at}}, "x": at} for at in range(10)]
    inner = windrow.read_orc(path, columns=["s.a"])
    assert inner.take(10)[3] == {"s": {"a": rows[3]["a"]}}


def test_names_with_points(tmp_path: Path) -> None:
    path = write(tmp_path / "x.orc", pa.table({"a.b": [1, 2], "a": [{"b": 3}, {"b": 4}], "c": [5, 6]}))
    assert windrow.read_orc(path, columns=["a.b"]).take() == [{"a.b": 1}, {"a.b": 2}]
    assert windrow.read_orc(path, columns=["c", "a"]).take(1) == [{"c": 5, "a": {"b": 3}}]


def test_files_that_grew(tmp_path: Path) -> None:
    """Later files widen a column, add one, and drop one."""
    tables = [
        pa.table({"x": pa.array([1, 2], pa.int16()), "s": ["a", None], "n": [{"p": 1}, None]}),
        pa.table({"x": pa.array([2**40]), "y": [0.5], "n": [{"p": 2, "q": "r"}]}),
    ]
    for part, table in enumerate(tables):
        write(tmp_path / f"{part}.orc", table)
    ds = windrow.read_orc(tmp_path)
    assert ds.take() == [
        {"x": 1, "s": "a", "n": {"p": 1, "q": None}, "y": None},
        {"x": 2, "s": None, "n": None, "y": None},
        {"x": 2**40, "s": None, "n": {"p": 2, "q": "r"}, "y": 0.5},
    ]
    given = windrow.read_orc(tmp_path, schema=pa.schema([("y", pa.float32()), ("x", pa.string())]))
    assert given.take() == [{"y": None, "x": "1"}, {"y": None, "x": "2"}, {"y": 0.5, "x": str(2**40)}]
    kept = windrow.read_orc(tmp_path, columns=["y"], filter=pc.field("x") > 1)
    assert kept.take() == [{"y": None}, {"y": 0.5}]


def test_columns_partitions_and_row_ids(tmp_path: Path) -> None:
    for part in ("a", "b"):
        (tmp_path / f"k={part}").mkdir()
        write(tmp_path / f"k={part}" / "0.orc", numbers(4), stripe_rows=2)
    assert windrow.read_orc(tmp_path, columns=["k"]).take() == [{"k": "a"}] * 4 + [{"k": "b"}] * 4
    ds = windrow.read_orc(tmp_path, columns=["x"]).options(row_id_column="id")
    assert [row["id"] for row in ds.take()] == list(range(8))
    assert [tuple(origin)[1:] for origin in ds.row_lineage([3])] == [(1, 1)]
    windrow.read_orc(tmp_path).save_manifest(tmp_path / "_m")
    assert windrow.read_orc(tmp_path, manifest=tmp_path / "_m", columns=["x"]).count() == 8


def test_file_without_rows(tmp_path: Path) -> None:
    path = write(
        tmp_path / "x.orc", pa.table({"x": pa.array([], pa.int64()), "s": pa.array([], pa.string())})
    )
    assert windrow.read_orc(path).count() == 0
    assert windrow.read_orc(path).take() == []


def test_other_files_than_orc_raise(tmp_path: Path) -> None:
    path = tmp_path / "x.orc"
    content = write(path, numbers(100)).read_bytes()
    cases = {
        b"": "is not an ORC file",
        b"PAR1" * 20: "is not an ORC file",
        content[:-1]: "truncated",
        content[: len(content) // 2]: "truncated",
        content[:3]: "truncated",
    }
    for changed, message in cases.items():
        path.write_bytes(changed)
        with pytest.raises(windrow.SourceError, match=f"{path}.*{message}"):
            windrow.read_orc(path)


@newer
def test_timestamps_that_nanoseconds_cannot_hold_are_named(tmp_path: Path) -> None:
    at = pa.array([datetime.datetime(3000, 1, 1)], pa.timestamp("us"))
    path = write(tmp_path / "x.orc", pa.table({"at": at, "x": [1]}))
    with pytest.raises(windrow.SourceError, match=f"{path}, stripe 0: .*nanoseconds.*columns=") as raised:
        windrow.read_orc(path).take()
    assert "corrupt" not in str(raised.value)
    assert windrow.read_orc(path, columns=["x"]).take() == [{"x": 1}]


@newer
def test_corrupt_stripes_are_named(tmp_path: Path) -> None:
    """Where the codec finds it; ORC has no checksums."""
    path = write(tmp_path / "x.orc", numbers(2_000), compression="zstd")
    content, stripes = path.read_bytes(), orc.ORCFile(path).content_length
    magic = b"\x28\xb5\x2f\xfd"  # of zstd
    path.write_bytes(content[:stripes].replace(magic, bytes(4)) + content[stripes:])
    with pytest.raises(CorruptBlockError, match=f"{path}, row group 0.*corrupt"):
        windrow.read_orc(path).take()


@newer
@examples(60)
@given(
    st.sampled_from(["uncompressed", "zstd"]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_corrupt_footers_raise_or_are_harmless(
    tmp_path_factory: pytest.TempPathFactory, compression: str, flips: list[tuple[float, int]]
) -> None:
    """Of the file, only what planning reads is corrupt: liborc can end the process for corrupt stripes."""
    path = tmp_path_factory.mktemp("corruption") / "x.orc"
    table = numbers(20).append_column("l", pa.array([[{"a": [at]}] for at in range(20)]))
    content = bytearray(write(path, table, stripe_rows=10, compression=compression).read_bytes())
    footer = orc.ORCFile(path).content_length
    for place, value in flips:
        content[footer + int(place * (len(content) - footer - 1))] = value
    path.write_bytes(content)
    raised: windrow.WindrowError | None = None
    try:
        assert windrow.read_orc(path).count() >= 0
    except windrow.WindrowError as error:
        raised = error
    assert raised is None or str(path) in str(raised)

from __future__ import annotations

import io
import pickle
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.io.files import open_parquet, read_all, write
from tests.library_versions import parquet_stores_nulls
from windrow.core.errors import SourceError
from windrow.io.catalog.file_source import FileSource
from windrow.io.parquet.footers import read_footer
from windrow.io.storage.filesystems import Files

_TENSOR = pa.fixed_shape_tensor(pa.float32(), (2, 2))
_TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i8": (pa.int8(), st.integers(-128, 127)),
    "u64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "f16": (pa.float16(), st.sampled_from([np.float16(x) for x in (0, -1.5, 7)])),
    "f64": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "str": (pa.string(), st.text(max_size=8)),
    "lstr": (pa.large_string(), st.text(max_size=8)),
    "bin": (pa.binary(), st.binary(max_size=8)),
    "lbin": (pa.large_binary(), st.binary(max_size=8)),
    "fsb": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "ts": (pa.timestamp("us", "UTC"), st.integers(-(2**50), 2**50)),
    "ns": (pa.timestamp("ns"), st.integers(-(2**60), 2**60)),
    "date": (pa.date32(), st.integers(-1000, 1000)),
    "time": (pa.time64("us"), st.integers(0, 10**6)),
    "dur": (pa.duration("ms"), st.integers(-1000, 1000)),
    "dec": (pa.decimal128(9, 2), st.integers(-(10**8), 10**8).map(lambda n: Decimal(n).scaleb(-2))),
    "dict": (pa.dictionary(pa.int8(), pa.string()), st.sampled_from(["a", "b", ""])),
    "list": (pa.list_(pa.int32()), st.lists(st.none() | st.integers(-9, 9), max_size=3)),
    "llist": (pa.large_list(pa.string()), st.lists(st.text(max_size=3), max_size=3)),
    "fsl": (pa.list_(pa.int16(), 2), st.lists(st.integers(-9, 9), min_size=2, max_size=2)),
    "struct": (
        pa.struct([("x", pa.int32()), ("y.z", pa.string())]),
        st.fixed_dictionaries({"x": st.integers(0, 9), "y.z": st.none() | st.text(max_size=3)}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=2), st.integers(0, 9)))),
    "null": (pa.null(), st.none()),
    "tensor": (_TENSOR, st.lists(st.integers(0, 9).map(float), min_size=4, max_size=4)),
    "a.b": (pa.int64(), st.integers(-9, 9)),
    "struct.x": (pa.string(), st.text(max_size=3)),
}


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array[Any]:
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(values, kind)


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    names = draw(st.lists(st.sampled_from(sorted(_TYPES)), min_size=1, max_size=6, unique=True))
    rows = draw(st.integers(0, 30))
    columns = {}
    for name in names:
        kind, values = _TYPES[name]
        nulls = name not in ("tensor", "u64") and parquet_stores_nulls(kind)
        nullable = st.none() | values if nulls else values
        columns[name] = _column(kind, draw(st.lists(nullable, min_size=rows, max_size=rows)))
    return pa.table(columns)


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=tables(),
    row_group_rows=st.integers(1, 12),
    target=st.sampled_from([1, 400, 2**20]),
    data=st.data(),
)
def test_blocks_equal_what_pyarrow_reads(
    table: pa.Table, row_group_rows: int, target: int, data: st.DataObject, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.parquet", table, row_group_size=row_group_rows)
    columns = data.draw(st.lists(st.sampled_from(table.column_names), min_size=1, unique=True))
    source = open_parquet(path, columns=columns, target_block_bytes=target)
    expected = pq.ParquetFile(path).read().select(columns)
    assert source.schema.equals(expected.schema)
    found = read_all(source)
    assert found.to_pylist() == expected.to_pylist()
    blocks = source.blocks
    assert blocks.rows.sum() == table.num_rows
    assert (blocks.memory_bytes >= blocks.decoded_bytes).all()
    filtered = open_parquet(
        path, columns=columns, filter=pc.field(table.column_names[0]).is_valid(), target_block_bytes=target
    )
    mask = pc.is_valid(pq.ParquetFile(path).read().column(table.column_names[0]))
    assert read_all(filtered).to_pylist() == expected.filter(mask).to_pylist()
    assert filtered.blocks.rows.tolist() == blocks.rows.tolist()


def test_column_names_with_dots_are_not_paths(tmp_path: Path) -> None:
    table = pa.table({"a.b": [1, 2], "a": [{"b": 3, "c": 4}, {"b": 5, "c": 6}], "a.b.c": ["x", "y"]})
    path = write(tmp_path / "t.parquet", table)
    for row_filter in (None, pc.field("a.b") > 0):
        for columns in (["a"], ["a.b"], ["a.b.c", "a"], ["a", "a.b"]):
            found = read_all(open_parquet(path, columns=columns, filter=row_filter))
            assert found.to_pylist() == table.select(columns).to_pylist()


def test_fragments_are_cast_to_the_unified_schema(tmp_path: Path) -> None:
    one = pa.table(
        {
            "i": pa.array([1, None], pa.int16()),
            "t": pa.array([1, 2], pa.timestamp("ms")),
            "s": pa.array(["a", "b"]).dictionary_encode(),
            "n": pa.nulls(2),
            "l": pa.array([[1], None], pa.list_(pa.int8())),
            "e": pa.nulls(2),
        }
    )
    two = pa.table(
        {
            "e": pa.ExtensionArray.from_storage(_TENSOR, pa.array([[1.0] * 4], _TENSOR.storage_type)),
            "l": pa.array([[300]], pa.list_(pa.int32())),
            "n": pa.array(["n"], pa.large_string()),
            "s": pa.array(["c"]),
            "t": pa.array([3], pa.timestamp("ns")),
            "i": pa.array([2**40], pa.int64()),
        }
    )
    write(tmp_path / "1.parquet", one)
    write(tmp_path / "2.parquet", two)
    source = open_parquet(tmp_path)
    assert dict(zip(source.schema.names, source.schema.types, strict=True)) == {
        "i": pa.int64(),
        "t": pa.timestamp("ns"),
        "s": pa.string(),
        "n": pa.large_string(),
        "l": pa.list_(pa.int32()),
        "e": _TENSOR,
    }
    table = read_all(source)
    assert table.column("i").to_pylist() == [1, None, 2**40]
    assert table.column("t").cast(pa.int64()).to_pylist() == [10**6, 2 * 10**6, 3]
    assert table.column("s").to_pylist() == ["a", "b", "c"]
    assert table.column("n").to_pylist() == [None, None, "n"]
    assert table.column("l").to_pylist() == [[1], None, [300]]
    for row_filter in (pc.field("i") >= 1, (pc.field("i") == 2**40) | (pc.field("s") == "a")):
        filtered = open_parquet(tmp_path, columns=["i", "t", "s", "n", "l"], filter=row_filter)
        assert read_all(filtered).column("s").to_pylist() == ["a", "c"]


def test_timestamp_overflow_in_the_finer_unit_raises(tmp_path: Path) -> None:
    write(tmp_path / "1.parquet", pa.table({"t": pa.array([2**61], pa.timestamp("ms"))}))
    write(tmp_path / "2.parquet", pa.table({"t": pa.array([1], pa.timestamp("ns"))}))
    with pytest.raises(SourceError, match=r"1.parquet, row group 0: .*column 't'.*timestamp\[ms\]"):
        read_all(open_parquet(tmp_path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    noise = np.random.Generator(np.random.PCG64(1)).integers(0, 2**62, 20_000)
    return write(
        tmp_path / "data.parquet",
        pa.table({"n": noise, "s": [f"text {n}" for n in noise]}),
        row_group_size=5_000,
        write_page_checksum=True,
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not a Parquet file, or is truncated (0 bytes"),
        (b"PAR1", "is not a Parquet file, or is truncated (4 bytes"),
        (b"a,b\n1,2\n" * 20, "is not a Parquet file, or is truncated"),
        (
            b"SQLite format 3\0" + bytes(80),
            "it begins like an SQLite database, which windrow.read_sql() reads",
        ),
        (b"Obj\x01" + bytes(80), "windrow.read_avro()"),
        (b"PAR1" + b"x" * 20 + (10**6).to_bytes(4, "little") + b"PAR1", "is truncated: its footer has"),
        (b"PAR1" + b"\xff" * 90 + (80).to_bytes(4, "little") + b"PAR1", "has no readable Parquet footer"),
        (b"PAR1" + b"x" * 20 + (10).to_bytes(4, "little") + b"PARE", "encrypted footer"),
    ],
)
def test_other_files_than_parquet_raise(tmp_path: Path, content: bytes, message: str) -> None:
    bad = tmp_path / "bad.parquet"
    bad.write_bytes(content)
    with pytest.raises(SourceError, match=r"(?s).*") as caught:
        open_parquet(bad)
    assert str(bad) in str(caught.value)
    assert message in str(caught.value)


def test_truncated_file_raises(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(SourceError, match=r"data.parquet is not a Parquet file, or is truncated"):
        open_parquet(path)


def test_flipped_bytes_in_a_page_raise(path: Path) -> None:
    content = bytearray(path.read_bytes())
    for place in range(2_000, 2_050):
        content[place] ^= 0xFF
    path.write_bytes(content)
    for row_filter in (None, pc.field("n") >= 0):
        source = open_parquet(path, filter=row_filter, target_block_bytes=1)
        good, bad = source.addresses([3, 0])
        assert source.reader.read(good).num_rows == 5_000
        with pytest.raises(
            SourceError, match=r"data.parquet, row group 0: cannot be read.*it is corrupt: restore the file"
        ):
            source.reader.read(bad)


@pytest.mark.parametrize("same_size", [True, False])
def test_file_changed_since_its_listing_raises(tmp_path: Path, same_size: bool) -> None:
    path = write(tmp_path / "t.parquet", pa.table({"n": [1, 2, 3]}))
    source = open_parquet(path)
    write(path, pa.table({"n": [1, 2, 4] if same_size else range(1000)}))
    assert (path.stat().st_size == int(source.manifest.file_bytes[0])) is same_size
    with pytest.raises(
        SourceError, match=r"t.parquet, row group 0: the file has changed since it was listed"
    ):
        read_all(source)
    filtered = open_parquet(None, manifest=source.manifest, filter=pc.field("n") > 0)
    with pytest.raises(SourceError, match=r"has changed since it was listed"):
        read_all(filtered)


def test_file_changed_since_its_footer_was_cached_raises(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", pa.table({"n": [1, 2, 3]}))
    source = open_parquet(path)
    assert read_all(source).num_rows == 3
    write(path, pa.table({"n": [1, 2, 4]}))
    assert path.stat().st_size == int(source.manifest.file_bytes[0])
    with pytest.raises(SourceError, match=r"the file has changed since it was listed \(rewritten"):
        read_all(source)


def test_missing_file_raises(path: Path) -> None:
    source = open_parquet(path)
    path.unlink()
    with pytest.raises(
        SourceError, match=r"data.parquet, row group 0: the file is missing.*restore the file"
    ):
        read_all(source)


def test_unreadable_file_raises(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = open_parquet(path)

    def refuse(files: Files, relative: str) -> None:
        raise PermissionError(13, "Permission denied", files.path(relative))

    monkeypatch.setattr(Files, "open_version", refuse)
    with pytest.raises(SourceError, match=r"data.parquet, row group 0: no read permission.*grant read"):
        read_all(source)

    def refuse_path(name: str, flags: int) -> int:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr("windrow.io.parquet.footers.open_file", refuse_path)
    with pytest.raises(SourceError, match=r"data.parquet: no read permission.*grant read permission"):
        open_parquet(path)


def test_threads_share_a_reader(path: Path) -> None:
    source = open_parquet(path, target_block_bytes=1)
    addresses = list(source.addresses(range(4))) * 4
    expected = [source.reader.read(address) for address in addresses[:4]]
    with ThreadPoolExecutor(4) as threads:
        tables = list(threads.map(source.reader.read, addresses))
    assert all(table.equals(expected[place % 4]) for place, table in enumerate(tables))


def test_statistics_of_narrower_types_prune_exactly(tmp_path: Path) -> None:
    """Filters use the unified type, and each file has statistics of its own type."""
    stored = [
        {"t": pa.array([1_000, 2_000], pa.timestamp("ms")), "f": pa.array([0.5, 1.5], pa.float32())},
        {"t": pa.array([1, 10**9], pa.timestamp("ns")), "f": pa.array([0.1, 1e300], pa.float64())},
        {"t": pa.nulls(1), "f": pa.array([2.0])},
    ]
    for place, columns in enumerate(stored):
        write(tmp_path / f"{place}.parquet", pa.table(columns), row_group_size=1)
    whole = read_all(open_parquet(tmp_path))
    for row_filter in (
        pc.field("t") == pa.scalar(10**9, pa.timestamp("ns")),
        pc.field("t") > pa.scalar(10**9, pa.timestamp("ns")),
        pc.field("t").is_null(),
        pc.field("f") > 1e299,
        pc.field("f") == 0.1,
        pc.field("f").isin([0.5, 2.0]),
        ~(pc.field("t") < pa.scalar(2 * 10**9, pa.timestamp("ns"))),
    ):
        assert (
            read_all(open_parquet(tmp_path, filter=row_filter)).to_pylist()
            == whole.filter(row_filter).to_pylist()
        )


def test_duplicate_column_name_raises(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    path = write(tmp_path / "t.parquet", table)
    with pytest.raises(SourceError, match=r"t.parquet has more than one column 'a'"):
        open_parquet(path)


def test_pickled_reader_is_small(path: Path) -> None:
    assert len(pickle.dumps(open_parquet(path).reader)) < 2_000


def test_cached_footer_is_not_used_for_another_file(path: Path, tmp_path: Path) -> None:
    """Parsed footers are cached by digest, so a file never gets the footer of another one."""
    twin = tmp_path / "twin.parquet"
    twin.write_bytes(path.read_bytes())
    assert read_all(open_parquet(path)).equals(read_all(open_parquet(twin)))
    buffer = io.BytesIO()
    pq.write_table(pa.table({"n": [1]}), buffer)
    twin.write_bytes(buffer.getvalue())
    assert read_all(open_parquet(twin)).to_pylist() == [{"n": 1}]


def test_interleaved_blocks_of_many_files_read_each_footer_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for place in range(12):
        table = pa.table({"of many files in turn": [place, place + 100]})
        write(tmp_path / f"{place:02}.parquet", table, row_group_size=1)
    listed = open_parquet(tmp_path, target_block_bytes=1)
    read: list[str] = []

    def note(files: Files, path: str, name: str) -> Any:
        read.append(path)
        return read_footer(files, path, name)

    monkeypatch.setattr("windrow.io.parquet.verified_files.read_footer", note)

    def read_in_turn(source: FileSource) -> None:
        for block in [*range(0, 24, 2), *range(1, 24, 2)]:
            table = source.reader.read(source.addresses([block])[0])
            assert table.column(0).to_pylist() == [block // 2 + 100 * (block % 2)]

    # listing has parsed them
    read_in_turn(listed)
    assert read == []
    read_in_turn(open_parquet(tmp_path, target_block_bytes=1, manifest=listed.manifest))
    assert sorted(read) == [f"{place:02}.parquet" for place in range(12)]

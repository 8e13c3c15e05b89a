"""read_csv returns the rows of pyarrow.csv, also when files are split into ranges."""

from __future__ import annotations

import datetime
import io
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import COMPRESS, all_rows, write_files
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError
from windrow.io.formats import csv_format as csv_format
from windrow.io.formats import line_formats

TEXTS = st.text(st.sampled_from("ab,\"' é漢1-\t"), max_size=6)
ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32),
            "s": TEXTS,
            "b": st.none() | st.booleans(),
            "d": st.none() | st.dates(datetime.date(1900, 1, 1)),
        }
    ),
    max_size=30,
)
SCHEMA = pa.schema(
    [("i", pa.int64()), ("f", pa.float64()), ("s", pa.string()), ("b", pa.bool_()), ("d", pa.date32())]
)


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_formats, "RANGE_BYTES", 16)


@examples(40)
@given(
    ROWS,
    st.integers(1, 90),
    st.integers(1, 300),
    st.sampled_from(["", *COMPRESS]),
    st.sampled_from([b"\n", b"\r\n"]),
    st.booleans(),
    st.booleans(),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    range_bytes: int,
    block_bytes: int,
    suffix: str,
    newline: bytes,
    marked: bool,
    ended: bool,
) -> None:
    table = pa.Table.from_pylist(rows, schema=SCHEMA)
    sink = io.BytesIO()
    csv.write_csv(table, sink)
    content = sink.getvalue().replace(b"\n", newline)
    content = content if ended else content.rstrip(b"\r\n")
    content = (b"\xef\xbb\xbf" if marked else b"") + content
    name = f"rows.csv{suffix}"
    folder = tmp_path_factory.mktemp("csv")
    write_files(folder, {name: COMPRESS[suffix](content) if suffix else content})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_formats, "RANGE_BYTES", range_bytes)
        ds = windrow.read_csv(folder / name, dtypes=SCHEMA, target_block_bytes=block_bytes)
        assert all_rows(ds) == rows
        assert ds.schema() == SCHEMA
        assert ds.count() == len(rows)
        ranges = 1 if suffix else -(-len(content) // range_bytes)
        assert ds.num_blocks() <= (ranges if rows else 0)
        assert rows == [] or suffix or ds.num_blocks() >= min(ranges, len(content) // block_bytes)


def test_types_are_inferred_as_by_pyarrow(tmp_path: Path) -> None:
    content = b'i,f,s,b,d,t,n\n1,1.5,x,true,2020-01-01,2020-01-01 10:00:00,\n-2,2,"a,""b",false,,,\n'
    write_files(tmp_path, {"a.csv": content})
    expected = csv.read_csv(tmp_path / "a.csv")
    ds = windrow.read_csv(tmp_path)
    assert ds.schema() == expected.schema
    assert all_rows(ds) == expected.to_pylist()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (("1", "1.5"), pa.float64()),
        (("1", ""), pa.int64()),
        (("true", "1"), pa.string()),
        (("2020-01-01", "2020-01-01 00:00:01"), pa.timestamp("s")),
        (("2020-01-01", "noon"), pa.string()),
    ],
)
def test_types_are_unified_across_files(tmp_path: Path, values: tuple[str, str], kind: pa.DataType) -> None:
    for order in (values, values[::-1]):
        write_files(tmp_path, {f"{at}.csv": f"x,y\n{value},0\n".encode() for at, value in enumerate(order)})
        ds = windrow.read_csv(tmp_path)
        assert ds.schema().field("x").type == kind
        assert len(all_rows(ds)) == 2


@pytest.mark.usefixtures("small_ranges")
def test_later_value_of_another_type_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("windrow.io.formats.row_group_format.HEAD_BYTES", 40)
    content = b"x,price\n" + b"1,2\n" * 30 + b"1,n/a?\n" + b"1,2\n" * 30
    write_files(tmp_path, {"a.csv": content})
    ds = windrow.read_csv(tmp_path, target_block_bytes=1)
    assert ds.take(3) == [{"x": 1, "price": 2}] * 3
    message = r"a\.csv, lines from byte 128 to 144: column 'price': .*'n/a\?'.*dtypes=\{'price': \.\.\.\}"
    with pytest.raises(CorruptBlockError, match=message):
        all_rows(ds)
    assert windrow.read_csv(tmp_path, columns=["x"]).count() == 61
    assert windrow.read_csv(tmp_path, dtypes={"price": pa.string()}).count() == 61
    assert windrow.read_csv(tmp_path, null_values=["n/a?"], filter=pc.field("price").is_null()).count() == 1


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("lead", range(12))
def test_newlines_in_values_raise_unless_enabled(tmp_path: Path, lead: int) -> None:
    """A value split between ranges raises an error with a fix, and never returns other rows."""
    rows = [{"n": 1, "s": "x" * at} for at in range(lead)] + [{"n": 2, "s": 'one\n"two",3\nthree'}]
    rows += [{"n": 3, "s": "y"}] * 3
    sink = io.BytesIO()
    csv.write_csv(pa.Table.from_pylist(rows), sink)
    write_files(tmp_path, {"a.csv": sink.getvalue()})
    assert all_rows(windrow.read_csv(tmp_path, newlines_in_values=True)) == rows
    with pytest.raises(
        windrow.SourceError, match=r"a\.csv.*beyond the end of its line.*newlines_in_values=True"
    ):
        windrow.read_csv(tmp_path)


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("lead", range(16))
def test_newlines_in_values_after_the_sample_raise(
    tmp_path: Path, lead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windrow.io.formats.row_group_format.HEAD_BYTES", 24)
    text = "s\n" + "x\n" * 20 + "y" * lead + '\n"one\ntwo"\n' + "z\n" * 9
    write_files(tmp_path, {"a.csv": text.encode()})
    ds = windrow.read_csv(tmp_path, target_block_bytes=1)
    with pytest.raises(windrow.SourceError, match="newlines_in_values=True"):
        all_rows(ds)
    skipping = ds.repeat(1).options(on_error="skip", executor="threads", progress=False)
    with pytest.raises(windrow.SourceError, match="newlines_in_values=True"):
        list(skipping.iter_rows())


@pytest.mark.usefixtures("small_ranges")
def test_quotes_inside_unquoted_values_are_literal(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.csv": b'n,s\n1,5" pipe\n2,6"\n3,"a ""b"""\n4,"it"s"\n5,' + b'"' * 2 + b"\n"})
    rows = all_rows(windrow.read_csv(tmp_path, target_block_bytes=1))
    assert [row["s"] for row in rows] == ['5" pipe', '6"', 'a "b"', 'its"', ""], "as pyarrow reads them"


def test_dialects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_formats, "RANGE_BYTES", 24)
    write_files(tmp_path, {"a.tsv": b"one 'line\nanother\nx;y\n1;'a;b'\n2;'it\\'s'\n"})
    options: dict[str, Any] = {"delimiter": ";", "quote_char": "'", "escape_char": "\\", "skip_rows": 2}
    rows = [{"x": 1, "y": "a;b"}, {"x": 2, "y": "it's"}]
    assert all_rows(windrow.read_csv(tmp_path, **options)) == rows
    renamed = windrow.read_csv(tmp_path, column_names=["p", "q"], header=True, **options)
    assert all_rows(renamed) == [{"p": row["x"], "q": row["y"]} for row in rows]
    unnamed = windrow.read_csv(tmp_path, header=False, **options)
    assert all_rows(unnamed)[:2] == [{"f0": "x", "f1": "y"}, {"f0": "1", "f1": "a;b"}]


@pytest.mark.usefixtures("small_ranges")
def test_files_without_a_header_are_split_into_ranges(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.csv": b"1,2\n" * 20})
    assert all_rows(windrow.read_csv(tmp_path, column_names=["x", "y"])) == [{"x": 1, "y": 2}] * 20
    assert all_rows(windrow.read_csv(tmp_path, header=False)) == [{"f0": 1, "f1": 2}] * 20


def test_encodings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_formats, "RANGE_BYTES", 16)
    text = "name,n\n" + "".join(f"Zoë {at}ÿ,{at}\n" for at in range(30))
    rows = [{"name": f"Zoë {at}ÿ", "n": at} for at in range(30)]
    for encoding in ("latin-1", "cp1252", "utf-16", "utf-16-le", "utf-8-sig"):
        write_files(tmp_path, {"a.csv": text.encode(encoding)})
        assert all_rows(windrow.read_csv(tmp_path, encoding=encoding)) == rows, encoding
    write_files(tmp_path, {"a.csv": text.encode("latin-1")})
    with pytest.raises(
        windrow.SourceError, match=r"a\.csv, column 'name'.*encoding=.*'name': pa\.binary\(\)"
    ):
        windrow.read_csv(tmp_path)
    stored = windrow.read_csv(tmp_path, dtypes={"name": pa.binary()})
    assert all_rows(stored) == [{**row, "name": str(row["name"]).encode("latin-1")} for row in rows]
    with pytest.raises(windrow.SourceError, match=r"a\.csv.*'name'.*UTF8"):
        windrow.read_csv(tmp_path, dtypes={"name": pa.string()})
    with pytest.raises(windrow.PlanError, match="encoding='klingon'"):
        windrow.read_csv(tmp_path, encoding="klingon")


@pytest.mark.usefixtures("small_ranges")
def test_lines_longer_than_a_range_and_an_arrow_block(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    write_files(tmp_path, {"a.csv": f"n,s\n1,a\n2,{long}\n3,b\n".encode()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_formats, "RANGE_BYTES", 100_000)
        ds = windrow.read_csv(tmp_path)
        assert [(row["n"], len(row["s"])) for row in all_rows(ds)] == [(1, 1), (2, len(long)), (3, 1)]
    header = ",".join(f"column_{at}" for at in range(20_000))
    write_files(tmp_path, {"a.csv": f"{header}\n{','.join('1' * 20_000)}\n".encode()})
    assert len(windrow.read_csv(tmp_path).columns()) == 20_000


def test_empty_files(tmp_path: Path) -> None:
    write_files(
        tmp_path, {"a.csv": b"", "b.csv": b"x,y\n", "c.csv": b"x,y", "d.csv": b"x,y\n1,2", "e.csv": b"\n\n"}
    )
    ds = windrow.read_csv(tmp_path)
    assert (all_rows(ds), ds.num_blocks()) == ([{"x": 1, "y": 2}], 1)
    none = windrow.read_csv(tmp_path / "b.csv")
    assert (none.count(), none.take(), none.columns(), none.num_blocks()) == (0, [], ["x", "y"], 0)
    with pytest.raises(windrow.SourceError, match=r"a\.csv is empty, as all files are"):
        windrow.read_csv([tmp_path / "a.csv", tmp_path / "e.csv"])
    named = windrow.read_csv(tmp_path / "a.csv", column_names=["x"])
    assert (named.columns(), named.count()) == (["x"], 0)


@pytest.mark.usefixtures("small_ranges")
def test_path_and_partition_columns(tmp_path: Path) -> None:
    write_files(tmp_path, {"day=1/a.csv": b"x\n1\n2\n", "day=2/b.csv": b"x\n" + b"3\n" * 9})
    ds = windrow.read_csv(tmp_path, include_paths=True)
    assert ds.take(1) == [{"x": 1, "day": 1, "path": f"{tmp_path}/day=1/a.csv"}]
    assert windrow.read_csv(tmp_path, columns=["day"]).count() == 11
    assert windrow.read_csv(tmp_path, filter=pc.field("day") == 2).count() == 9
    assert windrow.read_csv(tmp_path, columns=["day"], filter=pc.field("x") == 2).take() == [{"day": 1}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n3\n", r"a\.csv.*Row #3: Expected 2 columns, got 1"),
        (b"a,a\n1,2\n", r"a\.csv has more than one column 'a'"),
        (b"a,b\xff\n1,2\n", r"a\.csv: .* can't decode byte 0xff .* encoding="),
    ],
)
def test_malformed_files_raise(tmp_path: Path, content: bytes, message: str) -> None:
    write_files(tmp_path, {"a.csv": content})
    with pytest.raises(windrow.SourceError, match=message):
        windrow.read_csv(tmp_path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"delimiter": "ab"}, "delimiter='ab'"),
        ({"quote_char": ""}, "quote_char=''"),
        ({"compression": "rar"}, "compression='rar': use 'bz2', 'gzip'"),
        ({"skip_rows": -1}, "skip_rows=-1"),
        ({"dtypes": ["x"]}, "dtypes= is a list"),
        ({"dtypes": {"x": "number"}}, "dtypes= gives 'number' for 'x'"),
        ({"dtypes": {"x": pa.list_(pa.int8())}}, "for 'x': CSV conversion to .* cast after reading"),
        ({"encoding": "idna"}, "encoding='idna' is unknown"),
        ({"encoding": "base64"}, "encoding='base64' is unknown"),
        ({"columns": ["z"]}, "no column 'z'"),
    ],
)
def test_wrong_arguments_raise(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    write_files(tmp_path, {"a.csv": b"x\n1\n"})
    with pytest.raises(windrow.PlanError, match=message):
        windrow.read_csv(tmp_path, **arguments)


def test_column_order_can_differ_and_missing_columns_are_null(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.csv": b"x,y\n1,2\n", "b.csv": b"y,x\n3,4\n", "c.csv": b"x\n1\n"})
    assert all_rows(windrow.read_csv([tmp_path / "a.csv", tmp_path / "b.csv"])) == [
        {"x": 1, "y": 2},
        {"x": 4, "y": 3},
    ]
    everything: list[dict[str, Any]] = [{"x": 1, "y": 2}, {"x": 4, "y": 3}, {"x": 1, "y": None}]
    assert all_rows(windrow.read_csv(tmp_path)) == everything
    # a file of which nothing is selected still has its rows
    assert all_rows(windrow.read_csv(tmp_path, columns=["y"])) == [{"y": row["y"]} for row in everything]
    assert all_rows(windrow.read_csv(tmp_path, dtypes={"y": pa.int8()})) == everything
    with pytest.raises(windrow.PlanError, match=r"dtypes= has a column 'z', but no file has it"):
        windrow.read_csv(tmp_path, dtypes={"z": pa.int8()})


@pytest.mark.parametrize("suffix", COMPRESS)
def test_truncated_compressed_files_raise(tmp_path: Path, suffix: str) -> None:
    rows = [{"n": at, "s": f"text {at % 7}"} for at in range(200)]
    sink = io.BytesIO()
    csv.write_csv(pa.Table.from_pylist(rows), sink)
    whole = COMPRESS[suffix](sink.getvalue())
    for cut in {0, 1, 10, len(whole) // 2, len(whole) - 1}:
        path = write_files(tmp_path, {f"cut-{cut}.csv{suffix}": whole[:cut]}) / f"cut-{cut}.csv{suffix}"
        with pytest.raises(
            windrow.SourceError, match=rf"cut-{cut}\.csv.* {'cannot be read' if cut else 'is empty'}"
        ):
            all_rows(windrow.read_csv(path))


def test_schema_explain_and_take_read_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[tuple[int, int]] = []
    method = csv_format.CsvFormat.read

    def spy(self: Any, file: Any, start: int, stop: int, schema: Any) -> Any:
        read.append((start, stop))
        return method(self, file, start, stop, schema)

    monkeypatch.setattr(line_formats, "RANGE_BYTES", 1000)
    monkeypatch.setattr(csv_format.CsvFormat, "read", spy)
    write_files(tmp_path, {"a.csv": b"x,y\n" + b"1,2\n" * 5000})
    ds = windrow.read_csv(tmp_path, target_block_bytes=2000)
    assert ds.schema().names == ["x", "y"]
    assert "about 5,00" in str(ds.window().explain())
    assert read == []
    assert len(ds.take(20)) == 20
    assert read == [(0, 2)]
    assert ds.count() == 5000


def test_manifest_stores_the_reader_options(tmp_path: Path) -> None:
    write_files(tmp_path, {"data/a.csv": b"x;y\n1;2\n"})
    ds = windrow.read_csv(tmp_path / "data", delimiter=";")
    ds.save_manifest(tmp_path / "manifest")
    again = windrow.read_csv(None, delimiter=";", manifest=tmp_path / "manifest")
    assert all_rows(again) == [{"x": 1, "y": 2}]
    with pytest.raises(windrow.PlanError, match="manifest= was made with"):
        windrow.read_csv(None, manifest=tmp_path / "manifest")


def test_rewritten_file_raises(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.csv": b"x\n1\n"})
    ds = windrow.read_csv(tmp_path)
    write_files(tmp_path, {"a.csv": b"x\n2\n3\n"})
    with pytest.raises(windrow.SourceError, match="changed since it was listed"):
        ds.take()


def test_only_byte_ranges_are_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    asked: list[tuple[int, int]] = []

    class Store(MemoryFileSystem):  # type: ignore[misc]
        cachable = False

        def cat_file(self, path: str, start: int = 0, end: int = 0, **options: Any) -> Any:
            asked.append((start, end))
            return super().cat_file(path, start=start, end=end, **options)

    size, row = 2**20, b"1,2,3456\n"
    monkeypatch.setattr(line_formats, "RANGE_BYTES", size)
    store = Store()
    store.pipe("/csv/a.csv", b"x,y,z\n" + row * (4 * size // len(row)))
    source: Any = windrow.read_csv("/csv/a.csv", filesystem=store, target_block_bytes=size)._plan.source
    # requests run in parallel, so their order varies
    assert min(asked) == (0, 2**18), "the beginning"
    assert sum(end - start for start, end in asked) < 2**18 + 2**15
    asked.clear()
    assert source.reader.read(source.addresses([2])[0]).num_rows in (size // len(row), size // len(row) + 1)
    assert sorted(asked) == [(0, 2**18), (2 * size - 1, 3 * size + 2**16)]
    store.rm("/csv", recursive=True)

"""read_json returns the rows of pyarrow.json, read in ranges, with one type for each key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import COMPRESS, JSON_TEXTS, all_rows, write_files
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError
from windrow.io.formats import json_arrays, line_formats

ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "i": st.none() | st.integers(-(2**63), 2**63 - 1),
            "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
            "s": st.none() | JSON_TEXTS,
            "l": st.none() | st.lists(st.integers(-9, 9), max_size=3),
            "o": st.none() | st.fixed_dictionaries({"p": JSON_TEXTS, "q": st.none() | st.booleans()}),
        }
    ),
    max_size=20,
)
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("l", pa.list_(pa.int64())),
        ("o", pa.struct([("p", pa.string()), ("q", pa.bool_())])),
    ]
)


def _lines(rows: list[Any], newline: str = "\n") -> bytes:
    return "".join(json.dumps(row, ensure_ascii=len(rows) % 2 == 0) + newline for row in rows).encode()


@examples(30)
@given(
    ROWS,
    st.integers(1, 200),
    st.integers(1, 600),
    st.sampled_from(["", *COMPRESS]),
    st.sampled_from(["\n", "\r\n", "\n\n"]),
    st.booleans(),
    st.booleans(),
)
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    range_bytes: int,
    block_bytes: int,
    suffix: str,
    newline: str,
    marked: bool,
    ended: bool,
) -> None:
    content = _lines(rows, newline)
    content = content if ended else content.rstrip(b"\r\n")
    content = (b"\xef\xbb\xbf" if marked else b"") + content
    folder, name = tmp_path_factory.mktemp("json"), f"rows.jsonl{suffix}"
    write_files(folder, {name: COMPRESS[suffix](content) if suffix else content})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_formats, "RANGE_BYTES", range_bytes)
        ds = windrow.read_json(folder / name, dtypes=SCHEMA, target_block_bytes=block_bytes)
        assert all_rows(ds) == rows
        assert ds.count() == len(rows)


def test_types_are_inferred_as_by_pyarrow(tmp_path: Path) -> None:
    rows = [{"t": "2020-01-01 10:00:00", "s": "x", "n": None, "o": {"e": [1.5]}}, {"t": None, "b": True}]
    write_files(tmp_path, {"a.jsonl": _lines(rows)})
    expected = pyarrow.json.read_json(tmp_path / "a.jsonl")
    ds = windrow.read_json(tmp_path)
    assert ds.schema() == expected.schema
    assert all_rows(ds) == expected.to_pylist()


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [
        (1, 1.5, pa.float64()),
        (1, None, pa.int64()),
        ("2020-01-01", "noon", pa.string()),
        ([1], [1.5], pa.list_(pa.float64())),
        ([], ["x"], pa.list_(pa.string())),
        (
            {"p": 1},
            {"q": [{"r": 2}]},
            pa.struct([("p", pa.int64()), ("q", pa.list_(pa.struct([("r", pa.int64())])))]),
        ),
    ],
)
def test_types_are_unified_across_files(tmp_path: Path, first: Any, second: Any, kind: pa.DataType) -> None:
    write_files(
        tmp_path, {"a.jsonl": _lines([{"x": first}]), "b.jsonl": _lines([{"x": second}]), "c.jsonl": b""}
    )
    ds = windrow.read_json(tmp_path)
    assert ds.schema().field("x").type == kind
    assert len(all_rows(ds)) == 2


def test_keys_missing_in_some_files_are_null(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": b'{"x": 1}\n', "b.jsonl": b'{"y": "z"}'})
    assert all_rows(windrow.read_json(tmp_path)) == [{"x": 1, "y": None}, {"x": None, "y": "z"}]


def test_incompatible_types_raise(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": b'{"x": 1}\n', "b.jsonl": b'{"x": "z"}\n'})
    with pytest.raises(
        windrow.SourceError, match=r"column 'x' is string in .*b\.jsonl but int64 in .*a\.jsonl"
    ):
        windrow.read_json(tmp_path)


@pytest.fixture
def late(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for files whose rows change after the first 40 bytes, which are all that is sampled."""
    monkeypatch.setattr("windrow.io.formats.row_group_format.HEAD_BYTES", 40)
    monkeypatch.setattr(line_formats, "RANGE_BYTES", 64)
    return tmp_path


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"x": 1, "y": 1.5}, r"column 'y', row \d+: .*1\.5.*dtypes=\{'y': \.\.\.\}"),
        ({"x": 1, "y": "text"}, r"column 'y': .*changed from number to string.*dtypes=\{'y'"),
        (
            {"x": 1, "y": 2, "new": 3},
            r"a key that is missing from the beginning of every file \('new'\): give its type",
        ),
    ],
)
def test_later_row_that_does_not_match_raises(late: Path, row: dict[str, Any], message: str) -> None:
    write_files(late, {"a.jsonl": _lines([{"x": 1, "y": 2}] * 20 + [row] + [{"x": 1, "y": 2}] * 20)})
    ds = windrow.read_json(late, target_block_bytes=1)
    assert ds.take(2) == [{"x": 1, "y": 2}] * 2
    with pytest.raises(CorruptBlockError, match=rf"a\.jsonl, lines from byte 320 to 384: .*{message}"):
        all_rows(ds)
    assert windrow.read_json(late, columns=["x"]).count() == 41
    given = {"y": pa.float64(), "new": pa.int64()}
    if row["y"] != "text":
        assert len(all_rows(windrow.read_json(late, dtypes=given))) == 41


def test_lines_longer_than_a_range_and_an_arrow_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_formats, "RANGE_BYTES", 100_000)
    rows = [{"s": "a"}, {"s": "x" * 3_000_000}, {"s": "b"}]
    write_files(tmp_path, {"a.jsonl": _lines(rows)})
    assert all_rows(windrow.read_json(tmp_path)) == rows


def test_path_and_partition_columns(tmp_path: Path) -> None:
    write_files(tmp_path, {"day=1/a.jsonl": b'{"x": 1}\n{"x": 2}\n', "day=2/b.jsonl": b'{"x": 3}\n'})
    ds = windrow.read_json(tmp_path, include_paths=True)
    assert ds.take(1) == [{"x": 1, "day": 1, "path": f"{tmp_path}/day=1/a.jsonl"}]
    assert windrow.read_json(tmp_path, columns=["day"]).count() == 3
    assert windrow.read_json(tmp_path, columns=["day"], filter=pc.field("x") == 2).take() == [{"day": 1}]


@pytest.mark.parametrize(
    "content", [b"[1, 2]\n", b'{"x": 1\n', b"plain text\n", b"{}\n", b'{"x": 1}\n{"x": \xff}\n']
)
def test_malformed_files_raise(tmp_path: Path, content: bytes) -> None:
    write_files(tmp_path, {"a.jsonl": content})
    with pytest.raises(windrow.SourceError, match=r"a\.jsonl"):
        all_rows(windrow.read_json(tmp_path))


def test_empty_files(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": b"", "b.jsonl": b"\n\n"})
    with pytest.raises(windrow.SourceError, match=r"a\.jsonl is empty, as all files are"):
        windrow.read_json(tmp_path)
    ds = windrow.read_json(tmp_path, dtypes={"x": pa.int8()})
    assert (ds.columns(), ds.count(), ds.take()) == (["x"], 0, [])


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.float64(), 2),
        pa.struct([("a", pa.list_(pa.list_(pa.float64(), 2)))]),
        pa.large_list(pa.float64()),
        pa.map_(pa.string(), pa.int8()),
        pa.float16(),
    ],
)
def test_types_that_arrow_cannot_parse_raise(tmp_path: Path, kind: pa.DataType) -> None:
    write_files(tmp_path, {"a.jsonl": b'{"v": [1, 2]}\n'})
    with pytest.raises(windrow.PlanError, match=r"for 'v': JSON conversion to .* give .*cast after reading"):
        windrow.read_json(tmp_path, dtypes={"v": kind})


@pytest.mark.parametrize("content", [b'{"x": "\xff"}\n', b'{"\xff": 1}\n'])
def test_invalid_utf8_raises(tmp_path: Path, content: bytes) -> None:
    """Arrow does not validate UTF-8."""
    write_files(tmp_path, {"a.jsonl": content})
    with pytest.raises(windrow.SourceError, match=r"a\.jsonl: .* 0xff in position .* check encoding="):
        windrow.read_json(tmp_path)
    write_files(tmp_path, {"a.jsonl": b'{"x": "a"}\n' * 30_000 + content})
    dataset = windrow.read_json(tmp_path)
    with pytest.raises(CorruptBlockError, match=r"a\.jsonl, lines .* 0xff in position .* check encoding="):
        all_rows(dataset)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([12345678901234567890, 1], pa.uint64()),
        ([2**64 - 1, None, 0], pa.uint64()),
        ([[12345678901234567890], [1, 2]], pa.list_(pa.uint64())),
        (
            [{"a": 2**63, "b": 0.5}, {"a": 1, "b": 2.0**60}],
            pa.struct([("a", pa.uint64()), ("b", pa.float64())]),
        ),
        ([2**53 + 2, 0.5], pa.float64()),
    ],
)
def test_integers_beyond_int64_keep_their_digits(
    tmp_path: Path, values: list[Any], kind: pa.DataType
) -> None:
    write_files(tmp_path, {"a.jsonl": _lines([{"x": value} for value in values])})
    ds = windrow.read_json(tmp_path)
    assert ds.schema().field("x").type == kind
    assert all_rows(ds) == [{"x": value} for value in values]


@pytest.mark.parametrize("value", [2**64 + 1, -(2**63) - 1, 2**53 + 1])
def test_integer_that_would_be_rounded_raises(tmp_path: Path, value: int) -> None:
    write_files(tmp_path, {"a.jsonl": _lines([{"x": 0.5, "y": 1}, {"x": value, "y": 1}])})
    with pytest.raises(
        windrow.SourceError,
        match=rf"a\.jsonl, row 1: column 'x' is inferred as floats, which cannot hold the integer {value}: "
        r"give dtypes=\{'x': \.\.\.\}",
    ):
        windrow.read_json(tmp_path)
    for kind, expected in ((pa.float64(), float(value)), (pa.string(), str(value))):
        assert all_rows(windrow.read_json(tmp_path, dtypes={"x": kind}))[1]["x"] == expected


def test_integer_beyond_all_floats_is_named_too(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": _lines([{"x": 0.5}, {"x": 10**400}])})
    with pytest.raises(
        windrow.SourceError, match=r"a\.jsonl, row 1: column 'x' .* cannot hold the integer 10{400}: "
    ):
        windrow.read_json(tmp_path)


def test_later_integers_are_never_rounded(late: Path) -> None:
    rows = [{"x": 0.5}] * 40
    write_files(late, {"a.jsonl": _lines([*rows, {"x": 2**53 + 1}])})
    with pytest.raises(windrow.SourceError, match=rf"a\.jsonl.*, row \d+: column 'x' .* integer {2**53 + 1}"):
        all_rows(windrow.read_json(late))
    write_files(late, {"a.jsonl": _lines([{"x": 1}] * 40 + [{"x": 2**63}])})
    with pytest.raises(windrow.SourceError, match=rf"column 'x', row \d+: .*{2**63}.*dtypes=\{{'x'"):
        all_rows(windrow.read_json(late))
    assert all_rows(windrow.read_json(late, dtypes={"x": pa.uint64()}))[-1] == {"x": 2**63}


def test_signed_and_unsigned_files_unify(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.jsonl": b'{"x": 1}\n', "b.jsonl": b'{"x": 12345678901234567890}\n'})
    assert all_rows(windrow.read_json(tmp_path)) == [{"x": 1}, {"x": 12345678901234567890}]
    write_files(tmp_path, {"a.jsonl": b'{"x": 1}\n{"x": -1}\n'})
    with pytest.raises(windrow.SourceError, match=r"a\.jsonl.* column 'x', row 1: .*parse:-1.*dtypes=\{'x'"):
        all_rows(windrow.read_json(tmp_path))


@examples(30)
@given(
    ROWS,
    st.integers(1, 60),
    st.integers(1, 300),
    st.sampled_from(["", *COMPRESS]),
    st.sampled_from([None, 1]),
    st.sampled_from(["utf-8", "utf-16"]),
)
def test_one_array_is_read_as_its_objects(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[dict[str, Any]],
    step_bytes: int,
    piece_bytes: int,
    suffix: str,
    indent: int | None,
    encoding: str,
) -> None:
    content = f" {json.dumps(rows, indent=indent, ensure_ascii=False)}\n".encode(encoding)
    folder, name = tmp_path_factory.mktemp("json"), f"rows.json{suffix}"
    write_files(folder, {name: COMPRESS[suffix](content) if suffix else content})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_arrays, "_STEP_BYTES", step_bytes)
        patch.setattr(json_arrays, "_PIECE_BYTES", piece_bytes)
        patch.setattr(line_formats, "RANGE_BYTES", 50)
        ds = windrow.read_json(folder / name, dtypes=SCHEMA, encoding=encoding, target_block_bytes=1)
        assert all_rows(ds) == rows
        assert ds.num_blocks() == (1 if rows else 0)


def test_array_of_pandas(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1, 2], "s": ['a "],[{\\', "b"]})
    frame.to_json(tmp_path / "a.json", orient="records")
    write_files(tmp_path, {"b.json": b'{"x": 3, "s": "c"}\n'})
    assert all_rows(windrow.read_json(tmp_path)) == [*frame.to_dict("records"), {"x": 3, "s": "c"}]


def test_array_larger_than_its_head(tmp_path: Path) -> None:
    rows = [{"x": number, "s": "y" * 500} for number in range(2_000)]
    write_files(tmp_path, {"a.json": json.dumps(rows).encode()})
    ds = windrow.read_json(tmp_path)
    assert all_rows(ds) == rows
    rows[1_500]["x"] = "late"
    write_files(tmp_path, {"a.json": json.dumps(rows).encode()})
    with pytest.raises(CorruptBlockError, match=r"a\.json.*: column 'x': .*changed from number to string"):
        all_rows(windrow.read_json(tmp_path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'[{"x": 1}, {"x": 2}', "not closed: the file is truncated"),
        (b'[{"x": "1}]', "not closed: the file is truncated"),
        (b'[{"x": 1}] 2', "text follows the array"),
        (b'[{"x": 1}, 2]', "each element of its array, must be one JSON object"),
        (b"[1, 2]", "each element of its array, must be one JSON object"),
    ],
)
def test_malformed_arrays_raise(tmp_path: Path, content: bytes, message: str) -> None:
    write_files(tmp_path, {"a.json": content})
    with pytest.raises(windrow.SourceError, match=rf"a\.json .*{message}"):
        windrow.read_json(tmp_path)


def test_rows_in_errors_are_those_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_arrays, "_STEP_BYTES", 16)
    monkeypatch.setattr(json_arrays, "_PIECE_BYTES", 100)
    monkeypatch.setattr("windrow.io.formats.row_group_format.HEAD_BYTES", 40)
    rows = [{"x": 1}] * 50 + [{"x": "late"}]
    write_files(tmp_path, {"a.json": json.dumps(rows).encode()})
    with pytest.raises(CorruptBlockError, match=r"changed from number to string in row 50\. "):
        all_rows(windrow.read_json(tmp_path))
    # Arrow counts from the beginning of its block, which is not known here
    monkeypatch.setattr("windrow.io.formats.json_format.BLOCK_BYTES", 1)
    with pytest.raises(CorruptBlockError, match=r"changed from number to string\. "):
        all_rows(windrow.read_json(tmp_path))

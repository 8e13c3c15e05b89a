"""read_tfrecords: files of the tfrecord library, and variants that it does not write."""

from __future__ import annotations

import gzip
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import all_rows, write_files
from tests.laws.examples import examples
from windrow.io.formats import row_group_format
from windrow.io.formats.tfrecord_format import mask

pytest.importorskip("google_crc32c")
library = pytest.importorskip("tfrecord")

KINDS = {"int": "int", "float": "float", "byte": "byte"}
EXAMPLES = st.lists(
    st.dictionaries(
        st.sampled_from(["i", "f", "b"]),
        st.lists(st.integers(0, 2**32 - 1), max_size=4),
    ),
    max_size=12,
)


def _record(features: dict[str, tuple[Any, str]]) -> bytes:
    return library.TFRecordWriter.serialize_tf_example(features)


def _frames(records: list[bytes]) -> bytes:
    import google_crc32c

    out = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        sums = [struct.pack("<I", mask(google_crc32c.value(part))) for part in (length, record)]
        out += length + sums[0] + record + sums[1]
    return out


def _example(numbers: dict[str, list[int]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Features to write, and the expected row."""
    made = {
        "i": [(number - 2**31) * 2**31 for number in numbers.get("i", [])],
        "f": [float(np.float32(number / 7)) for number in numbers.get("f", [])],
        "b": [struct.pack("<I", number).rstrip(b"\0") for number in numbers.get("b", [])],
    }
    kinds = {"i": "int", "f": "float", "b": "byte"}
    features = {name: (made[name], kinds[name]) for name in numbers}
    return features, {name: made[name] if name in numbers else None for name in made}


SCHEMA = {"i": pa.list_(pa.int64()), "f": pa.list_(pa.float32()), "b": pa.list_(pa.binary())}


@examples(30)
@given(EXAMPLES, st.sampled_from(["", ".gz", ".zlib"]), st.integers(1, 200))
def test_round_trip(
    tmp_path_factory: pytest.TempPathFactory,
    numbers: list[dict[str, list[int]]],
    suffix: str,
    part_bytes: int,
) -> None:
    pairs = [_example(each) for each in numbers]
    content = _frames([_record(features) for features, _ in pairs])
    content = {"": lambda data: data, ".gz": gzip.compress, ".zlib": zlib.compress}[suffix](content)
    path = tmp_path_factory.mktemp("tfrecord") / f"a.tfrecord{suffix}"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_group_format, "PART_BYTES", part_bytes)
        ds = windrow.read_tfrecords(path, features=SCHEMA)
        assert all_rows(ds) == [row for _, row in pairs]
        assert ds.count() == len(pairs)


def test_files_are_read_as_by_the_tfrecord_library(tmp_path: Path) -> None:
    writer = library.TFRecordWriter(str(tmp_path / "a.tfrecord"))
    for at in range(50):
        writer.write({"n": (at, "int"), "v": ([at / 2, 1.0], "float"), "s": (f"row {at}".encode(), "byte")})
    writer.close()
    ds = windrow.read_tfrecords(tmp_path)
    schema = pa.schema([("n", pa.int64()), ("s", pa.binary()), ("v", pa.list_(pa.float32()))])
    assert ds.schema() == schema
    theirs = list(library.tfrecord_loader(str(tmp_path / "a.tfrecord"), None))
    for row, other in zip(all_rows(ds), theirs, strict=True):
        assert row["n"] == other["n"][0]
        assert row["v"] == other["v"].tolist()
        assert row["s"] == bytes(other["s"])


def test_features_determine_the_types(tmp_path: Path) -> None:
    records = [
        _record({"n": ([at], "int"), "v": ([1.0, at], "float"), "s": ([b"x"], "byte")}) for at in range(3)
    ]
    write_files(tmp_path, {"a.tfrecord": _frames(records)})
    features = {
        "n": pa.int8(),
        "v": pa.fixed_shape_tensor(pa.float64(), (1, 2)),
        "s": pa.large_string(),
        "absent": pa.float32(),
    }
    ds = windrow.read_tfrecords(tmp_path, features=features)
    assert ds.schema() == pa.schema(list(features.items()))
    batch = windrow.read_tfrecords(tmp_path, features=features, columns=["v", "n"]).take_batch()
    assert batch["v"].tolist() == [[[1.0, 0.0]], [[1.0, 1.0]], [[1.0, 2.0]]]
    assert all_rows(ds)[2]["absent"] is None
    fixed = windrow.read_tfrecords(tmp_path, features={"v": pa.list_(pa.float32(), 2)}, columns=["v"])
    assert all_rows(fixed)[1] == {"v": [1.0, 1.0]}


def test_unpacked_numbers_are_read(tmp_path: Path) -> None:
    """As protobuf 2 writes them: a tag before each number."""
    floats = b"".join(b"\x0d" + struct.pack("<f", value) for value in (1.5, -2.0))
    integers = b"\x08\x96\x01\x08\x03"
    entries = b""
    for name, tag, content in (("f", b"\x12", floats), ("i", b"\x1a", integers)):
        feature = tag + bytes([len(content)]) + content
        entry = b"\x0a\x01" + name.encode() + b"\x12" + bytes([len(feature)]) + feature
        entries += b"\x0a" + bytes([len(entry)]) + entry
    write_files(tmp_path, {"a.tfrecord": _frames([b"\x0a" + bytes([len(entries)]) + entries])})
    assert all_rows(windrow.read_tfrecords(tmp_path)) == [{"f": [1.5, -2.0], "i": [150, 3]}]


def test_types_are_unified_across_files(tmp_path: Path) -> None:
    contents = {
        "a.tfrecord": _frames([_record({"x": ([1], "int"), "y": ([1.0], "float")})]),
        "b.tfrecord": _frames([_record({"x": ([1, 2], "int")})]),
        "c.tfrecord": b"",
    }
    write_files(tmp_path, contents)
    assert all_rows(windrow.read_tfrecords(tmp_path)) == [{"x": [1], "y": 1.0}, {"x": [1, 2], "y": None}]
    write_files(tmp_path, {"d.tfrecord": _frames([_record({"x": ([1.0], "float")})])})
    with pytest.raises(windrow.SourceError, match=r"column 'x' is float in .*d\.tfrecord"):
        windrow.read_tfrecords(tmp_path)


@pytest.mark.parametrize(
    ("late", "message"),
    [
        ({"x": ([1, 2], "int")}, r"feature 'x' has 2 values in record \d+, .*features=\{'x': pa.list_"),
        ({"x": ([1.0], "float")}, "feature 'x' is a float_list, but a int64_list in other"),
        ({"x": ([1], "int"), "z": ([1], "int")}, "feature 'z' is missing from the beginning of every file"),
    ],
)
def test_later_example_that_does_not_match_raises(tmp_path: Path, late: dict[str, Any], message: str) -> None:
    records = [_record({"x": ([1], "int")})] * 1100 + [_record(late)]
    write_files(tmp_path, {"a.tfrecord": _frames(records)})
    ds = windrow.read_tfrecords(tmp_path)
    with pytest.raises(windrow.SourceError, match=rf"a\.tfrecord.*{message}"):
        all_rows(ds)


@examples(150)
@given(st.floats(0, 1, exclude_max=True), st.integers(0, 255), st.booleans())
def test_corruption_raises_except_for_cuts_between_records(
    tmp_path_factory: pytest.TempPathFactory, where: float, flip: int, cut: bool
) -> None:
    """Checksums cover every byte, but cannot detect that complete records are missing at the end."""
    rows = [{"n": at, "s": b"text"} for at in range(8)]
    whole = _frames([_record({"n": ([row["n"]], "int"), "s": ([row["s"]], "byte")}) for row in rows])
    place = int(where * len(whole))
    corrupt = whole[:place] if cut else whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :]
    path = tmp_path_factory.mktemp("corruption") / "a.tfrecord"
    path.write_bytes(corrupt)
    try:
        found = all_rows(windrow.read_tfrecords(path, features={"n": pa.int64(), "s": pa.binary()}))
    except windrow.WindrowError as error:
        assert "a.tfrecord" in str(error)  # noqa: PT017
        assert corrupt != whole
    else:
        frame = len(whole) // len(rows)
        assert found == (rows[: place // frame] if cut and place % frame == 0 else rows)


def test_other_files_than_tfrecord_raise(tmp_path: Path) -> None:
    write_files(tmp_path, {"a.tfrecord": b"some text that is no TFRecord at all"})
    with pytest.raises(
        windrow.SourceError, match=r"a\.tfrecord is not a TFRecord.*length that is not what was"
    ):
        windrow.read_tfrecords(tmp_path)
    write_files(tmp_path, {"a.tfrecord": _frames([b"\xff\xff\xff"])})
    with pytest.raises(
        windrow.SourceError, match=r"a\.tfrecord is not a TFRecord.*record 0 is not an example"
    ):
        windrow.read_tfrecords(tmp_path)
    with pytest.raises(windrow.PlanError, match="features= gives date32"):
        windrow.read_tfrecords(tmp_path, features={"x": pa.date32()})

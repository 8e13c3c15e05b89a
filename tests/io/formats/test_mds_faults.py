"""read_mds with files that are missing, corrupt or contradict one another."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.io.formats.lines_of import all_rows
from tests.io.formats.test_mds_format import NUMBERS, numbers, write_values
from tests.laws.examples import examples
from windrow.core.source import CorruptBlockError


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    folder = write_values(
        tmp_path / "m", {"x": "int", "p": "pkl", "q": "future"}, [[{"x": 1, "p": b"cos\n", "q": b""}]]
    )
    for name, why in {"p": "stored as pickles", "q": "of the encoding 'future', which is unknown"}.items():
        with pytest.raises(
            windrow.SourceError, match=f"column '{name}' in .*shard.00000.mds is {why}.*columns="
        ):
            windrow.read_mds(folder, columns=[name, "x"])
        with pytest.raises(windrow.PlanError, match=f"gives binary for '{name}'"):
            windrow.read_mds(folder, schema=pa.schema([(name, pa.binary())]))
    assert windrow.read_mds(folder, columns=["x"]).take() == [{"x": 1}]


def test_missing_and_contradicting_files(tmp_path: Path) -> None:
    folder = write_values(tmp_path / "m", NUMBERS, [numbers(5), numbers(5, 5)])
    index = json.loads((folder / "index.json").read_text())
    other = json.loads(json.dumps(index))
    other["shards"][0]["format"] = "csv"
    twice = {**index, "shards": [index["shards"][0]] * 2}
    cases = {
        "[": "is not an index of MDS shards",
        '{"version": 1, "shards": []}': "it is of version 1, and version 2 is supported",
        json.dumps(twice): "it names shard.00000.mds twice",
        json.dumps(other): "shards of the format 'csv'",
        '{"version": 2, "shards": [{}]}': "KeyError: 'version'",
        '{"version": 2, "shards": []}': "names no shards",
    }
    for content, message in cases.items():
        (folder / "index.json").write_text(content)
        with pytest.raises(windrow.SourceError, match=f"{folder}.*{message}"):
            windrow.read_mds(folder)
    (folder / "index.json").unlink()
    with pytest.raises(windrow.SourceError, match=f"{folder} has no index.json"):
        windrow.read_mds(folder)
    more = json.loads(json.dumps(index))
    more["shards"][0]["samples"] = 6
    (folder / "index.json").write_text(json.dumps(more))
    with pytest.raises(
        windrow.SourceError, match=r"00000.mds holds other samples or columns than its index.json"
    ):
        windrow.read_mds(folder)
    more["shards"][0]["samples"], more["shards"][1]["samples"] = 5, 6
    (folder / "index.json").write_text(json.dumps(more))
    with pytest.raises(windrow.SourceError, match=r"00001.mds, row group 0: read 5 rows, expected 6"):
        list(windrow.read_mds(folder).iter_batches())
    (folder / "index.json").write_text(json.dumps(index))
    shard = folder / "shard.00001.mds"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    with pytest.raises(
        windrow.SourceError, match=f"{shard} has {len(whole) - 1} bytes.* states {len(whole)}"
    ):
        windrow.read_mds(folder)
    shard.unlink()
    with pytest.raises(windrow.SourceError, match=f"{shard} is missing, and {folder}/index.json names it"):
        windrow.read_mds(folder)


def test_corrupt_samples_are_named(tmp_path: Path) -> None:
    columns = {"l": "jpeg_array", "s": "str"}
    rows = [{"l": [b"12", b"3"], "s": "é"} for _ in range(3)]
    folder = write_values(tmp_path / "m", columns, [rows, rows])
    shard = folder / "shard.00001.mds"
    content = shard.read_bytes()
    first = struct.unpack_from("<I", content, 4)[0]
    cases = {
        struct.pack("<I", 99): (first, "the values of sample 0 do not fill it"),
        struct.pack("<I", 1): (first + 12, "the elements of a list do not fill it"),
        struct.pack("<II", 7, 9): (first + 8, "the sizes of 7 elements do not fit into their list"),
        b"\xff": (len(content) - 1, "UTF8"),
        struct.pack("<I", 2**31): (0, "the offsets of 2,147,483,648 samples do not fit into it"),
        struct.pack("<I", 3): (8, "do not ascend to its end"),
    }
    for changed, (place, message) in cases.items():
        shard.write_bytes(content[:place] + changed + content[place + len(changed) :])
        ds = windrow.read_mds(folder)
        with pytest.raises(CorruptBlockError, match=f"{shard}.*{message}"):
            ds.take()
    compressed = write_values(tmp_path / "z", columns, [rows, rows], "zstd") / "shard.00001.mds.zstd"
    content = compressed.read_bytes()
    compressed.write_bytes(content[:10] + bytes(4) + content[14:])
    with pytest.raises(CorruptBlockError, match=f"{compressed}"):
        windrow.read_mds(tmp_path / "z").take()


@examples(60)
@given(
    st.sampled_from([None, "zstd", "snappy"]),
    st.integers(0, 1),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_corruption_raises_or_is_harmless(
    tmp_path_factory: pytest.TempPathFactory,
    compression: str | None,
    shard: int,
    flips: list[tuple[float, int]],
) -> None:
    columns = {"x": "int", "s": "str", "a": "ndarray", "l": "list[png]", "t": "str_int"}
    rows = [
        {"x": at, "s": "é" * at, "a": np.zeros(1 + at, "i2"), "l": [b"1"] * at, "t": at} for at in range(4)
    ]
    folder = write_values(tmp_path_factory.mktemp("corruption") / "m", columns, [rows, rows], compression)
    path = sorted(folder.glob("shard*"))[shard]
    content = bytearray(path.read_bytes())
    for place, value in flips:
        content[int(place * (len(content) - 1))] = value
    path.write_bytes(content)
    raised: windrow.WindrowError | None = None
    try:
        all_rows(windrow.read_mds(folder))
    except windrow.WindrowError as error:
        raised = error
    assert raised is None or str(path) in str(raised) or "column" in str(raised)

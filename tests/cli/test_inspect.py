"""inspect: what it tells of files, and each of its warnings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.io.formats.mds_writer import write_mds
from windrow.cli.inspect import find_warnings
from windrow.cli.main import main
from windrow.core.byte_sizes import format_bytes
from windrow.io.catalog import file_source
from windrow.io.catalog.blocks import CutSizes, cut_row_groups


def inspect_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["inspect", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_sizes_are_those_of_the_files(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspect_json(capsys, str(data))
    assert (found["files"], found["row_groups"], found["rows"]) == (12, 120, 12_000)
    assert found["stored_bytes"] == sum(path.stat().st_size for path in data.iterdir())
    metadata = [pq.read_metadata(path) for path in data.iterdir()]
    chunks = [each.row_group(at).column(0) for each in metadata for at in range(10)]
    row, label, text = found["columns"]
    assert row["stored_bytes"] == sum(chunk.total_compressed_size for chunk in chunks)
    assert (row["decoded_bytes"], label["decoded_bytes"]) == (12_000 * 8, 12_000 * 4)
    assert row["codecs"] == {"zstd": row["stored_bytes"]}
    assert label["encodings"]["RLE_DICTIONARY"] == 120
    assert (row["nulls"], text["type"], row["chunks_with_statistics"]) == (0, "string", 120)
    assert found["schemas"] == 1


def test_text_is_aligned(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{data}/part-*.parquet", "--columns", "row,text"]) == 0
    text = capsys.readouterr().out
    assert "12 files of Parquet" in text
    assert "120 row groups of 100 rows" in text
    header, row, second = text[text.index("column") :].splitlines()[:3]
    assert header.index("codec") == row.index("zstd") == second.index("zstd")
    assert "label" not in text


def test_columns_of_arrays_are_chosen_before_their_lengths_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["train/image"], file["train/label"], file["other"] = np.zeros((9, 2)), np.arange(9), np.arange(4)
    found = inspect_json(capsys, str(tmp_path / "x.h5"), "--columns", "train/label,train/image")
    assert found["rows"] == 9
    assert list(found["schema"]) == ["train/label", "train/image"]


def test_other_formats_have_no_columns_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "numbers.csv").write_text("x,y\n1,2\n3,4\n")
    assert main(["inspect", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "1 file of CSV" in text
    assert "row counts are not stored" in text
    assert main(["inspect", str(tmp_path / "numbers.csv"), "--format", "text"]) == 0
    assert "text" in capsys.readouterr().out
    windrow.range(100).write_arrow(tmp_path / "arrow")
    assert inspect_json(capsys, str(tmp_path / "arrow"))["format"] == "Arrow"
    write_mds(tmp_path / "mds", {"x": "int"}, [[{"x": bytes(8)}]])
    assert inspect_json(capsys, str(tmp_path / "mds"))["format"] == "MDS"
    orc = pytest.importorskip("pyarrow.orc")
    orc.write_table(pa.table({"x": [1]}), tmp_path / "numbers.orc")
    assert inspect_json(capsys, str(tmp_path / "numbers.orc"))["format"] == "ORC"


def test_partition_columns_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for year in (2024, 2025):
        folder = tmp_path / f"year={year}"
        folder.mkdir()
        pq.write_table(pa.table({"x": [1, 2]}), folder / "a.parquet")
    assert main(["inspect", str(tmp_path)]) == 0
    assert "partition" in capsys.readouterr().out


def write(folder: Path, name: str, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, folder / name, **options)


def test_mixed_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, "a.parquet", pa.table({"x": pa.array([1, 2], pa.int32())}), compression="snappy")
    write(tmp_path, "b.parquet", pa.table({"x": pa.array([1, 2], pa.int64())}), compression="zstd")
    found = inspect_json(capsys, str(tmp_path))
    assert found["schemas"] == 2
    assert found["file_of_another_schema"].endswith("b.parquet")
    kinds = {warning.partition(":")[0] for warning in found["warnings"]}
    assert {"mixed schemas", "mixed codecs", "few blocks"} <= kinds


def test_missing_statistics_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"x": np.arange(100), "y": np.arange(100)})
    write(tmp_path, "a.parquet", table, write_statistics=["y"], row_group_size=10)
    warnings = inspect_json(capsys, str(tmp_path), "--target-block-bytes", "100B")["warnings"]
    (without,) = [warning for warning in warnings if warning.startswith("no statistics")]
    assert "no statistics: x without" in without


BASE: dict[str, Any] = {
    "rows": 10**6,
    "rows_known": True,
    "blocks": 100,
    "block_bytes": {"least": 2**26, "mean": 2**26, "most": 2**26},
    "decoded_bytes": 100 * 2**26,
    "files": 10,
    "stored_bytes": 2**32,
    "row_groups": 100,
    "row_group_encoded_bytes": {"least": 2**25, "mean": 2**25, "most": 2**25},
    "files_of_one_row_group": 0,
    "cut_row_groups": 0,
    "target_block_bytes": 2**26,
}
SIZE = {"least": 2**20, "mean": 2**20, "most": 2**20}


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({}, None),
        ({"rows": 0}, "there are no rows"),
        ({"blocks": 7}, "few blocks"),
        ({"block_bytes": {"least": 1, "mean": 2**26, "most": 2**30}}, "uneven blocks"),
        ({"rows_known": False}, "row counts are not stored"),
        ({"row_group_encoded_bytes": {**SIZE, "most": 2**29}}, "large row groups"),
        ({"row_group_encoded_bytes": {**SIZE, "mean": 2**19}, "row_groups": 1_000}, "small row groups"),
        ({"row_group_encoded_bytes": {**SIZE, "mean": 2**19}}, None),
        (
            {"files_of_one_row_group": 10, "row_group_encoded_bytes": {**SIZE, "mean": 2**27}},
            "files of one row group",
        ),
        (
            {
                "files_of_one_row_group": 10,
                "row_group_encoded_bytes": {**SIZE, "mean": 2**27},
                "cut_row_groups": 2,
            },
            "large row groups",
        ),
        # not of few blocks, which auto does not join
        ({"files_of_one_row_group": 10, "row_group_encoded_bytes": SIZE, "target_block_bytes": 0}, None),
        ({"files": 2_000, "stored_bytes": 2_000 * 2**10}, "small files"),
        ({"files": 2_000, "stored_bytes": 2_000 * 2**20}, None),
        ({"files": 100, "stored_bytes": 100 * 2**10}, None),
    ],
)
def test_warnings(changed: dict[str, Any], kind: str | None) -> None:
    lines = find_warnings({**BASE, **changed})
    assert [line.partition(":")[0] for line in lines] == ([] if kind is None else [kind])


def test_few_blocks_are_made_smaller_only_if_row_groups_are(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    joined = inspect_json(capsys, str(data), "--target-block-bytes", "1GiB")["warnings"]
    assert "smaller blocks (--target-block-bytes), down to a row group" in joined[0]
    write(data.parent, "a.parquet", pa.table({"x": [1, 2]}))
    (single, *_) = inspect_json(capsys, str(data.parent / "a.parquet"))["warnings"]
    assert single.startswith(
        "few blocks: 1 block cannot be cut into windows that mix. Use one window, or write"
    )
    assert "windrow premix" in single


def test_small_files_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(300):
        write(tmp_path, f"{number}.parquet", pa.table({"x": [number]}))
    found = inspect_json(capsys, str(tmp_path))
    (small,) = [warning for warning in found["warnings"] if warning.startswith("small files")]
    size = format_bytes(found["stored_bytes"] / 300)
    assert small.startswith(f"small files: 300 files of {size} on average. Adjacent ones share a block")
    assert small.endswith("Write larger files, with windrow premix or write_parquet()")
    # joined, since there are more than 256
    assert found["blocks"] < 300


def test_row_groups_that_are_cut_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "a.parquet", pa.table({"x": np.arange(10_000)}), use_dictionary=False)
    write(tmp_path, "b.parquet", pa.table({"x": np.arange(10)}))
    sizes = CutSizes(1_000, 2_000, 8_000, page_rows=1)
    monkeypatch.setattr(
        file_source, "cut_row_groups", lambda manifest, target, _: cut_row_groups(manifest, target, sizes)
    )
    found = inspect_json(capsys, str(tmp_path), "--target-block-bytes", "8KB")
    assert (found["cut_row_groups"], found["row_groups"]) == (1, 2)
    assert found["blocks"] > 2
    (large,) = [warning for warning in found["warnings"] if warning.startswith("large row groups")]
    assert large.startswith("large row groups: 1 row group of up to 78.")
    assert "is cut into blocks of adjacent rows" in large


def test_columns_that_are_cast_or_filled_are_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, "a.parquet", pa.table({"x": pa.array([1, 2], pa.int32()), "tag": ["a", "b"]}))
    write(tmp_path, "b.parquet", pa.table({"x": pa.array([0.5])}))
    changes = ["x: int32 in 1 of 2 files, read as double", "tag: null in 1 of 2 files (first: b.parquet)"]
    assert inspect_json(capsys, str(tmp_path))["schema_changes"] == changes
    assert main(["inspect", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("schema")] == [f"schema    {each}" for each in changes]
    assert inspect_json(capsys, str(tmp_path / "a.parquet"))["schema_changes"] == []

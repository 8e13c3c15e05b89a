"""Writing datasets and pipelines: every row once, complete files, and a manifest."""

from __future__ import annotations

import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import windrow
from tests.dataset.write.written_files import call, dataset, rows_of, visible
from tests.io.files import write
from tests.laws.examples import examples
from windrow.core.errors import PlanError
from windrow.core.source import BlockTable
from windrow.dataset.write.write_plan import cut_parts

METHODS = ["parquet", "csv", "json", "arrow", "numpy", "tfrecords", "webdataset"]


@pytest.mark.parametrize("method", METHODS)
def test_write_makes_one_file_per_block_and_a_manifest(numbers: Path, tmp_path: Path, method: str) -> None:
    pytest.importorskip("google_crc32c")
    data = dataset(numbers, columns=["x"])
    if method == "webdataset":
        data = data.map_batches(lambda batch: {"x.cls": batch["x"]})
    written = call(data, method, tmp_path / "out")
    assert (written.rows, len(written.files)) == (60, 6)
    assert visible(tmp_path / "out") == sorted(file.path for file in written.files)
    assert [file.path[:10] for file in written.files] == [f"part-{at:05d}" for at in range(6)]
    for file in written.files:
        content = (tmp_path / "out" / file.path).read_bytes()
        assert (file.rows, file.bytes) == (10, len(content))
        assert file.sha256 == hashlib.sha256(content).hexdigest()
    manifest = json.loads((tmp_path / "out" / written.manifest).read_text())
    assert manifest["files"] == [vars(file) for file in written.files]
    assert (manifest["rows"], manifest["bytes"]) == (60, written.bytes)
    assert manifest["schema"] == [{"name": data.columns()[0], "type": "int64"}]
    assert repr(written).startswith(f"WriteResult('{tmp_path}/out': 6 files, 60 rows, ")
    assert pickle.loads(pickle.dumps(written)) == written


def test_rows_round_trip_in_order_with_transforms_filters_and_row_ids(numbers: Path, tmp_path: Path) -> None:
    data = dataset(numbers, filter=pc.field("x") != 13).options(row_id_column="id")
    kept = data.map_batches(lambda batch: {**batch, "y": batch["x"] * 2})
    kept.write_parquet(tmp_path / "out", target_file_bytes=200)
    found = windrow.read_parquet(tmp_path / "out")
    assert found.schema() == kept.schema()
    assert found.take(100) == kept.take(100)
    assert found.count() == 59


@examples(25)
@given(
    sizes=st.lists(st.integers(0, 100), max_size=20),
    target=st.none() | st.integers(1, 200),
)
def test_parts_hold_every_block_once_in_order(sizes: list[int], target: int | None) -> None:
    decoded = np.array(sizes, np.int64)
    spans = cut_parts(BlockTable(decoded, decoded, decoded, True, True), target)
    blocks = [block for span in spans for block in span]
    assert blocks == [block for block, size in enumerate(sizes) if target is not None or size]
    for span in spans:
        assert len(span) == 1 or (target is not None and sum(sizes[span.start : span.stop]) <= target)


def test_files_of_a_target_size(numbers: Path, tmp_path: Path) -> None:
    data = dataset(numbers, columns=["x"])
    joined = data.write_parquet(tmp_path / "joined", target_file_bytes=160)
    assert [file.rows for file in joined.files] == [20, 20, 20]
    cut = data.write_parquet(tmp_path / "cut", target_file_bytes="40B")
    assert [file.rows for file in cut.files] == [4, 6] * 6
    assert rows_of(tmp_path / "joined") == rows_of(tmp_path / "cut") == list(range(60))


def test_partition_columns_round_trip_as_directories(numbers: Path, tmp_path: Path) -> None:
    written = dataset(numbers).write_parquet(tmp_path / "out", partition_by="k")
    assert {file.path.partition("/")[0] for file in written.files} == {"k=k0", "k=k1", "k=k2"}
    found = windrow.read_parquet(tmp_path / "out")
    assert found.columns() == ["x", "k"]
    assert {row["x"]: row["k"] for row in found.take(100)} == {
        row["x"]: row["k"] for row in dataset(numbers).take(100)
    }
    few = dataset(numbers).write_csv(tmp_path / "few", partition_by=["k"], target_file_bytes="1MiB")
    assert len(few.files) == 3


@pytest.mark.parametrize("shuffled", [False, True])
def test_pipeline_is_written_in_the_order_of_its_epochs(
    numbers: Path, tmp_path: Path, shuffled: bool
) -> None:
    pipe = dataset(numbers).window(blocks_per_window=2).repeat(3)
    pipe = pipe.random_shuffle_each_window(seed=7) if shuffled else pipe
    written = pipe.write_parquet(tmp_path / "out", target_file_bytes=300)
    assert written.rows == 180
    for epoch in pipe.iter_epochs():
        order = [row["x"] for row in epoch.iter_rows()]
        assert rows_of(tmp_path / "out" / f"epoch={epoch.number}") == order
    sizes = [file.rows for file in written.files if file.path.startswith("epoch=1/")]
    assert len(sizes) > 2
    found = windrow.read_parquet(tmp_path / "out")
    assert (found.count(), found.columns()) == (180, ["x", "k", "epoch"])


def test_endless_pipeline_raises(numbers: Path, tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"never ends, and cannot be written: give repeat\(times\)"):
        dataset(numbers).repeat().write_parquet(tmp_path / "out")
    with pytest.raises(PlanError, match="directories called epoch="):
        dataset(numbers).repeat(1).write_parquet(tmp_path / "out", partition_by="epoch")
    assert not (tmp_path / "out").exists()


def test_empty_dataset_is_written_as_a_file_with_the_schema(numbers: Path, tmp_path: Path) -> None:
    none = dataset(numbers, filter=pc.field("x") > 1000)
    for data, name in ((none, "all"), (none.repeat(2), "epochs")):
        assert data.write_parquet(tmp_path / name).rows == 0
        found = windrow.read_parquet(tmp_path / name)
        assert (found.count(), found.columns()[:2]) == (0, ["x", "k"])


@pytest.mark.parametrize(
    ("method", "column", "error"),
    [
        ("csv", pa.array([[1]]), r"CSV cannot carry.*column 'c' is list<.*make a column of each part"),
        ("json", pa.array([b"x"]), r"JSON cannot carry.*column 'c' is binary: cast it"),
        ("numpy", pa.array([{"a": 1}]), r"NumPy cannot carry.*column 'c' is struct"),
        ("tfrecords", pa.array([1.5]), r"TFRecord cannot carry.*column 'c' is double.*pa.float32"),
        ("webdataset", pa.array([1.5]), r"WebDataset cannot carry.*column 'c' is double.*<name>.npy"),
    ],
)
def test_types_that_a_format_cannot_store_raise_before_writing(
    tmp_path: Path, method: str, column: pa.Array, error: str
) -> None:
    write(tmp_path / "in.parquet", pa.table({"c": column}))
    for data in (windrow.read_parquet(tmp_path / "in.parquet"),) * 2:
        with pytest.raises(PlanError, match=error):
            call(data, method, tmp_path / "out")
        with pytest.raises(PlanError, match=error):
            call(data.repeat(2), method, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"mode": "new"}, "mode='new' must be"),
        ({"partition_by": ["no"]}, "there is no column 'no'"),
        ({"partition_by": [3]}, "must be a list of column names"),
        ({"target_file_bytes": 0}, "target_file_bytes=0 must be at least 1 byte"),
        ({"compression": "rar"}, "compression='rar' must be one of"),
        ({"filesystem": 3}, "filesystem= is a int"),
    ],
)
def test_wrong_arguments_raise_before_writing(
    numbers: Path, tmp_path: Path, options: dict[str, Any], error: str
) -> None:
    with pytest.raises(PlanError, match=error):
        dataset(numbers).write_parquet(tmp_path / "out", **options)
    with pytest.raises(PlanError, match="give the path of one directory"):
        dataset(numbers).write_parquet([tmp_path])  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


def test_existing_files_raise_or_are_appended_to_or_replaced(numbers: Path, tmp_path: Path) -> None:
    data, out = dataset(numbers), tmp_path / "out"
    first = data.write_parquet(out)
    with pytest.raises(PlanError, match=r"out is not empty \(7 files.*mode='append'.*mode='overwrite'"):
        data.write_parquet(out)
    data.write_parquet(out, mode="append", partition_by="k")
    assert len(list(out.glob("_manifest-*"))) == 2
    assert sorted(path.name for path in out.glob("part-*")) == sorted(file.path for file in first.files)
    last = data.write_parquet(out, mode="overwrite")
    assert visible(out) == sorted(file.path for file in last.files)
    assert [path.name for path in out.glob("_*")] == [last.manifest]
    assert sorted(path.name for path in out.iterdir()) == sorted([*visible(out), last.manifest])
    with pytest.raises(PlanError, match="would replace what is being read"):
        windrow.read_parquet(out).write_parquet(out, mode="overwrite")
    assert rows_of(out) == list(range(60))


@pytest.mark.parametrize(
    ("source", "target"),
    [("out", "link"), ("link", "out"), ("out", "../{}/out"), ("out/a", "inner"), ("out", "link/../out")],
)
def test_input_files_are_not_replaced_under_another_path(tmp_path: Path, source: str, target: str) -> None:
    write(tmp_path / "out" / "a" / "0.parquet", pa.table({"x": [1, 2]}))
    (tmp_path / "link").symlink_to("out")
    (tmp_path / "inner").symlink_to("out/a")
    data = windrow.read_parquet(tmp_path / source).options(executor="threads")
    with pytest.raises(PlanError, match=r"would replace what is being read, .*0\.parquet"):
        data.write_parquet(f"{tmp_path}/{target.format(tmp_path.name)}", mode="overwrite")
    assert rows_of(tmp_path / "out") == [1, 2]


def test_input_table_is_not_replaced_even_if_the_filter_omits_all_its_files(tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    deltalake.write_deltalake(tmp_path / "t", pa.table({"x": [1, 2]}))
    data = windrow.read_delta(tmp_path / "t", filter=pc.field("x") > 9).options(executor="threads")
    with pytest.raises(PlanError, match=r"would replace what is being read, .*\.parquet"):
        data.write_parquet(tmp_path / "t", mode="overwrite")
    assert windrow.read_delta(tmp_path / "t").count() == 2


def test_memory_mapped_input_files_are_not_replaced(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_dict({"x": [1, 2]}).save_to_disk(str(tmp_path / "hf"))
    data = windrow.from_huggingface(datasets.load_from_disk(str(tmp_path / "hf"))).options(executor="threads")
    with pytest.raises(PlanError, match=r"would replace what is being read, .*\.arrow"):
        data.write_parquet(tmp_path / "hf", mode="overwrite")
    assert data.count() == 2
    data.write_parquet(tmp_path / "out")
    assert data.write_parquet(tmp_path / "out", mode="overwrite").rows == 2


def test_types_that_parquet_cannot_hold_are_rejected_with_a_fix(tmp_path: Path) -> None:
    data = windrow.from_arrow(pa.table({"r": pa.nulls(1, pa.decimal128(5, -2))}))
    with pytest.raises(PlanError, match=r"column 'r' is decimal128\(5, -2\): .*cast it to another type"):
        data.write_parquet(tmp_path / "out")


def test_other_libraries_read_the_written_files(numbers: Path, tmp_path: Path) -> None:
    data = dataset(numbers)
    assert pq.read_table(data.write_parquet(tmp_path / "p").paths[0]).num_rows == 10
    with pa.ipc.open_file(data.write_arrow(tmp_path / "a", compression="zstd").paths[5]) as file:
        assert file.read_all()["x"].to_pylist() == list(range(50, 60))
    with np.load(data.write_numpy(tmp_path / "n").paths[5]) as arrays:
        assert arrays["x"].tolist() == list(range(50, 60))
        assert arrays["k"][:3].tolist() == ["k2", "k0", "k1"]

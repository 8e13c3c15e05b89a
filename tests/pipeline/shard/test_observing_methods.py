"""What the statistics know of a pipeline."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import windrow
from windrow.pipeline.executors.describe_pipeline import describe_pipeline


@pytest.mark.parametrize(("codec", "name"), [("zstd", "zstd"), ("lz4", "lz4"), ("none", "uncompressed")])
def test_the_codec_is_that_of_most_bytes_with_and_without_row_ids(
    tmp_path: Path, codec: str, name: str
) -> None:
    # random values, which no codec makes smaller than the few of the other column
    table = pa.table({"x": np.random.default_rng(0).random(5_000), "y": np.zeros(5_000)})
    pq.write_table(table, tmp_path / "t.parquet", compression={"x": codec, "y": "gzip"})
    pipe = windrow.read_parquet(tmp_path / "t.parquet").repeat(1)
    for each in (pipe, pipe.options(row_id_column="id")):
        assert describe_pipeline(each._job()).codec == name
    with pipe.iterator() as shard:
        for epoch in shard.iter_epochs():
            list(epoch.iter_batches(batch_size=1_000))
        assert shard.stats().pipeline.codec == name


def test_rows_in_memory_and_other_formats_have_no_codec(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("x\n1\n")
    for dataset in (windrow.range(10), windrow.read_csv(tmp_path / "t.csv")):
        assert describe_pipeline(dataset.repeat(1)._job()).codec == ""


def test_files_are_those_that_are_read(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / "data" / f"day={number // 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table({"x": np.arange(100)}), folder / f"{number}.parquet", row_group_size=10)
    sizes = [path.stat().st_size for path in (tmp_path / "data").rglob("*.parquet")]
    dataset = windrow.read_parquet(tmp_path / "data")
    for pipe in (dataset.repeat(1), dataset.repeat(1).options(row_id_column="id")):
        facts = describe_pipeline(pipe._job())
        assert (facts.files, facts.file_bytes) == (6, sum(sizes) / 6)
    joined = windrow.read_parquet(tmp_path / "data", filter=pc.field("day") > 0, target_block_bytes="1GiB")
    assert describe_pipeline(joined.repeat(1)._job()).files == 4


def test_rows_that_are_files_are_not_counted(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.bin").write_bytes(b"content")
    facts = describe_pipeline(windrow.read_binary_files(tmp_path).repeat(1)._job())
    assert (facts.files, facts.has_small_files) == (0, False)

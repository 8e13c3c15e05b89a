"""The programs of Ray Datasets' talk of 2022, with windrow in the place of ray.data; GPUs are in test_images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow

pytestmark = [pytest.mark.timeout(120), pytest.mark.ray, pytest.mark.usefixtures("ray_local")]

ROWS = 3_000


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("numbers")
    key = np.arange(ROWS)
    table = pa.table({"a": key, "b": [f"text {x % 5}" for x in key], "c": key % 7, "d": key / 4})
    pq.write_table(table, folder / "numbers.parquet", row_group_size=500)
    return str(folder)


def _double(batch: Any) -> Any:
    assert len(batch["d"]) <= 512
    return {"c": batch["c"], "d": batch["d"] * 2}


def test_aggregate(numbers: str) -> None:
    ds = (
        windrow.read_parquet(numbers)
        .map_batches(_double, batch_size=512)
        .repartition(16)
        .groupby("c")
        .mean("d")
    )
    expected = [{"c": c, "mean(d)": float(np.arange(c, ROWS, 7).mean() / 2)} for c in range(7)]
    found = ds.take()
    assert [row["c"] for row in found] == list(range(7))
    assert [row["mean(d)"] for row in found] == pytest.approx([row["mean(d)"] for row in expected])


def test_shuffle(numbers: str, tmp_path: Path) -> None:
    (
        windrow.read_parquet(numbers)
        .filter(lambda row: row["c"] > 2)
        .map(lambda row: {"a": row["a"], "text": row["b"].upper()})
        .random_shuffle()
        .write_parquet(tmp_path / "out")
    )
    found = windrow.read_parquet(tmp_path / "out").to_arrow()
    expected = [{"a": a, "text": f"TEXT {a % 5}"} for a in range(ROWS) if a % 7 > 2]
    assert found.sort_by("a").to_pylist() == expected
    assert found.to_pylist() != expected


class _Lengths:
    """A model that is an actor's: it counts the bytes of a file."""

    def __call__(self, batch: Any) -> Any:
        return {"length": batch["length"], "text": batch["text"]}


@pytest.mark.nightly
def test_batch_inference(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02}.txt").write_bytes(b"x" * (number + 1))
    (
        windrow.read_binary_files(str(tmp_path), target_block_bytes=50)
        .window(blocks_per_window=2)
        .map(lambda row: {"length": len(row["bytes"]), "text": row["bytes"].decode()})
        .map_batches(_Lengths, batch_size=256, compute="actors", num_cpus=1)
        .write_json(tmp_path / "out")
    )
    # each epoch of a pipeline has a directory
    rows = windrow.read_json(tmp_path / "out" / "epoch=0").take(30)
    assert rows == [{"length": n, "text": "x" * n} for n in range(1, 21)]

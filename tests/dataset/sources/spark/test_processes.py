"""Staged files of several processes, what goes back to Spark, and trainers that read a DataFrame."""

from __future__ import annotations

import datetime
import decimal
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.dataset.sources.spark.spark_session import MARKS, SESSION, rows, run_python, stages, with_windrow
from windrow import PlanError

pytest.importorskip("pyspark")

pytestmark = MARKS


@pytest.mark.nightly
@pytest.mark.timeout(2000)
class TestProcesses:
    """Which staged files are kept, deleted, and swept after a killed process."""

    STAGE = SESSION + textwrap.dedent("""
        import sys, windrow
        files, cache, keep = sys.argv[1], sys.argv[2], sys.argv[3] == "keep"
        df = spark.read.parquet(files).selectExpr("id", "concat('a, b', id) AS text").where("id <> 3")
        print("counted", windrow.from_spark(df, cache_dir=cache, keep=keep).count(), flush=True)
    """)

    def stage(self, files: Path, cache: Path, keep: str) -> None:
        script = files.parent / "stage.py"
        script.write_text("import warnings; warnings.simplefilter('ignore')\n" + self.STAGE)
        result = subprocess.run(
            [sys.executable, str(script), str(files), str(cache), keep],
            capture_output=True,
            text=True,
            timeout=500,
            env=with_windrow(),
        )
        assert "counted 9" in result.stdout, result.stderr

    @pytest.fixture
    def files(self, tmp_path: Path) -> Path:
        (tmp_path / "input").mkdir()
        pq.write_table(pa.table({"id": np.arange(10)}), tmp_path / "input" / "part.parquet")
        return tmp_path / "input"

    def test_other_processes_reuse_kept_stages(self, files: Path, tmp_path: Path) -> None:
        cache = tmp_path / "cache"
        self.stage(files, cache, "go")
        assert stages(cache) == set()
        self.stage(files, cache, "keep")
        kept = stages(cache)
        assert len(kept) == 1
        self.stage(files, cache, "keep")
        assert stages(cache) == kept
        assert windrow.read_parquet(cache / kept.pop()).count() == 9
        time.sleep(0.01)
        pq.write_table(pa.table({"id": np.arange(10)}), files / "part.parquet")
        self.stage(files, cache, "keep")
        assert len(stages(cache)) == 2

    def test_stage_of_a_killed_process_is_swept(self, spark: Any, tmp_path: Path) -> None:
        """Spark has written all files, but the process died before it wrote the note."""
        cache = tmp_path / "cache"
        script = tmp_path / "killed.py"
        script.write_text(
            SESSION
            + textwrap.dedent("""
            import os, signal, sys, windrow
            from windrow.io.spark.spark_staging import StageFolder
            StageFolder.write_note = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
            windrow.from_spark(spark.range(10), cache_dir=sys.argv[1], keep=True)
            """)
        )
        command = [sys.executable, str(script), str(cache)]
        ended = subprocess.run(command, capture_output=True, timeout=500, env=with_windrow())
        assert ended.returncode == -signal.SIGKILL
        (left,) = stages(cache)
        assert list((cache / left).glob("*.parquet"))
        assert windrow.from_spark(spark.range(10), cache_dir=cache, keep=True).count() == 10
        assert left not in stages(cache), "the next to stage there sweeps"

    def test_trainers_need_no_spark(self, spark: Any, tmp_path: Path) -> None:
        dataset = windrow.from_spark(spark.range(10), cache_dir=tmp_path)
        (tmp_path / "dataset.pickle").write_bytes(pickle.dumps(dataset))
        result = run_python(
            """
            import pickle, sys
            dataset = pickle.load(open("dataset.pickle", "rb"))
            print(sorted(row["id"] for row in dataset.iter_rows()), "pyspark" in sys.modules)
            """,
            cwd=tmp_path,
            env=with_windrow(),
        )
        assert result.stdout.strip() == f"{list(range(10))} False"


@pytest.mark.nightly
class TestToSpark:
    def test_types(self, spark: Any, tmp_path: Path) -> None:
        table = pa.table(
            {
                "u": pa.array([2**64 - 1, None], pa.uint64()),
                "h": pa.array(np.array([0.5, 1.5], np.float16)),
                "n": pa.array([1000, None], pa.timestamp("ns")),
                "z": pa.array([1, 2], pa.timestamp("us", "UTC")),
                "m": pa.FixedSizeListArray.from_arrays(pa.array([1.0, 2, 3, 4]), 2),
                "t": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(8.0).reshape(2, 2, 2)),
                "c": pa.array(["a", "b"]).dictionary_encode(),
                "s": pa.array([{"x": 1}, None]),
            }
        )
        frame = windrow.from_arrow(table).to_spark(spark, cache_dir=tmp_path)
        assert [field.dataType.simpleString() for field in frame.schema] == [
            "decimal(20,0)", "float", "timestamp_ntz", "timestamp", "array<double>", "array<double>", "string",
            "struct<x:bigint>",
        ]  # fmt: skip
        first, second = sorted(frame.collect(), key=lambda row: row["h"])
        assert first["u"] == decimal.Decimal(2**64 - 1)
        assert first["n"] == datetime.datetime(1970, 1, 1, 0, 0, 0, 1)
        assert first["m"] == [1, 2]
        assert first["t"] == [0, 1, 2, 3]
        assert (second["u"], second["n"], second["s"], second["c"]) == (None, None, None, "b")

    def test_types_that_spark_does_not_have_raise(self, spark: Any, tmp_path: Path) -> None:
        table = pa.table({"t": pa.array([1], pa.time64("us")), "x": [1]})
        with pytest.raises(PlanError, match=r"column 't' is time64\[us\]: Spark has no time of day"):
            windrow.from_arrow(table).to_spark(spark, cache_dir=tmp_path)
        lossy = windrow.from_arrow(pa.table({"n": pa.array([1], pa.timestamp("ns"))}))
        with pytest.raises(PlanError, match=r"column 'n': .* Spark has microseconds"):
            lossy.to_spark(spark, cache_dir=tmp_path)
        assert stages(tmp_path) == set()

    def test_pipelines_give_one_pass(self, spark: Any, tmp_path: Path) -> None:
        pipe = windrow.range(50).repeat(3).random_shuffle_each_window(seed=1)
        frame = pipe.map_batches(lambda batch: {"id": batch["id"] + 1}).to_spark(spark, cache_dir=tmp_path)
        assert frame.columns == ["id"]
        assert sorted(row["id"] for row in frame.collect()) == list(range(1, 51))

    def test_round_trip(self, spark: Any, tmp_path: Path) -> None:
        dataset = windrow.range(100, block_rows=30)
        frame = dataset.to_spark(spark, cache_dir=tmp_path)
        assert rows(windrow.from_spark(frame, cache_dir=tmp_path)) == rows(dataset)


@pytest.mark.nightly
class TestTrainers:
    """What Petastorm's converter, RayDP and Orca give, in one call on the dataset of a DataFrame."""

    @pytest.fixture
    def df(self, spark: Any) -> Any:
        return spark.range(1_000).selectExpr("id", "id * 0.5D AS x", "cast(id % 3 AS int) AS y")

    def test_to_torch(self, df: Any, tmp_path: Path) -> None:
        batches = windrow.from_spark(df, cache_dir=tmp_path).to_torch(
            feature_columns=["x"], label_column="y", batch_size=100
        )
        pairs = [(x, y) for features, label in batches for x, y in zip(features, label, strict=True)]
        assert [(float(x), int(y)) for x, y in pairs] == [(row * 0.5, row % 3) for row in range(1_000)]

    def test_to_tf(self, df: Any, tmp_path: Path) -> None:
        if find_spec("tensorflow") is None:
            pytest.skip("TensorFlow is not installed")
        dataset = tmp_path / "dataset"
        dataset.write_bytes(pickle.dumps(windrow.from_spark(df, cache_dir=tmp_path / "cache")))
        # the package tfrecord, which other tests import, has messages of the same names as TensorFlow
        script = """
            import pickle, sys
            found = pickle.load(open(sys.argv[1], "rb")).to_tf(feature_columns=["x"], label_column="y", batch_size=100)
            print(*[int(value) for _, label in found for value in label.numpy()])
        """
        command = [sys.executable, "-W", "ignore", "-c", textwrap.dedent(script), str(dataset)]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
        assert [int(value) for value in done.stdout.split()] == [row % 3 for row in range(1_000)]

    def test_shards_on_executors(self, spark: Any, df: Any, tmp_path: Path) -> None:
        """The dataset is pickled to Spark's workers, which read shards, with a transform on pandas, for two epochs."""
        pipe = (
            windrow.from_spark(df, cache_dir=tmp_path)
            .map_batches(lambda frame: frame.assign(z=frame["x"] * 2), batch_format="pandas")
            .repeat(2)
            .random_shuffle_each_window(seed=7)
            .options(executor="threads", progress=False)
        )

        def train(rank: int) -> list[tuple[int, int, float]]:
            with pipe.shard(rank=rank, world_size=2) as shard:
                return [
                    (epoch.number, row["id"], row["z"])
                    for epoch in shard.iter_epochs()
                    for row in epoch.iter_rows()
                ]

        found = spark.sparkContext.parallelize(range(2), 2).map(train).collect()
        for number in range(2):
            delivered = sorted((row, z) for part in found for epoch, row, z in part if epoch == number)
            assert delivered == [(row, float(row)) for row in range(1_000)]
        assert [len(part) for part in found] == [1_000, 1_000]

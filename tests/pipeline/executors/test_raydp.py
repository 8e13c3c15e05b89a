"""``from_spark`` of a Spark that runs on Ray: an environment of its own, since RayDP wants PySpark 3.5."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from windrow import PlanError, SourceError

pytest.importorskip("raydp")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.nightly,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),
]

# What RayDP's Java needs of Java 17.
OPENED = [
    *(
        "java.base/java." + name
        for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util")
    ),
    *("java.base/java." + name for name in ("util.concurrent", "util.concurrent.atomic", "math", "text")),
    *("java.base/sun.nio.ch", "java.sql/java.sql"),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Give a session of RayDP with one executor."""
    os.environ["JDK_JAVA_OPTIONS"] = " ".join(f"--add-opens={name}=ALL-UNNAMED" for name in OPENED)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    import ray
    import raydp

    ray.init(
        address="local",
        num_cpus=4,
        object_store_memory=300 * 2**20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
    )
    session = raydp.init_spark("windrow", num_executors=1, executor_cores=1, executor_memory="500M")
    session.sparkContext.setLogLevel("OFF")
    yield session
    raydp.stop_spark()
    ray.shutdown()


def test_rows_go_through_objects(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.ml.linalg import Vectors

    monkeypatch.setattr("windrow.dataset.sources.from_spark.stage", None)
    df = spark.createDataFrame(
        [(i, i / 2, Vectors.dense([i, 1.0]) if i % 2 else Vectors.sparse(2, [0], [i])) for i in range(100)],
        ["id", "x", "v"],
    ).repartition(3)
    dataset = windrow.from_spark(df)
    assert dataset.count() == 100
    assert dataset.schema().field("x").type == pa.float32()
    assert dataset.schema().field("v").type.list_size == 2
    for executor in ("threads", "ray"):
        pipe = (
            dataset.window(blocks_per_window=2).random_shuffle_each_window(seed=5).options(executor=executor)
        )
        (batch,) = pipe.iter_batches(batch_size=100)
        assert sorted(batch["id"]) == list(range(100))
        assert batch["v"].shape == (100, 2)
        assert np.array_equal(batch["v"][:, 0], batch["id"].astype(np.float32))
        assert np.array_equal(batch["x"], batch["id"].astype(np.float32) / 2)


def read_rank(pipe: windrow.DatasetPipeline, rank: int, how: str) -> list[list[int]]:
    """The rows of each epoch that one of two ranks gets."""
    with pipe.shard(rank=rank, world_size=2) as shard:
        if how == "epochs":
            return [[int(x) for b in e.iter_batches(8) for x in b["id"]] for e in shard.iter_epochs()]
        # each call reads one epoch, as of any shard
        return [[int(x) for b in shard.iter_batches(8) for x in b["id"]] for _ in range(3)]


@pytest.mark.parametrize("where", ["here", "in tasks"])
@pytest.mark.parametrize("how", ["epochs", "calls"])
@pytest.mark.parametrize("executor", ["threads", "ray"])
def test_ranks_get_their_rows_of_every_epoch(spark: Any, executor: str, how: str, where: str) -> None:
    import ray

    dataset = windrow.from_spark(spark.range(100).repartition(4))
    pipe = dataset.window(blocks_per_window=2).repeat(3).random_shuffle_each_window(seed=5)
    pipe = pipe.options(executor=executor)
    if where == "in tasks":
        remote: Any = ray.remote(num_cpus=0)(read_rank)
        found = ray.get([remote.remote(pipe, rank, how) for rank in range(2)])
    else:
        found = [read_rank(pipe, rank, how) for rank in range(2)]
    for epoch in range(3):
        assert [len(rank[epoch]) for rank in found] == [50, 50]
        assert sorted(found[0][epoch] + found[1][epoch]) == list(range(100))
    assert len({tuple(found[0][epoch]) for epoch in range(3)}) == 3


def test_staging_folder_argument_is_used(spark: Any, tmp_path: Path) -> None:
    df = spark.range(10)
    assert windrow.from_spark(df, cache_dir=tmp_path).count() == 10
    assert len(list(tmp_path.iterdir())) == 1
    assert windrow.from_spark(df, use="parquet").count() == 10
    with pytest.raises(PlanError, match="does not read files"):
        windrow.from_spark(df).delete_staged()


def test_failing(spark: Any) -> None:
    with pytest.raises(SourceError, match=r"from_spark: .*no such station"):
        windrow.from_spark(spark.range(3).selectExpr("raise_error('no such station') AS x"))

"""Parquet for Spark, tested without Spark; the tests of ``to_spark`` read it with Spark."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from windrow import PlanError
from windrow.io.spark.spark_parquet import SparkSink


def written(table: pa.Table) -> pa.Table:
    stream = io.BytesIO()
    SparkSink().check(table.schema)
    SparkSink().write([table], stream, "0")
    return pq.read_table(io.BytesIO(stream.getvalue()))


def test_types_are_converted_to_those_of_spark() -> None:
    table = written(
        pa.table(
            {
                "h": pa.array(np.array([0.5], np.float16)),
                "n": pa.array([5_000], pa.timestamp("ns", "UTC")),
                "t": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(4.0).reshape(1, 2, 2)),
            }
        )
    )
    assert table.schema.types == [pa.float32(), pa.timestamp("us", "UTC"), pa.list_(pa.float64(), 4)]
    assert table.to_pydict()["h"] == [0.5]
    assert table["n"].cast(pa.int64()).to_pylist() == [5]
    assert table["t"].to_pylist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        (pa.time32("s"), "no time of day"),
        (pa.duration("us"), "cast it to int64"),
        (pa.null(), "cast it to the intended type"),
        (pa.decimal256(40, 2), "38 digits"),
        (pa.list_(pa.time64("us")), "no time of day"),
        (pa.struct([("a", pa.list_(pa.timestamp("ns")))]), r"Spark has no timestamp\[ns\]"),
        (pa.list_(pa.float16(), 2), "Spark has no halffloat"),
        (pa.struct([]), "column 'x'"),
    ],
)
def test_types_that_spark_lacks_raise(kind: pa.DataType, fix: str) -> None:
    with pytest.raises(PlanError, match=fix):
        SparkSink().check(pa.schema([("x", kind)]))


def test_timestamps_that_would_lose_nanoseconds_raise() -> None:
    with pytest.raises(PlanError, match=r"column 'n': .* round the column in map_batches"):
        written(pa.table({"n": pa.array([1], pa.timestamp("ns"))}))

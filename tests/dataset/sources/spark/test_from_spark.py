"""``from_spark`` and ``to_spark`` with a real Spark in local mode; all but the smoke test run nightly."""

from __future__ import annotations

import datetime
import decimal
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windrow
from tests.dataset.sources.spark.spark_session import MARKS, rows, stages
from windrow import PlanError, SourceError
from windrow.io.spark import spark_staging

pytest.importorskip("pyspark")

pytestmark = MARKS


def test_smoke(spark: Any, tmp_path: Path) -> None:
    """A DataFrame is staged once, read, pickled, passed back to Spark, and deleted."""
    df = spark.range(100).selectExpr("id", "id * 0.5D AS x")
    dataset = windrow.from_spark(df, cache_dir=tmp_path)
    assert dataset.schema() == pa.schema(
        [pa.field("id", pa.int64(), False), pa.field("x", pa.float32(), False)]
    )
    assert dataset.count() == 100
    assert len(stages(tmp_path)) == 1
    assert windrow.from_spark(df, cache_dir=tmp_path).count() == 100
    assert len(stages(tmp_path)) == 1

    copy = pickle.loads(pickle.dumps(dataset))
    pipe = copy.window(blocks_per_window=1).random_shuffle_each_window(seed=7)
    ids = [row["id"] for row in pipe.iter_rows()]
    assert ids != sorted(ids)
    assert sorted(ids) == list(range(100))

    back = copy.to_spark(spark, cache_dir=tmp_path)
    assert back.selectExpr("sum(id)", "sum(x)").first().asDict() == {"sum(id)": 4950, "sum(x)": 2475.0}

    dataset.delete_staged()
    with pytest.raises(PlanError, match="has been deleted already"):
        dataset.delete_staged()
    assert windrow.from_spark(df, cache_dir=tmp_path).count() == 100


@pytest.mark.nightly
class TestColumns:
    @pytest.mark.parametrize(
        ("dtype", "single", "double"),
        [
            ("float32", pa.float32(), pa.float32()),
            ("float64", pa.float64(), pa.float64()),
            (None, pa.float32(), pa.float64()),
        ],
    )
    def test_precision(self, spark: Any, tmp_path: Path, dtype: Any, single: Any, double: Any) -> None:
        df = spark.sql(
            "SELECT 1.5F AS f, 2.5D AS d, array(0.1D) AS a, named_struct('x', 0.2D, 's', 'text') AS s, "
            "map(1.5D, 2.5D) AS m, 7 AS i"
        )
        schema = windrow.from_spark(df, cache_dir=tmp_path, dtype=dtype).schema()
        assert schema.field("f").type == single
        assert schema.field("d").type == double
        assert schema.field("a").type.value_type == double
        assert schema.field("s").type.field("x").type == double
        assert schema.field("s").type.field("s").type == pa.string()
        assert schema.field("m").type.key_type == pa.float64()
        assert schema.field("m").type.item_type == double
        assert schema.field("i").type == pa.int32()

    def test_decimals_dates_and_times_stay_exact(self, spark: Any, tmp_path: Path) -> None:
        """Includes days before 1582, times outside of the range of nanoseconds, and nulls."""
        values = [
            (
                1,
                decimal.Decimal("12345678901234567890.12"),
                datetime.date(1500, 2, 28),
                "9999-12-31 23:59:59.999999",
            ),
            (2, None, None, None),
            (3, decimal.Decimal("-0.01"), datetime.date(9999, 12, 31), "0001-01-02 00:00:00"),
        ]
        df = spark.createDataFrame(values, "id int, c decimal(38, 2), d date, t string").selectExpr(
            "id", "c", "d", "to_timestamp_ntz(t) AS n", "CAST(t AS timestamp) AS t"
        )
        table = windrow.from_spark(df, cache_dir=tmp_path).to_arrow().sort_by("id")
        assert table.schema.types[1:] == [
            pa.decimal128(38, 2),
            pa.date32(),
            pa.timestamp("us"),
            pa.timestamp("us", "UTC"),
        ]
        assert table["c"].to_pylist() == [value[1] for value in values]
        assert table["d"].to_pylist() == [value[2] for value in values]
        assert table["n"].cast(pa.string()).to_pylist() == [
            "9999-12-31 23:59:59.999999",
            None,
            "0001-01-02 00:00:00.000000",
        ]
        stored = df.selectExpr("id", "unix_micros(t) AS t").orderBy("id").collect()
        assert table["t"].cast(pa.int64()).to_pylist() == [row["t"] for row in stored]

    def test_spark_settings_are_restored(self, spark: Any, tmp_path: Path, functions: Any) -> None:
        name, rebase = "spark.sql.parquet.outputTimestampType", "spark.sql.parquet.datetimeRebaseModeInWrite"
        spark.conf.set(name, "TIMESTAMP_MILLIS")
        before = spark.conf.get(rebase)
        try:
            windrow.from_spark(spark.range(3), cache_dir=tmp_path)
            failing = spark.range(3).select(functions.raise_error(functions.lit("too large")).cast("int"))
            with pytest.raises(SourceError, match="too large"):
                windrow.from_spark(failing, cache_dir=tmp_path)
            assert spark.conf.get(name) == "TIMESTAMP_MILLIS"
            assert spark.conf.get(rebase) == before
        finally:
            spark.conf.unset(name)

    @pytest.mark.parametrize("package", ["ml", "mllib"])
    def test_vectors_of_one_length_are_matrices(self, spark: Any, tmp_path: Path, package: str) -> None:
        vectors = __import__(f"pyspark.{package}.linalg", fromlist=["Vectors"]).Vectors
        df = spark.createDataFrame(
            [
                (0, vectors.dense([1.0, 2.0, 3.5])),
                (1, vectors.sparse(3, [1], [0.25])),
                (2, vectors.sparse(3, [], [])),
            ],
            ["id", "v w"],
        )
        expected = np.array([[1, 2, 3.5], [0, 0.25, 0], [0, 0, 0]], np.float32)
        dataset = windrow.from_spark(df, cache_dir=tmp_path)
        assert dataset.schema().field("v w").type.list_size == 3
        pipe = dataset.repeat(1).random_shuffle_each_window(seed=3)
        (batch,) = pipe.iter_batches(batch_size=9)
        assert batch["v w"].dtype == np.float32
        assert np.array_equal(batch["v w"], expected[batch["id"]])
        exact = windrow.from_spark(df, cache_dir=tmp_path, dtype=None).schema()
        assert exact.field("v w").type.value_type == pa.float64()
        pytest.importorskip("torch")
        (tensors,) = pipe.iter_torch_batches(batch_size=9)
        assert np.array_equal(tensors["v w"].numpy(), batch["v w"])

    def test_vectors_of_several_lengths_or_null(self, spark: Any, tmp_path: Path) -> None:
        from pyspark.ml.linalg import Vectors, VectorUDT
        from pyspark.sql.types import IntegerType, StructType

        schema = StructType().add("id", IntegerType()).add("v", VectorUDT())
        ragged = spark.createDataFrame([(0, Vectors.dense([1.0])), (1, Vectors.dense([1.0, 2.0]))], schema)
        dataset = windrow.from_spark(ragged, cache_dir=tmp_path)
        assert pa.types.is_list(dataset.schema().field("v").type)
        assert rows(dataset) == [{"id": 0, "v": [1.0]}, {"id": 1, "v": [1.0, 2.0]}]

        gaps = spark.createDataFrame([(0, None), (1, Vectors.dense([1.0, 2.0]))], schema)
        dataset = windrow.from_spark(gaps, cache_dir=tmp_path)
        assert dataset.schema().field("v").type.list_size == 2
        assert rows(dataset) == [{"id": 0, "v": None}, {"id": 1, "v": [1.0, 2.0]}]

        nothing = windrow.from_spark(gaps.where("v IS NULL"), cache_dir=tmp_path)
        assert rows(nothing) == [{"id": 0, "v": None}]

    def test_vectors_as_structs(self, spark: Any, tmp_path: Path, functions: Any) -> None:
        from pyspark.ml.linalg import Vectors

        df = spark.createDataFrame([(Vectors.sparse(10**6, [5], [0.5]),)], ["v"])
        (row,) = windrow.from_spark(df, cache_dir=tmp_path, vectors="struct").take()
        assert row["v"] == {"type": 0, "size": 10**6, "indices": [5], "values": [0.5]}
        nested = df.select(functions.array("v").alias("a"))
        with pytest.raises(PlanError, match=r"column 'a' holds MLlib vectors within array<"):
            windrow.from_spark(nested, cache_dir=tmp_path)

    def test_names(self, spark: Any, tmp_path: Path) -> None:
        df = spark.range(2).toDF("a.b `c` é")
        assert windrow.from_spark(df, cache_dir=tmp_path).columns() == ["a.b `c` é"]
        with pytest.raises(PlanError, match="more than one column 'id'"):
            windrow.from_spark(spark.range(2).select("id", "id"), cache_dir=tmp_path)

    def test_no_rows(self, spark: Any, tmp_path: Path) -> None:
        assert windrow.from_spark(spark.range(0), cache_dir=tmp_path).count() == 0


@pytest.mark.nightly
class TestErrors:
    def test_other_objects_than_data_frames_raise(self, spark: Any) -> None:
        with pytest.raises(PlanError, match=r"df is a list: give a pyspark\.sql\.DataFrame"):
            windrow.from_spark([1])
        with pytest.raises(PlanError, match="df is a streaming DataFrame"):
            windrow.from_spark(spark.readStream.format("rate").load())
        with pytest.raises(PlanError, match="give a SparkSession"):
            windrow.range(3).to_spark("local")

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"dtype": "float16"}, "dtype='float16' must be"),
            ({"vectors": "list"}, "vectors='list' must be"),
            ({"use": "files"}, "use='files' must be"),
            ({"use": "raydp"}, r"raydp\.init_spark"),
            ({"keep": True}, "choose their directory with cache_dir="),
        ],
    )
    def test_options(self, spark: Any, options: dict[str, Any], message: str) -> None:
        with pytest.raises(PlanError, match=message):
            windrow.from_spark(spark.range(3), **options)

    def test_spark_fails(self, spark: Any, tmp_path: Path, functions: Any) -> None:
        fail = functions.udf(lambda value: dict[str, int]()["no such station"], "int")
        with pytest.raises(SourceError, match=r"staging to file:.*KeyError: 'no such station'; check that"):
            windrow.from_spark(spark.range(3).select(fail("id").alias("x")), cache_dir=tmp_path)
        assert stages(tmp_path) == set()

    def test_unusable_cache_dirs_raise(self, spark: Any, tmp_path: Path) -> None:
        with pytest.raises(SourceError, match="give a cache_dir that can be written to"):
            windrow.from_spark(spark.range(3), cache_dir="/proc/none")
        with pytest.raises(SourceError, match='No FileSystem for scheme "memory"'):
            windrow.from_spark(spark.range(3), cache_dir="memory://stages")

    def test_cache_dir_that_is_not_shared_raises(
        self, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = spark_staging._run_spark

        def run_elsewhere(request: Any, folder: Any) -> Any:
            result = run(request, folder)
            next(Path(folder.path).glob("*.parquet")).unlink()
            return result

        monkeypatch.setattr(spark_staging, "_run_spark", run_elsewhere)
        with pytest.raises(
            SourceError, match=r"has written 10 rows, and this process finds 5: give a cache_dir="
        ):
            windrow.from_spark(spark.range(10), cache_dir=tmp_path)
        assert stages(tmp_path) == set()

"""An equal plan of Spark is staged once; a plan that only looks equal is staged too."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from tests.dataset.sources.spark.spark_session import MARKS, rows, stages
from windrow.io.spark import spark_staging

pytest.importorskip("pyspark")

pytestmark = MARKS


@pytest.mark.nightly
class TestReuse:
    """An equal plan is staged once; a plan that only looks equal is staged too."""

    def staged_anew(self, df: Any, folder: Path, **options: Any) -> bool:
        before = stages(folder)
        windrow.from_spark(df, cache_dir=folder, **options)
        return stages(folder) != before

    @pytest.fixture
    def files(self, spark: Any, tmp_path: Path) -> str:
        path = str(tmp_path / "input")
        spark.range(10).selectExpr("id", "id * 2 AS twice").write.parquet(path)
        return path

    @pytest.fixture
    def cache(self, tmp_path: Path) -> Path:
        (tmp_path / "cache").mkdir()
        return tmp_path / "cache"

    def test_equal_plans(self, spark: Any, files: str, cache: Path) -> None:
        assert self.staged_anew(spark.read.parquet(files).where("id > 3"), cache)
        assert not self.staged_anew(spark.read.parquet(files).where("id > 3"), cache)
        assert self.staged_anew(spark.read.parquet(files).where("id > 4"), cache)
        assert self.staged_anew(spark.read.parquet(files).where("id > 3"), cache, dtype=None)

    def test_plans_with_other_column_names_are_not_equal(self, spark: Any, cache: Path) -> None:
        """Spark considers plans equal that differ only in column names."""
        one, other = spark.range(3).toDF("one"), spark.range(3).toDF("other")
        assert one.sameSemantics(other)
        assert windrow.from_spark(one, cache_dir=cache).columns() == ["one"]
        assert windrow.from_spark(other, cache_dir=cache).columns() == ["other"]

    def test_rows_of_the_driver(self, spark: Any, cache: Path) -> None:
        one, other = (spark.createDataFrame([(value,)], "x int") for value in (1, 2))
        assert rows(windrow.from_spark(one, cache_dir=cache)) == [{"x": 1}]
        assert rows(windrow.from_spark(other, cache_dir=cache)) == [{"x": 2}]
        assert not self.staged_anew(one, cache)
        first, second = (spark.sql(f"SELECT * FROM VALUES ({value}), (3) AS t(x)") for value in (1, 2))
        assert self.staged_anew(first, cache)
        assert self.staged_anew(second, cache)
        assert not self.staged_anew(first, cache)

    def test_nondeterministic_plans_are_staged_each_time(
        self, spark: Any, files: str, cache: Path, functions: Any
    ) -> None:
        draw = functions.udf(lambda: os.urandom(4)[0], "int")
        for column in (
            functions.rand(), functions.rand(3), functions.current_timestamp(), functions.expr("now()"),
            functions.current_date(), functions.expr("uuid()"), functions.monotonically_increasing_id(),
            draw.asNondeterministic()(), functions.input_file_name(),
        ):  # fmt: skip
            df = spark.read.parquet(files).select(column.alias("x"))
            assert self.staged_anew(df, cache)
            assert self.staged_anew(df, cache), column
        hidden = spark.sql("SELECT id FROM range(9) WHERE id < (SELECT rand() * 9)")
        assert self.staged_anew(hidden, cache)
        assert self.staged_anew(hidden, cache)

    def test_functions_in_python(self, spark: Any, files: str, cache: Path, functions: Any) -> None:
        def added(number: int) -> Any:
            return functions.udf(lambda value: value + number, "long")

        first, second = added(1), added(2)
        df = spark.read.parquet(files)
        assert self.staged_anew(df.select(first("id").alias("x")), cache)
        assert not self.staged_anew(df.select(first("id").alias("x")), cache)
        assert self.staged_anew(df.select(second("id").alias("x")), cache)

    def test_features_of_mllib(self, spark: Any, files: str, cache: Path) -> None:
        """MLlib's features are reused, although Spark declares them nondeterministic."""
        from pyspark.ml.feature import StandardScaler, VectorAssembler

        assembler = VectorAssembler(inputCols=["id", "twice"], outputCol="v")
        df = assembler.transform(spark.read.parquet(files))
        assert self.staged_anew(df, cache)
        assert not self.staged_anew(df, cache)
        scaled = StandardScaler(inputCol="v", outputCol="s").fit(df).transform(df)
        assert self.staged_anew(scaled, cache)
        assert not self.staged_anew(scaled, cache)
        assert self.staged_anew(scaled.selectExpr("*", "rand()"), cache)
        assert self.staged_anew(scaled.selectExpr("*", "rand()"), cache)

    def test_features_of_mllib_are_compared_by_code_and_captured_values(
        self, spark: Any, files: str, cache: Path
    ) -> None:
        """Spark considers no two functions equal; windrow compares their code and the values they hold."""
        from pyspark.ml.feature import Bucketizer, StandardScaler, VectorAssembler

        df = spark.read.parquet(files)
        driver = spark.createDataFrame([(1, 2), (3, 5)], "id long, twice long")

        def assembled(df: Any, *names: str, **options: Any) -> Any:
            return VectorAssembler(inputCols=list(names), outputCol="v", **options).transform(df)

        def scaled(df: Any, low: int) -> Any:
            vectors = assembled(df, "id", "twice")
            return (
                StandardScaler(inputCol="v", outputCol="s")
                .fit(vectors.where(f"id > {low}"))
                .transform(vectors)
            )

        def cut(at: float) -> Any:
            numbers = df.selectExpr("cast(id AS double) AS x")
            return Bucketizer(splits=[-1.0, at, 99.0], inputCol="x", outputCol="b").transform(numbers)

        chosen = "cast(id AS string) <> 'x_double_VectorAssembler_{}'"
        plans: list[Callable[[], Any]] = [
            lambda: assembled(df, "id", "twice"),
            lambda: assembled(df, "twice", "id"),
            lambda: assembled(df, "id", "id"),
            lambda: assembled(df, "id", "twice", handleInvalid="skip"),
            lambda: assembled(driver, "id", "twice"),
            lambda: assembled(spark.range(10).selectExpr("id", "id * 2 AS twice"), "id", "twice"),
            lambda: scaled(df, 0),
            lambda: scaled(df, 3),
            lambda: cut(3.0),
            lambda: cut(4.0),
            # looks like a name generated by an assembler, but is not
            lambda: assembled(df, "id").where(chosen.format("0123456789ab")),
            lambda: assembled(df, "id").where(chosen.format("ba9876543210")),
        ]
        for make in plans:
            assert self.staged_anew(make(), cache)
            assert not self.staged_anew(make(), cache)
        # rows of the driver are compared by value, not by DataFrame
        others = spark.createDataFrame([(1, 2), (3, 6)], "id long, twice long")
        assert self.staged_anew(assembled(others, "id", "twice"), cache)
        drawn = [assembled(df.selectExpr("id", "rand() AS twice"), "id", "twice") for _ in range(2)]
        assert [self.staged_anew(each, cache) for each in drawn] == [True, True]

    def test_changed_files_are_staged_again(self, spark: Any, files: str, cache: Path) -> None:
        """Appended files, files that a DataFrame does not see, and rewritten files."""
        old = spark.read.parquet(files)
        assert windrow.from_spark(old, cache_dir=cache).count() == 10
        spark.range(5).selectExpr("id", "id AS twice").write.mode("append").parquet(files)
        new = spark.read.parquet(files)
        assert old.sameSemantics(new)
        assert windrow.from_spark(new, cache_dir=cache).count() == 15
        assert windrow.from_spark(old, cache_dir=cache).count() == old.count() == 10

        (one, *_) = sorted(Path(files).glob("*.parquet"))
        table = pq.read_table(one)
        doubled = table.set_column(0, "id", pa.array(np.full(len(table), 77), pa.int64()))
        time.sleep(0.01)
        pq.write_table(doubled, one)
        (Path(files) / f".{one.name}.crc").unlink()
        spark.catalog.refreshByPath(files)
        assert (
            windrow.from_spark(spark.read.parquet(files), cache_dir=cache)
            .to_arrow()["id"]
            .to_pylist()
            .count(77)
            > 0
        )

    def test_stage_is_not_reused_if_its_files_changed_during_staging(
        self, spark: Any, files: str, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = spark_staging._run_spark

        def run_and_append(*arguments: Any) -> Any:
            result = run(*arguments)
            spark.range(5).selectExpr("id", "id AS twice").write.mode("append").parquet(files)
            time.sleep(0.01)
            for path in Path(files).glob("*.parquet"):
                os.utime(path)
            return result

        df = spark.read.parquet(files)
        monkeypatch.setattr(spark_staging, "_run_spark", run_and_append)
        windrow.from_spark(df, cache_dir=cache, keep=True)
        monkeypatch.undo()
        assert self.staged_anew(df, cache, keep=True)
        assert not self.staged_anew(df, cache, keep=True)

    def test_opaque_sources_are_staged_each_time(self, spark: Any, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "lines").write_text("1\n2\n")
        df = spark.sparkContext.textFile(str(tmp_path / "lines")).map(lambda line: (line,)).toDF(["x"])
        assert self.staged_anew(df, cache)
        assert self.staged_anew(df, cache)

    def test_options_of_a_reader(self, spark: Any, tmp_path: Path, cache: Path) -> None:
        (tmp_path / "table.csv").write_text("1\n2\n")
        for header in ("true", "false"):
            df = spark.read.schema("x string").option("header", header).csv(str(tmp_path / "table.csv"))
            assert windrow.from_spark(df, cache_dir=cache, keep=True).count() == (
                1 if header == "true" else 2
            )

    def test_deleted_or_changed_staging_files_are_staged_again(
        self, spark: Any, files: str, cache: Path
    ) -> None:
        df = spark.read.parquet(files)
        dataset = windrow.from_spark(df, cache_dir=cache)
        dataset.delete_staged()
        assert stages(cache) == set()
        assert windrow.from_spark(df, cache_dir=cache).count() == 10
        next(cache.glob("*/*.parquet")).unlink()
        assert windrow.from_spark(df, cache_dir=cache).count() == 10
        next(cache.glob("*/_windrow_stage.json")).write_text("{")
        assert windrow.from_spark(df, cache_dir=cache).count() == 10

    def test_temporary_stage_is_not_reused_with_keep(self, spark: Any, files: str, cache: Path) -> None:
        df = spark.read.parquet(files)
        assert self.staged_anew(df, cache)
        assert self.staged_anew(df, cache, keep=True)
        assert not self.staged_anew(df, cache, keep=True)

    def test_concurrent_threads_stage_once(self, spark: Any, files: str, cache: Path) -> None:
        df = spark.read.parquet(files)
        with ThreadPoolExecutor(4) as threads:
            found = list(threads.map(lambda _: windrow.from_spark(df, cache_dir=cache).count(), range(4)))
        assert found == [10] * 4
        assert len(stages(cache)) == 1

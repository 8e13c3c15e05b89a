"""``from_spark`` and ``to_spark`` with a real Spark in local mode; all but the smoke test run nightly."""

from __future__ import annotations

import datetime
import decimal
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windrow
from windrow import PlanError, SourceError
from windrow.io.spark import spark_staging

pytest.importorskip("pyspark")

pytestmark = [
    # pandas 3 is newer than what PySpark has been tested with
    pytest.mark.filterwarnings("ignore:PySpark does not yet fully support:FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyspark"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]

SESSION = """
from pyspark.sql import SparkSession, functions as F
spark = (
    SparkSession.builder.master("local[2]").appName("windrow")
    .config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    .config("spark.sql.shuffle.partitions", "2").config("spark.driver.memory", "1g")
    .config("spark.driver.bindAddress", "127.0.0.1").config("spark.driver.host", "127.0.0.1")
    .getOrCreate()
)
spark.sparkContext.setLogLevel("OFF")
"""


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    """Yield a Spark session with two threads."""
    if subprocess.run(["java", "-version"], capture_output=True).returncode:
        pytest.skip("Spark needs Java")
    # workers must run this interpreter; in local mode, no session setting selects it
    os.environ["PYSPARK_PYTHON"] = sys.executable
    names: dict[str, Any] = {}
    exec(SESSION, names)
    yield names["spark"]
    names["spark"].stop()


@pytest.fixture
def functions() -> Any:
    from pyspark.sql import functions

    return functions


def stages(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def rows(dataset: windrow.Dataset) -> list[dict[str, Any]]:
    return sorted(dataset.to_arrow().to_pylist(), key=lambda row: str(next(iter(row.values()))))


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


def with_windrow() -> dict[str, str]:
    """Return an environment in which a child process imports the same windrow as this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def run_python(code: str, *, check: bool = True, **arguments: Any) -> subprocess.CompletedProcess[str]:
    warnings = "import warnings; warnings.simplefilter('ignore')\n"
    command = [sys.executable, "-c", warnings + textwrap.dedent(code)]
    return subprocess.run(command, capture_output=True, text=True, check=check, timeout=500, **arguments)


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

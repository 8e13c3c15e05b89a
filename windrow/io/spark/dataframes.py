"""Spark sessions and DataFrames: checks, options set for a while, Spark's errors, columns as Parquet carries them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

from windrow.core.errors import PlanError, SourceError
from windrow.core.optional_dependencies import require
from windrow.io.storage.credentials import redact, safe_cause

_RESTART = "start a new SparkSession, and create the DataFrame in it"
FloatType = Literal["float32", "float64"]
VectorForm = Literal["array", "struct"]


def check_frame(df: Any) -> None:
    """Raise a PlanError unless ``df`` is a batch DataFrame of a classic, running Spark session."""
    sql = require("pyspark.sql", "spark", "from_spark()")
    if _is_connect(df):
        raise PlanError(
            "df is a DataFrame of Spark Connect, which does not expose its plan: write it with "
            "df.write.parquet, and read the files with read_parquet"
        )
    if not isinstance(df, sql.DataFrame):
        raise PlanError(f"df is a {type(df).__name__}: give a pyspark.sql.DataFrame")
    _check_alive(df.sparkSession)
    if df.isStreaming:
        raise PlanError(
            "df is a streaming DataFrame, which never ends: write it to Parquet files, and read them with "
            "read_parquet"
        )


def check_session(spark: Any) -> None:
    """Raise a PlanError unless ``spark`` is a classic, running Spark session."""
    sql = require("pyspark.sql", "spark", "to_spark()")
    if _is_connect(spark) or not isinstance(spark, sql.SparkSession):
        raise PlanError(f"spark is a {type(spark).__module__}.{type(spark).__name__}: give a SparkSession")
    _check_alive(spark)


def runs_on_ray(spark: Any) -> bool:
    """Return whether RayDP runs the session."""
    return str(spark.sparkContext.master).startswith("ray://")


def _is_connect(value: Any) -> bool:
    return type(value).__module__.startswith("pyspark.sql.connect")


def _check_alive(spark: Any) -> None:
    if spark.sparkContext._jsc is None or spark.sparkContext._jsc.sc().isStopped():
        raise PlanError(f"the Spark session has been stopped: {_RESTART}")


@contextmanager
def settings(spark: Any, values: Mapping[str, str]) -> Iterator[None]:
    """Set options of a session temporarily; not thread-safe, so callers must hold a lock."""
    before = {name: spark.conf.get(name, None) for name in values}
    try:
        for name, value in values.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


@contextmanager
def mapped_errors(what: str, fix: str, secrets: Collection[str]) -> Iterator[None]:
    """Map Spark's exceptions to a SourceError with Spark's root cause."""
    from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JNetworkError, ConnectionError) as error:
        raise SourceError(f"{what}: Spark's Java process has ended ({error}); {_RESTART}") from error
    except (PySparkException, Py4JJavaError, Py4JError) as error:
        why = redact(_cause_text(error), secrets)
        raise SourceError(f"{what}: {why}; {fix}") from safe_cause(error, secrets)


def _cause_text(error: BaseException) -> str:
    """Return the root cause in one line; Spark wraps it several times."""
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)
    if java is None:
        # for a missing Java method, Py4J's first line holds nothing but the call
        return _last_line(str(error).replace(". Trace:\n", ": "))
    while java.getCause() is not None:
        java = java.getCause()
    name = java.getClass().getSimpleName()
    line = _last_line(str(java.getMessage() or ""))
    return line if name in line or name in ("PythonException", "AnalysisException") else f"{name}: {line}"


def _last_line(text: str) -> str:
    """Return the informative line: the last one of a Python traceback, else the first."""
    before_java = text.split("\n\tat ", 1)[0].split("\nDriver stacktrace", 1)[0]
    lines = [line.strip() for line in before_java.splitlines()]
    lines = [line for line in lines if line and not line.startswith("SQLSTATE")]
    if not lines:
        return "no message"
    if "Traceback (most recent call last)" in text:
        return lines[-1].rstrip(".")
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1]).rstrip(".")


@dataclass(frozen=True)
class Conversion:
    """How columns are converted.

    Floats are converted to ``dtype`` if there is one, also in arrays, structs and maps. MLlib vectors become
    arrays, or stay as Spark stores them (``"struct"``).
    """

    dtype: FloatType | None
    vectors: VectorForm

    def __post_init__(self) -> None:
        if self.dtype is not None and self.dtype not in get_args(FloatType):
            raise PlanError(
                f"dtype={self.dtype!r} must be 'float32', 'float64', or None to leave floats alone"
            )
        if self.vectors not in get_args(VectorForm):
            raise PlanError(f"vectors={self.vectors!r} must be 'array' or 'struct'")

    def vector_columns(self, schema: Any) -> list[str]:
        """Return the names of the vector columns that are converted to arrays."""
        if self.vectors == "struct":
            return []
        return [field.name for field in schema.fields if _is_vector(field.dataType)]

    def apply(self, df: Any) -> Any:
        """Return the converted DataFrame; it is lazy."""
        names = [field.name for field in df.schema.fields]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        if duplicates:
            raise PlanError(f"df has more than one column {duplicates[0]!r}: rename them with df.toDF(...)")
        return df.select([self._convert(field) for field in df.schema.fields])

    def _convert(self, field: Any) -> Any:
        from pyspark.ml.functions import vector_to_array
        from pyspark.sql import functions

        column = select_column(field.name)
        if self.vectors == "array" and _is_vector(field.dataType):
            # vector_to_array fails on null
            array = functions.when(column.isNotNull(), vector_to_array(column, self.dtype or "float64"))
            return array.alias(field.name)
        if self.vectors == "array" and _holds_vector(field.dataType):
            raise PlanError(
                f"column {field.name!r} holds MLlib vectors within {field.dataType.simpleString()}: "
                "select them as columns of their own, or give vectors='struct'"
            )
        target = self._type(field.dataType)
        return column if target == field.dataType else column.cast(target).alias(field.name)

    def _type(self, kind: Any) -> Any:
        """Return a type with its floats changed to ``dtype``, except in keys of maps."""
        from pyspark.sql import types

        if self.dtype is None:
            return kind
        if isinstance(kind, (types.FloatType, types.DoubleType)):
            return types.FloatType() if self.dtype == "float32" else types.DoubleType()
        if isinstance(kind, types.ArrayType):
            return types.ArrayType(self._type(kind.elementType), kind.containsNull)
        if isinstance(kind, types.MapType):
            return types.MapType(kind.keyType, self._type(kind.valueType), kind.valueContainsNull)
        if isinstance(kind, types.StructType):
            return types.StructType(
                [
                    types.StructField(f.name, self._type(f.dataType), f.nullable, f.metadata)
                    for f in kind.fields
                ]
            )
        return kind


def select_column(name: str) -> Any:
    """The column of a name, which can contain any character."""
    from pyspark.sql import functions

    return functions.col("`" + name.replace("`", "``") + "`")


def _is_vector(kind: Any) -> bool:
    from pyspark.ml.linalg import VectorUDT
    from pyspark.mllib.linalg import VectorUDT as OldVectorUDT

    return isinstance(kind, (VectorUDT, OldVectorUDT))


def _holds_vector(kind: Any) -> bool:
    from pyspark.sql import types

    if isinstance(kind, types.ArrayType):
        return _is_vector(kind.elementType) or _holds_vector(kind.elementType)
    if isinstance(kind, types.MapType):
        return any(_is_vector(part) or _holds_vector(part) for part in (kind.keyType, kind.valueType))
    if isinstance(kind, types.StructType):
        return any(_is_vector(field.dataType) or _holds_vector(field.dataType) for field in kind.fields)
    return False

"""``from_spark``: a Spark DataFrame as a dataset."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.core.source import Source
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.spark.dataframe_columns import Conversion, FloatType, VectorForm
from windrow.io.spark.session import check_frame, mapped_errors, runs_on_ray
from windrow.io.spark.staging import StageRequest, stage
from windrow.io.spark.staging_folder import open_root

__all__ = ["from_spark"]

_BLOCK_BYTES = 64 * 2**20


def from_spark(
    df: Any,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    keep: bool = False,
    dtype: FloatType | None = "float32",
    vectors: VectorForm = "array",
    use: Literal["auto", "parquet", "raydp"] = "auto",
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Describe a Spark DataFrame as a dataset: Spark computes it once and stages it as Parquet.

    What comes back reads these files. It can be pickled, and needs no Spark.

    A DataFrame that is sure to have the same rows as one before, with the same options, is not
    staged again: plan, columns and settings are equal, and the input files are what they were.
    That can be told of files of Spark's own sources (Parquet, ORC, CSV, JSON, text), of ranges, and
    of what the driver holds in memory. It cannot of ``rand()``, ``current_timestamp()`` and their
    like, nor of tables of Hive, JDBC, Delta or Iceberg: these are staged at each call. Functions
    count as pure unless they are declared nondeterministic. With ``keep=True`` later processes
    find what was staged too, unless the plan holds functions in Python or Scala, of MLlib's models
    among others, or rows of the driver; read these with ``read_parquet``.

    Parameters
    ----------
    df
        A ``pyspark.sql.DataFrame`` of a plain SparkSession (not of Spark Connect), PySpark 3.5 or newer.
    cache_dir
        The directory to stage below: a path or URL (``s3a://``, ``hdfs://`` ...) that Spark, this
        process and the trainers see at the same place. None: the system's folder for temporary
        files, where Spark runs on this machine.
    keep
        False: the files are removed when this process ends. True, with a ``cache_dir``: they stay,
        and you remove them, with `Dataset.delete_staged`.
    dtype
        ``"float32"`` or ``"float64"``: what floats, doubles and vectors become, within arrays, structs
        and maps too; None: they stay. Decimals, dates and timestamps always stay: decimals exact,
        timestamps as microseconds in UTC. Nulls stay nulls.
    vectors
        ``"array"``: MLlib vectors, dense or sparse, become lists; where all of a column
        have one length d, fixed-size ones, which are (rows, d) arrays and tensors. ``"struct"``: they
        stay what Spark stores (type, size, indices, values), for sparse ones that are too wide. Columns
        of arrays stay lists in any case.
    use
        ``"raydp"``: rows go into Ray's object store instead of files, from a Spark that runs on Ray by
        RayDP; they last as long as this process. ``"parquet"``: they are staged. ``"auto"``:
        RayDP where the session is one of it and no ``cache_dir`` is given.
    storage_options
        What fsspec needs to open ``cache_dir``; Spark has its own configuration.

    Raises
    ------
    PlanError
        If an argument is wrong, ``df`` is none, or PySpark is missing.
    SourceError
        If Spark fails, with its cause; or ``cache_dir`` is not shared.

    Examples
    --------
    >>> import windrow
    >>> windrow.from_spark([1, 2, 3])
    Traceback (most recent call last):
    ...
    windrow.core.errors.PlanError: ...
    """
    check_frame(df)
    if use not in ("auto", "parquet", "raydp"):
        raise PlanError(f"use={use!r} must be 'auto', 'parquet' or 'raydp'")
    if keep and cache_dir is None:
        raise PlanError("keep=True keeps what is staged: say where, with cache_dir=")
    conversion = Conversion(dtype, vectors)
    if use == "raydp" or (use == "auto" and cache_dir is None and runs_on_ray(df.sparkSession)):
        return Dataset(LogicalPlan(_by_ray(df, conversion)))
    root = open_root(cache_dir, storage_options)
    return Dataset(LogicalPlan(stage(StageRequest(df, conversion, root, keep, storage_options))))


def _by_ray(df: Any, conversion: Conversion) -> Source:
    if not runs_on_ray(df.sparkSession):
        raise PlanError(
            "use='raydp' needs a session that raydp.init_spark() made: make df of it, or stage it"
        )
    require("raydp", "raydp", "from_spark(use='raydp')")
    from windrow.pipeline.executors.ray.data.raydp import list_frame

    with mapped_errors("from_spark", "see that df.count() succeeds", ()):
        return list_frame(conversion.apply(df), conversion.vector_columns(df.schema), _BLOCK_BYTES)

"""from_spark: a Spark DataFrame as a Dataset, staged as Parquet or passed through RayDP."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Literal

from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.core.source import Source
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.spark.dataframes import (
    Conversion,
    FloatType,
    VectorForm,
    check_frame,
    mapped_errors,
    runs_on_ray,
)
from windrow.io.spark.spark_staging import StageRequest, open_root, stage

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
    """Return a dataset of a Spark DataFrame; Spark computes it once, now, and stages it as Parquet files.

    The dataset reads these files. It can be pickled and does not need Spark.

    A DataFrame is not staged again if it provably has the same rows as one staged before with the
    same options: plan, columns and settings are equal, and the input files are unchanged. This can
    be proven for files of Spark's own sources (Parquet, ORC, CSV, JSON, text), for ranges, and for
    data in the driver's memory. It cannot be proven for ``rand()``, ``current_timestamp()`` and
    similar functions, nor for tables of Hive, JDBC, Delta or Iceberg: these are staged at each
    call. Functions count as pure unless they are declared nondeterministic. With ``keep=True``,
    later processes reuse the staged files too, unless the plan holds functions in Python or Scala
    (including those of MLlib's models) or rows of the driver; use ``read_parquet`` for these.

    Parameters
    ----------
    df
        A ``pyspark.sql.DataFrame`` of a classic SparkSession (not Spark Connect), PySpark 3.5 or newer.
    cache_dir
        The directory for staged files: a path or URL (``s3a://``, ``hdfs://`` ...) that is valid for
        Spark, this process and the trainers. None: the system's temporary folder, for a Spark that
        runs on this machine.
    keep
        False: the files are deleted when this process ends. True, which needs a ``cache_dir``: they
        stay until you delete them, with `Dataset.delete_staged`.
    dtype
        ``"float32"`` or ``"float64"``: the type to which floats, doubles and vectors are converted,
        also within arrays, structs and maps; None: no conversion. Decimals stay exact, timestamps
        are microseconds in UTC, and dates and nulls are unchanged.
    vectors
        ``"array"``: MLlib vectors, dense or sparse, become lists; if all vectors of a column have
        the same length d, they become fixed-size lists, which are delivered as (rows, d) arrays and
        tensors. ``"struct"``: vectors stay as Spark stores them (type, size, indices, values), for
        sparse vectors that are too wide. Array columns always stay lists.
    use
        ``"raydp"``: rows go into Ray's object store instead of files, from a Spark session that runs
        on Ray through RayDP; they last as long as this process. ``"parquet"``: rows are staged.
        ``"auto"``: RayDP if it runs the session and no ``cache_dir`` is given, else Parquet.
    storage_options
        fsspec options to open ``cache_dir``; Spark uses its own configuration.

    Raises
    ------
    PlanError
        If an argument is invalid, ``df`` is not a DataFrame, or PySpark is not installed.
    SourceError
        If Spark fails; the message holds its root cause. If Spark and this process do not share
        ``cache_dir``.

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
        raise PlanError("keep=True keeps the staged files: choose their directory with cache_dir=")
    conversion = Conversion(dtype, vectors)
    if use == "raydp" or (use == "auto" and cache_dir is None and runs_on_ray(df.sparkSession)):
        return Dataset(LogicalPlan(_open_raydp(df, conversion)))
    root = open_root(cache_dir, storage_options)
    return Dataset(LogicalPlan(stage(StageRequest(df, conversion, root, keep, storage_options))))


def _open_raydp(df: Any, conversion: Conversion) -> Source:
    if not runs_on_ray(df.sparkSession):
        raise PlanError(
            "use='raydp' needs a session made by raydp.init_spark(): create df in such a session, or give "
            "use='parquet'"
        )
    require("raydp", "raydp", "from_spark(use='raydp')")
    from windrow.pipeline.executors.ray.data.ray_data_source import list_frame

    with mapped_errors("from_spark", "check that df.count() succeeds", ()):
        return list_frame(conversion.apply(df), conversion.vector_columns(df.schema), _BLOCK_BYTES)

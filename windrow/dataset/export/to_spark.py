"""to_spark: rows as a Spark DataFrame, staged as Parquet files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.write.write_blocks import write_parts
from windrow.dataset.write.write_epochs import write_epochs
from windrow.dataset.write.write_job import WriteRequest
from windrow.io.spark.dataframes import check_session, mapped_errors
from windrow.io.spark.spark_parquet import SparkSink
from windrow.io.spark.spark_staging import StageFolder, StageRoot, open_root

__all__ = ["to_spark"]

_FIX = "give a cache_dir= that every machine of the Spark cluster sees under the same path"


def to_spark(
    plan: LogicalPlan,
    spark: Any,
    cache_dir: str | os.PathLike[str] | None,
    storage_options: Mapping[str, Any] | None,
) -> Any:
    """Write one pass to a folder that is deleted when this process ends, and open it with Spark."""
    check_session(spark)
    root = open_root(cache_dir, storage_options)
    root.sweep()
    folder = root.make(None)
    try:
        url = folder.url + _write(plan, root, folder, storage_options)
        with mapped_errors(f"to_spark: reading {url}", _FIX, root.secrets):
            frame = spark.read.parquet(url)
    except BaseException:
        folder.delete()
        raise
    folder.delete_at_exit()
    return frame


def _write(
    plan: LogicalPlan, root: StageRoot, folder: StageFolder, storage_options: Mapping[str, Any] | None
) -> str:
    """Write one pass and return its path relative to the folder."""
    target = folder.path if root.local else folder.url
    options = None if root.local else storage_options
    request = WriteRequest(SparkSink(), target, mode="append", storage_options=options)
    if plan.delivers_blocks:
        write_parts(plan, request)
        return ""
    write_epochs(replace(plan, epochs=1), request)
    return "/epoch=0"

"""A DataFrame as Parquet files: written once, checked, and used again while it is sure to be the same."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from windrow.core.errors import SourceError
from windrow.core.tracebacks import ends_traceback
from windrow.io.catalog.file_source import FileSource, open_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.io.spark.dataframe_columns import Conversion
from windrow.io.spark.plan_equality import PlanIdentity, identify
from windrow.io.spark.session import mapped_errors, settings
from windrow.io.spark.staging_folder import StageFolder, StageRoot

__all__ = ["StageRequest", "stage"]

# Row groups are what windows are made of, so they are smaller than Spark's 128 MiB.
_WRITING = {"compression": "snappy", "parquet.block.size": str(64 * 2**20)}
# Spark's default for timestamps, INT96, is read as nanoseconds, which end in 2262; its calendar before
# 1582 is not Arrow's.
_SETTINGS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
}
_VERSION = 1
_METRICS_SECONDS = 60

# Settings are the session's, so one is staged at a time; whoever waits for the same finds it staged.
_TURN = threading.Lock()
_STAGED: list[_Staged] = []


@dataclass(frozen=True)
class StageRequest:
    """What to stage, and where.

    Attributes
    ----------
    df
        The DataFrame.
    conversion
        What becomes of its columns.
    root
        The directory to stage below.
    keep
        Whether it stays when the process ends.
    storage_options
        What opens the directory for reading.
    """

    df: Any
    conversion: Conversion
    root: StageRoot
    keep: bool
    storage_options: Mapping[str, Any] | None


@dataclass(frozen=True)
class _Staged:
    """What this process has staged or found staged."""

    identity: PlanIdentity
    conversion: Conversion
    root_url: str
    keep: bool
    folder: StageFolder


@ends_traceback
def stage(request: StageRequest) -> FileSource:
    """Stage a DataFrame, or find it staged, and describe the files as a source.

    Raises
    ------
    SourceError
        If Spark fails, or the directory is not one that Spark and this process share.
    PlanError
        If a column cannot be converted.
    """
    with _TURN:
        request.root.sweep()
        with mapped_errors("from_spark", "see that df.count() succeeds", request.root.secrets):
            # a plan is analysed when it is first asked for
            identity = identify(request.df)
        return _find(request, identity) or _write(request, identity)


def _find(request: StageRequest, identity: PlanIdentity | None) -> FileSource | None:
    """What is staged of the same rows, whole and to stay as long as it must."""
    if identity is None:
        return None
    for staged in tuple(_STAGED):
        same_place = (staged.conversion, staged.root_url) == (request.conversion, request.root.url)
        if same_place and staged.keep >= request.keep and identity.same_rows(staged.identity):
            source = _open(request, staged.folder)
            if source is not None:
                return source
            _STAGED.remove(staged)  # it was deleted
    return _find_kept(request, identity)


def _find_kept(request: StageRequest, identity: PlanIdentity) -> FileSource | None:
    """What another process has staged to be kept."""
    if not request.keep or identity.digest is None:
        return None
    for folder in request.root.find(identity.digest):
        note = folder.read_note() or {}
        if note.get("keep") and note.get("terms") == _terms(request, identity):
            source = _open(request, folder)
            if source is not None:
                _STAGED.append(_Staged(identity, request.conversion, request.root.url, True, folder))
                return source
    return None


def _open(request: StageRequest, folder: StageFolder) -> FileSource | None:
    """A folder as a source; None where it is not whole, or not any more."""
    note = folder.read_note()
    if note is None or note.get("version") != _VERSION:
        return None
    try:
        source = _read(request, folder)
    except SourceError:
        return None
    return _with_widths(source, note["widths"]) if int(source.manifest.rows.sum()) == note["rows"] else None


def _write(request: StageRequest, identity: PlanIdentity | None) -> FileSource:
    folder = request.root.make(identity.digest if identity and request.keep else None)
    try:
        rows, widths = _run_spark(request, folder)
        source = _read(request, folder)
        _check_rows(request, folder, rows, int(source.manifest.rows.sum()))
        unchanged = identity is not None and _still(request, identity)
        terms = _terms(request, identity) if identity is not None and unchanged else None
        note = {"version": _VERSION, "rows": rows, "widths": widths, "keep": request.keep, "terms": terms}
        with mapped_errors(folder.url, "give a cache_dir that can be written to", request.root.secrets):
            folder.write_note(note)
    except BaseException:
        folder.delete()
        raise
    if not request.keep:
        folder.delete_at_exit()
    if identity is not None and unchanged:
        _STAGED.append(_Staged(identity, request.conversion, request.root.url, request.keep, folder))
    return _with_widths(source, widths)


def _still(request: StageRequest, identity: PlanIdentity) -> bool:
    """Whether the input files have stayed what they were while they were read."""
    now = identify(request.df)
    return now is not None and now.same_rows(identity)


def _terms(request: StageRequest, identity: PlanIdentity) -> str:
    return f"{identity.digest} {request.conversion!r}"


def _run_spark(request: StageRequest, folder: StageFolder) -> tuple[int, dict[str, int]]:
    """Have Spark write; returns the rows, and the length of each vector column whose vectors have one."""
    from pyspark.sql import Observation, functions

    vectors = request.conversion.vector_columns(request.df.schema)
    metrics = [functions.count(functions.lit(1)).alias("rows")]
    for place, name in enumerate(vectors):
        column = functions.col("`" + name.replace("`", "``") + "`")
        length = functions.when(column.isNotNull(), functions.size(column))
        metrics += [functions.min(length).alias(f"low {place}"), functions.max(length).alias(f"high {place}")]
    observation = Observation()
    fix = f"see that df.write.parquet({request.root.url!r}) succeeds, on every machine of the cluster"
    with mapped_errors(f"from_spark: staging to {folder.url}", fix, request.root.secrets):
        frame = request.conversion.apply(request.df).observe(observation, *metrics)
        with settings(request.df.sparkSession, _SETTINGS):
            frame.write.options(**_WRITING).mode("append").parquet(folder.url)
        told = _wait_for(observation)
    lengths = {name: (told[f"low {place}"], told[f"high {place}"]) for place, name in enumerate(vectors)}
    widths = {name: low for name, (low, high) in lengths.items() if low is not None and low == high}
    return int(told["rows"]), widths


def _wait_for(observation: Any) -> dict[str, Any]:
    """What Spark has counted; it comes a moment after the job's end, and Spark knows no limit to that."""
    found: list[dict[str, Any]] = []
    waiting = threading.Thread(target=lambda: found.append(observation.get), daemon=True)
    waiting.start()
    waiting.join(_METRICS_SECONDS)
    if not found:
        raise SourceError(
            f"from_spark: Spark did not tell in {_METRICS_SECONDS} s how many rows it has written: try again"
        )
    return found[0]


def _check_rows(request: StageRequest, folder: StageFolder, written: int, found: int) -> None:
    if written != found:
        raise SourceError(
            f"{folder.url}: Spark has written {written:,} rows, and this process finds {found:,}: "
            "give a cache_dir= that every machine of the Spark cluster and every trainer sees at the same place, "
            "such as one on a network filesystem or an object store"
        )


def _read(request: StageRequest, folder: StageFolder) -> FileSource:
    options = None if request.root.local else request.storage_options
    path = folder.path if request.root.local else folder.url
    return open_files(path, ParquetFormat(), storage_options=options, partitioning=None)


def _with_widths(source: FileSource, widths: Mapping[str, int]) -> FileSource:
    """Give vectors of one length the type that arrays of two dimensions are made of."""

    def widened(schema: pa.Schema) -> pa.Schema:
        return pa.schema([_fixed(field, widths.get(field.name)) for field in schema])

    manifest = replace(source.manifest, schema=widened(source.manifest.schema))
    return replace(source, manifest=manifest, schema=widened(source.schema))


def _fixed(field: Any, width: int | None) -> Any:
    return field if width is None else field.with_type(pa.list_(field.type.value_field, width))

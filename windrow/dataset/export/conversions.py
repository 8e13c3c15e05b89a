"""The rows of one pass in memory, after checking that they fit, and as the structures of dask, datasets and Spark."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import concat_rows, empty_table
from windrow.core.byte_sizes import format_bytes
from windrow.core.chosen_rows import take_rows
from windrow.core.errors import PlanError
from windrow.core.integers import check_count
from windrow.core.machine import available_cores, free_memory_bytes
from windrow.core.optional_dependencies import require
from windrow.core.source import BlockAddress, BlockReader
from windrow.core.tracebacks import trims_traceback
from windrow.dataset.epoch_iteration import read_epochs
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.write.write_job import WriteRequest
from windrow.dataset.write.write_plan import write_epochs, write_parts
from windrow.io.spark.dataframes import check_session, mapped_errors
from windrow.io.spark.spark_parquet import SparkSink
from windrow.io.spark.spark_staging import StageFolder, StageRoot, open_root
from windrow.pipeline.delivery.batch_formats import separate, to_pandas
from windrow.pipeline.delivery.to_numpy import column_to_numpy, permutation_of
from windrow.pipeline.plan.head import find_schema, read_head
from windrow.pipeline.plan.job import Job
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.transforms import apply_maps

_BATCH_ROWS = 2**16
_CONVERT = "dataframe.convert-string"
_SPARK_FIX = "give a cache_dir= that every machine of the Spark cluster sees under the same path"


@trims_traceback
def collect(plan: LogicalPlan, job: Job, limit: int | None, caller: str, *, copies: int = 1) -> pa.Table:
    """Return the rows of a job's first epoch, or the first ``limit`` of them.

    Without a limit, the rows must fit into memory: as many copies of them as are there at a time
    during conversion. ``caller`` is the public method that error messages name.
    """
    if limit is None:
        check_fits_memory(plan, caller, copies)
        tables = list(stream_tables(job))
    else:
        rows = check_count(limit, "limit")
        # without a shuffle, only the blocks that hold the first rows are read
        tables = (
            [read_head(plan.read_source, plan.maps, rows)]
            if plan.delivers_blocks
            else list(_first(stream_tables(job), rows))
        )
    table = concat_rows(tables) if tables else empty_table(find_schema(job))
    # take() copies; a slice would keep its whole run in memory
    return table if limit is None else take_rows(table, np.arange(table.num_rows))


def stream_tables(job: Job) -> Iterator[pa.Table]:
    """Yield the rows of a job's first epoch, in order."""
    for epoch in read_epochs(replace(job, epochs=1)):
        yield from epoch.iter_batches(max(1, _BATCH_ROWS // job.sequence_rows), batch_format="pyarrow")


def _first(tables: Iterator[pa.Table], limit: int) -> Iterator[pa.Table]:
    remaining = limit
    for table in tables:
        yield table.slice(0, remaining)
        remaining -= table.num_rows
        if remaining <= 0:
            return


def check_fits_memory(plan: LogicalPlan, caller: str, copies: int = 1, free_bytes: int | None = None) -> None:
    """Raise a PlanError if the rows of one pass do not fit into ``free_bytes``; None: this machine's free memory."""
    needed = int(plan.read_source.blocks.memory_bytes.sum()) * copies
    free = free_memory_bytes() if free_bytes is None else free_bytes
    if needed > free:
        raise PlanError(
            f"{caller} would hold about {format_bytes(needed)} in memory, and {format_bytes(free)} are free: "
            "give limit=rows for the first rows only, iterate with iter_batches(), or write files"
        )


def collect_frame(plan: LogicalPlan, job: Job, limit: int | None, caller: str) -> Any:
    """Return the same rows as a pandas DataFrame."""
    require("pandas", "pandas", caller)
    return to_pandas(_one_batch(collect(plan, job, limit, caller, copies=2)))


def collect_numpy(plan: LogicalPlan, job: Job, limit: int | None, caller: str) -> dict[str, NDArray[Any]]:
    """Return the same rows as one NumPy array per column."""
    batch = _one_batch(collect(plan, job, limit, caller, copies=2))
    columns = zip(batch.schema.names, batch.columns, strict=True)
    return separate({name: column_to_numpy(column, writable=True) for name, column in columns})


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    columns = [_one_chunk(*named) for named in zip(table.column_names, table.columns, strict=True)]
    fields = [field.with_type(column.type) for field, column in zip(table.schema, columns, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))


def _one_chunk(name: str, column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    if not isinstance(whole, pa.ChunkedArray):
        return whole
    wider = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}.get(column.type)
    if wider is None:
        size = format_bytes(math.ceil(column.nbytes))
        raise PlanError(
            f"column {name!r} ({column.type}, {size}) is too large for one array: give limit=rows"
        )
    return column.cast(wider).combine_chunks()


def to_dask(plan: LogicalPlan, job: Job) -> Any:
    """Return a lazy DataFrame with one partition per block; shuffled rows are collected in memory."""
    dask = require("dask.dataframe", "dask", "to_dask()")
    # by default dask converts every object to text: also arrays, dates and bytes
    with require("dask", "dask", "to_dask()").config.set({_CONVERT: False}):
        return _to_dask(dask, plan, job)


def _to_dask(dask: Any, plan: LogicalPlan, job: Job) -> Any:
    if not plan.delivers_blocks:
        frame = collect_frame(plan, job, None, "to_dask()")
        return dask.from_pandas(frame, npartitions=available_cores(), sort=False)
    source, schema = plan.read_source, find_schema(job)
    counts = {} if plan.maps else source.null_counts
    nullable = frozenset(name for name in schema.names if counts.get(name) != 0)
    read = _ReadFrame(source.reader, plan.maps, nullable)
    addresses = source.addresses(range(len(source.blocks.rows)))
    meta = _frame(empty_table(schema), nullable)
    if not addresses:
        return dask.from_pandas(meta, npartitions=1)
    return dask.from_map(read, addresses, meta=meta, enforce_metadata=False, label="windrow")


@dataclass(frozen=True, eq=False)
class _ReadFrame:
    """Reads a block as a DataFrame, on a dask worker."""

    reader: BlockReader
    maps: Sequence[MapBatches]
    nullable: frozenset[str]

    def __call__(self, address: BlockAddress) -> Any:
        table = apply_maps(self.reader.read(address), self.maps, address.origin, StoredRows(address.number))
        return _frame(table, self.nullable)


def _frame(table: pa.Table, nullable: frozenset[str]) -> Any:
    """Convert to a DataFrame whose types do not depend on whether this block has nulls."""
    columns = [_decode(column).combine_chunks() for column in table.columns]
    frame = to_pandas(pa.RecordBatch.from_arrays(columns, names=table.column_names))
    wider = {field.name: _nullable_type(field.type) for field in table.schema if field.name in nullable}
    return frame.astype({name: kind for name, kind in wider.items() if kind is not None})


def _decode(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # decode dictionaries, because the categories differ between blocks
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _nullable_type(kind: pa.DataType) -> str | None:
    if pa.types.is_boolean(kind):
        return "boolean"
    if not pa.types.is_integer(kind):
        return None
    return f"{'Int' if pa.types.is_signed_integer(kind) else 'UInt'}{kind.bit_width}"


def to_huggingface(plan: LogicalPlan, job: Job, limit: int | None) -> Any:
    """Collect the rows of one pass and wrap them as a ``datasets.Dataset``."""
    library = require("datasets", "huggingface", "to_huggingface()")
    table = collect(plan, job, limit, "to_huggingface()")
    columns = {
        name: pa.chunked_array([_plain(chunk) for chunk in column.chunks], _plain_type(column.type))
        for name, column in zip(table.column_names, table.columns, strict=True)
    }
    try:
        return library.Dataset(pa.table(columns))
    except (ValueError, TypeError, NotImplementedError) as error:
        raise PlanError(
            f"to_huggingface(): datasets has no type for one of these columns ({error}): {table.schema}; "
            "cast it in map_batches, or leave it out"
        ) from error


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_dictionary(kind):
        return kind.value_type
    if not isinstance(kind, pa.FixedShapeTensorType):
        return kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    plain = kind.value_type
    for dimension in reversed(permutation_of(kind)):
        plain = pa.list_(plain, kind.shape[dimension])
    return plain


def _plain(array: pa.Array) -> pa.Array:
    kind = array.type
    if pa.types.is_dictionary(kind):
        return array.dictionary_decode()
    if not isinstance(kind, pa.FixedShapeTensorType):
        return array.storage if isinstance(kind, pa.BaseExtensionType) else array
    values = column_to_numpy(array, writable=False)
    if values.dtype == object:
        return pa.array([None if row is None else row.tolist() for row in values], _plain_type(kind))
    nested = pa.array(np.ascontiguousarray(values).reshape(-1), kind.value_type)
    for width in reversed(values.shape[1:]):
        nested = pa.FixedSizeListArray.from_arrays(nested, width)
    return nested


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
        url = folder.url + _stage(plan, root, folder, storage_options)
        with mapped_errors(f"to_spark: reading {url}", _SPARK_FIX, root.secrets):
            frame = spark.read.parquet(url)
    except BaseException:
        folder.delete()
        raise
    folder.delete_at_exit()
    return frame


def _stage(
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

"""Collects the rows of one pass in memory, after checking that they fit."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.byte_sizes import format_bytes
from windrow.core.errors import PlanError
from windrow.core.machine import free_memory_bytes
from windrow.core.optional_dependencies import require
from windrow.core.tracebacks import trims_traceback
from windrow.dataset.argument_checks import check_count
from windrow.dataset.epoch_iteration import read_epochs
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.delivery.batch_formats import separate, to_pandas
from windrow.pipeline.delivery.to_numpy import column_to_numpy
from windrow.pipeline.plan.head import find_schema, read_head
from windrow.pipeline.plan.job import Job

__all__ = ["check_fits_memory", "collect", "collect_frame", "collect_numpy", "stream_tables"]

_BATCH_ROWS = 2**16


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
    table = pa.concat_tables(tables) if tables else empty_table(find_schema(job))
    # take() copies; a slice would keep its whole run in memory
    return table if limit is None else table.take(pa.array(np.arange(table.num_rows)))


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

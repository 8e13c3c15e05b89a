"""Writes a DatasetPipeline: each epoch in its order, in files of a target size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pyarrow as pa

from windrow.core.errors import PlanError
from windrow.dataset.epoch_iteration import read_epochs
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.write.write_job import Output, WriteRequest, write
from windrow.io.sinks.commit import FinishedPart, WriteJob
from windrow.io.sinks.write_files import Layout, write_empty, write_rows
from windrow.io.sinks.written_manifest import WriteResult, WrittenFile
from windrow.pipeline.shard.epoch import Epoch
from windrow.pipeline.tasks.transforms import check_schema

__all__ = ["write_epochs"]

_TARGET_BYTES = 128 * 2**20
# upper limits of a batch read from the epoch
_BATCH_BYTES = 16 * 2**20
_BATCH_ROWS = 2**20


def write_epochs(plan: LogicalPlan, request: WriteRequest) -> WriteResult:
    """Write each epoch of a plan into its own directory, ``epoch=<number>``."""
    if plan.epochs is None:
        raise PlanError("repeat() without times never ends, and cannot be written: give repeat(times)")
    layout = request.layout()
    layout = replace(layout, target_bytes=layout.target_bytes or _TARGET_BYTES)
    if "epoch" in layout.partition_by:
        raise PlanError(
            "partition_by: a pipeline already writes into directories called epoch=...: rename the column"
        )

    if request.mode == "resume" or request.failed_rows is not None:
        raise PlanError(
            "mode='resume' and failed_rows= are for a Dataset, whose blocks are written one by one: write before "
            "window() and repeat()"
        )

    def write_files(output: Output) -> FinishedPart:
        rows = _batch_rows(plan, layout)
        with closing(read_epochs(plan.job())) as epochs:
            files = (file for epoch in epochs for file in _write_epoch(output.job, layout, epoch, rows))
            return FinishedPart(tuple(files))

    return write(plan, request, layout, write_files)


def _write_epoch(job: WriteJob, layout: Layout, epoch: Epoch, batch_rows: int) -> list[WrittenFile]:
    folder = f"epoch={epoch.number}/"
    files = list(write_rows(job, layout, _tables(job, epoch, batch_rows), "", folder))
    return files or [write_empty(job, layout, folder)]


def _tables(job: WriteJob, epoch: Epoch, batch_rows: int) -> Iterator[pa.Table]:
    for table in epoch.iter_batches(batch_rows, batch_format="pyarrow"):
        check_schema(job.schema, table.schema, f"epoch {epoch.number}")
        yield table


def _batch_rows(plan: LogicalPlan, layout: Layout) -> int:
    """Return the rows of a batch, so that it takes at most a quarter of a file and 16 MiB."""
    source, packing = plan.read_source, plan.packing
    row_bytes = max(1, int(source.blocks.memory_bytes.sum()) // max(1, int(source.blocks.rows.sum())))
    if packing is not None:
        row_bytes = packing.seq_len * packing.token_bytes(source.schema)
    batch_bytes = min(_BATCH_BYTES, (layout.target_bytes or _TARGET_BYTES) // 4)
    return min(_BATCH_ROWS, max(1, batch_bytes // row_bytes))

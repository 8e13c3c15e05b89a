"""Writes the rows of a plan: a Dataset's blocks in parallel, a pipeline's epochs one by one in their order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.arrow_support import empty_table
from windrow.core.errors import PlanError, SourceError
from windrow.core.source import BlockAddress, BlockTable, CorruptBlockError
from windrow.core.user_warnings import warn_user
from windrow.dataset.epoch_iteration import read_epochs
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.write.write_job import FailedRowsFolder, Output, WriteRequest, write
from windrow.dataset.write.write_workers import find_written_schema, open_workers
from windrow.io.sinks.commit import FinishedPart, WriteJob, mark_finished
from windrow.io.sinks.write_files import Layout, write_empty, write_rows
from windrow.io.sinks.written_manifest import WriteResult, WrittenFile
from windrow.pipeline.coordinator.skipped_blocks import MAX_BLOCKS
from windrow.pipeline.plan.head import find_schema
from windrow.pipeline.tasks.failed_rows import naming_stored_rows
from windrow.pipeline.tasks.map_batches import StagedCall
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.transforms import FailedRows, apply_maps, check_schema

# a task holds a block decoded, transformed and encoded
_COPIES = 3
_MIN_DIGITS = 5
_TARGET_BYTES = 128 * 2**20
# upper limits of a batch read from the epoch
_BATCH_BYTES = 16 * 2**20
_BATCH_ROWS = 2**20


@dataclass(frozen=True)
class _Part:
    """Adjacent blocks that one task writes."""

    label: str  # the part's number, zero-padded, so that file names sort in order
    addresses: tuple[BlockAddress, ...]


@dataclass(frozen=True)
class _PartWriter(StagedCall[_Part, FinishedPart]):
    """The function of a task; picklable and idempotent: a retry writes the same files under the same names."""

    job: WriteJob
    failed: FailedRowsFolder | None
    layout: Layout
    skips_corrupt: bool

    def __call__(self, part: _Part) -> FinishedPart:
        """Write the files of a part."""
        corrupt: list[str] = []
        failed = FailedRows()
        tables = (self._read(address, corrupt, failed) for address in part.addresses)
        files = tuple(write_rows(self.job, self.layout, tables, part.label))
        failed_rows, failed_files = (0, ()) if self.failed is None else self.failed.write(part.label, failed)
        finished = FinishedPart(files, tuple(corrupt), failed_rows, failed_files)
        if self.job.resumes:
            mark_finished(self.job, part.label, finished)
        return finished

    def _read(self, address: BlockAddress, corrupt: list[str], failed: FailedRows) -> pa.Table:
        try:
            table = self.reader.read(address)
        except CorruptBlockError as error:
            if not self.skips_corrupt:
                raise
            corrupt.append(str(error))
            return empty_table(self.job.schema)
        positions = StoredRows(address.number)
        table = apply_maps(
            table, self.maps, address.origin, positions, None if self.failed is None else failed
        )
        if not table.num_rows:
            # transforms are not applied to empty tables, so the schema is not the final one
            return empty_table(self.job.schema)
        check_schema(self.job.schema, table.schema, address.origin)
        return table


def write_parts(plan: LogicalPlan, request: WriteRequest) -> WriteResult:
    """Write the rows of a plan without windows: one file per block, or files of a target size."""
    layout, source, options = request.layout(), plan.read_source, plan.options
    spans = cut_parts(source.blocks, layout.target_bytes)
    running = open_workers(plan, source.reader, _largest_bytes(source.blocks, spans))
    with naming_stored_rows(source), running as workers:

        def find_schema() -> pa.Schema:
            return find_written_schema(plan, source, workers, skips_failed=request.failed_rows is not None)

        def write_files(output: Output) -> FinishedPart:
            skips = options.on_error == "skip"
            writer = _PartWriter(source.reader, plan.maps, output.job, output.failed, layout, skips)
            digits = max(_MIN_DIGITS, len(str(len(spans))))
            parts = [_Part(f"{at:0{digits}d}", source.addresses(span)) for at, span in enumerate(spans)]
            missing = [part for part in parts if part.label not in output.finished]
            written = workers.call(writer, missing, _describe) if missing else []
            made = dict(zip((part.label for part in missing), written, strict=True))
            if output.failed is not None:
                output.failed.remove_others({label: part.failed_files for label, part in made.items()})
            return _gather([made.get(part.label) or output.finished[part.label] for part in parts])

        return write(plan, request, layout, find_schema, write_files)


def cut_parts(blocks: BlockTable, target_bytes: int | None) -> list[range]:
    """Return the blocks of each part: one block, or adjacent blocks up to the target size."""
    if target_bytes is None:
        return [range(block, block + 1) for block in np.flatnonzero(blocks.rows).tolist()]
    spans: list[range] = []
    start, part_bytes = 0, 0
    for block, size in enumerate(blocks.decoded_bytes.tolist()):
        if block > start and part_bytes + size > target_bytes:
            spans.append(range(start, block))
            start, part_bytes = block, 0
        part_bytes += size
    return [*spans, range(start, len(blocks.rows))] if len(blocks.rows) else []


def _largest_bytes(blocks: BlockTable, spans: Sequence[range]) -> int:
    """Estimate a task's peak memory: a whole part, since its rows can go to files in many directories."""
    sizes: NDArray[np.int64] = blocks.memory_bytes
    return _COPIES * max((int(sizes[span.start : span.stop].sum()) for span in spans), default=0)


def _gather(parts: Sequence[FinishedPart]) -> FinishedPart:
    corrupt = [why for part in parts for why in part.corrupt]
    if len(corrupt) > MAX_BLOCKS:
        raise SourceError(
            f"{len(corrupt)} blocks are corrupt, and on_error='skip' skips at most {MAX_BLOCKS}: restore "
            f"their files, or remove them from the dataset. The first one: {corrupt[0]}"
        )
    for why in corrupt:
        warn_user(f"skipped a corrupt block while writing: {why}")
    files = tuple(file for part in parts for file in part.files)
    return FinishedPart(files, tuple(corrupt), sum(part.failed_rows for part in parts))


def _describe(part: _Part) -> str:
    return f"part {part.label}: {', '.join(address.origin for address in part.addresses[:3])}"


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

    batch_rows = _batch_rows(plan, layout)
    # of the first epoch, if its first rows told the schema
    begun: list[tuple[int, Iterator[pa.Table]]] = []

    with closing(read_epochs(plan.job())) as epochs:
        rest = (
            (epoch.number, iter(epoch.iter_batches(batch_rows, batch_format="pyarrow"))) for epoch in epochs
        )

        def find_first_schema() -> pa.Schema:
            # what the run's workers make: a class is not made once more for it
            begun.extend(islice(rest, 1 if plan.maps else 0))
            for number, tables in begun:
                table = next(tables, None)
                if table is not None:
                    begun[:] = [(number, chain([table], tables))]
                    return table.schema
            return find_schema(plan.job())

        def write_files(output: Output) -> FinishedPart:
            files = (file for each in chain(begun, rest) for file in _write_epoch(output.job, layout, *each))
            return FinishedPart(tuple(files))

        return write(plan, request, layout, find_first_schema, write_files)


def _write_epoch(job: WriteJob, layout: Layout, number: int, tables: Iterator[pa.Table]) -> list[WrittenFile]:
    folder = f"epoch={number}/"
    files = list(write_rows(job, layout, _checked(job, number, tables), "", folder))
    return files or [write_empty(job, layout, folder)]


def _checked(job: WriteJob, number: int, tables: Iterator[pa.Table]) -> Iterator[pa.Table]:
    for table in tables:
        check_schema(job.schema, table.schema, f"epoch {number}")
        yield table


def _batch_rows(plan: LogicalPlan, layout: Layout) -> int:
    """Return the rows of a batch, so that it takes at most a quarter of a file and 16 MiB."""
    source, packing = plan.read_source, plan.packing
    row_bytes = max(1, int(source.blocks.memory_bytes.sum()) // max(1, int(source.blocks.rows.sum())))
    if packing is not None:
        row_bytes = packing.seq_len * packing.token_bytes(source.schema)
    batch_bytes = min(_BATCH_BYTES, (layout.target_bytes or _TARGET_BYTES) // 4)
    return min(_BATCH_ROWS, max(1, batch_bytes // row_bytes))

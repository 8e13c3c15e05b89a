"""to_dask: rows as a dask DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.core.arrow_support import empty_table
from windrow.core.machine import available_cores
from windrow.core.optional_dependencies import require
from windrow.core.source import BlockAddress, BlockReader
from windrow.dataset.export.collect import collect_frame
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.delivery.batch_formats import to_pandas
from windrow.pipeline.plan.head import find_schema
from windrow.pipeline.plan.job import Job
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.transforms import apply_maps

__all__ = ["to_dask"]

_CONVERT = "dataframe.convert-string"


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
    columns = [_plain(column).combine_chunks() for column in table.columns]
    frame = to_pandas(pa.RecordBatch.from_arrays(columns, names=table.column_names))
    wider = {field.name: _nullable_type(field.type) for field in table.schema if field.name in nullable}
    return frame.astype({name: kind for name, kind in wider.items() if kind is not None})


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    # decode dictionaries, because the categories differ between blocks
    kind = column.type
    return column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column


def _nullable_type(kind: pa.DataType) -> str | None:
    if pa.types.is_boolean(kind):
        return "boolean"
    if not pa.types.is_integer(kind):
        return None
    return f"{'Int' if pa.types.is_signed_integer(kind) else 'UInt'}{kind.bit_width}"

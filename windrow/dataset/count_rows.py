"""Counts the rows of an epoch: from the manifest, else in one pass over the data."""

from __future__ import annotations

from windrow.core.source import TracingSource
from windrow.core.tracebacks import trims_traceback
from windrow.dataset.logical_plan import LogicalPlan
from windrow.io.catalog.row_ids import count_rows as count_blocks
from windrow.pipeline.tasks.transforms import apply_maps

__all__ = ["count_rows"]


@trims_traceback
def count_rows(plan: LogicalPlan) -> int:
    """Return the rows of one epoch, from the manifest or, if it does not state them or they can change, by reading."""
    source = plan.source
    if plan.job().rows_stated:
        return int(source.blocks.rows.sum())
    # only the transforms up to the last one that can change the count have to run
    changing = [at for at, stage in enumerate(plan.before) if not stage.preserves_rows]
    maps = plan.before[: changing[-1] + 1] if changing else ()
    if not maps and isinstance(source, TracingSource):
        return int(source.count_blocks().sum())
    reader, addresses = source.reader, source.addresses(range(len(source.blocks.rows)))
    counts = count_blocks(lambda address: apply_maps(reader.read(address), maps, address.origin), addresses)
    return int(counts.sum())

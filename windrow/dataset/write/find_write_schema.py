"""The schema of the rows that a write makes, without running functions here that need actors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from windrow.core.source import BlockAddress, BlockReader, prepare_source
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.tasks.actor_pool import ActorPool
from windrow.pipeline.tasks.head import find_schema
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import StoredRows
from windrow.pipeline.tasks.transforms import FailedRows, apply_maps

__all__ = ["find_write_schema"]


def find_write_schema(plan: LogicalPlan, *, skips_failed: bool) -> pa.Schema:
    """Return the schema of a plan's rows.

    On Ray, one actor of each pool makes the first batch: a model may need a GPU that this process has not.
    """
    job = plan.job()
    pooled = any(stage.pool is not None for stage in plan.maps)
    if not pooled or resolve_executor(plan.options.executor).name != "ray":
        return find_schema(job, skips_failed=skips_failed)
    from windrow.pipeline.executors.ray.data.remote_calls import call_stages_on_ray

    source = plan.read_source
    prepare_source(source)
    single = tuple(
        stage if stage.pool is None else replace(stage, compute=ActorPool(size=1)) for stage in plan.maps
    )
    blocks = source.addresses(np.flatnonzero(source.blocks.rows).tolist())
    reader = _SchemaReader(source.reader, single, skips_failed)
    (found,) = call_stages_on_ray(reader, [blocks], lambda _: "finding the columns of a write")
    return source.schema if found is None else found


@dataclass(frozen=True)
class _SchemaReader:
    """Transforms the first batch of each block until one has rows; returns their schema."""

    reader: BlockReader
    maps: tuple[MapBatches, ...]
    skips_failed: bool

    def with_maps(self, maps: tuple[MapBatches, ...]) -> _SchemaReader:
        """The same reader with other transforms."""
        return replace(self, maps=maps)

    def __call__(self, blocks: Sequence[BlockAddress]) -> pa.Schema | None:
        sizes = [stage.batch_size for stage in self.maps]
        for address in blocks:
            table = self.reader.read(address)
            if None not in sizes:
                table = table.slice(0, max(size or 1 for size in sizes))
            failed = FailedRows() if self.skips_failed else None
            table = apply_maps(table, self.maps, address.origin, StoredRows(address.number), failed)
            if table.num_rows:
                return table.schema
        return None

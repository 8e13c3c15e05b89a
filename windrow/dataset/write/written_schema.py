"""`find_written_schema`: the columns and types of the rows that a write is going to store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from windrow.core.source import BlockAddress, BlockReader
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.executors.choose_executor import resolve_executor
from windrow.pipeline.plan.head import find_schema, read_first_rows
from windrow.pipeline.tasks.actor_pool import ActorPool
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.transforms import FailedRows

__all__ = ["find_written_schema"]


@dataclass(frozen=True)
class _FirstRow:
    """The function of a task that finds the first row after transforms."""

    reader: BlockReader
    maps: tuple[MapBatches, ...]
    seed: int
    skips_failed: bool

    def with_maps(self, maps: tuple[MapBatches, ...]) -> _FirstRow:
        """The same function with other transforms."""
        return replace(self, maps=maps)

    def __call__(self, addresses: Sequence[BlockAddress]) -> pa.Schema | None:
        """Return the schema of the first row; None if there is none."""
        failed = FailedRows() if self.skips_failed else None
        found = read_first_rows(self.reader, addresses, self.maps, 1, self.seed, failed)
        return None if found is None else found.schema


def find_written_schema(plan: LogicalPlan, *, skips_failed: bool) -> pa.Schema:
    """Return the schema after transforms, taken from their first rows.

    On Ray, a transform with a pool runs on an actor here too: a model can need a GPU, or more memory, than this
    process has.
    """
    has_pool = any(stage.pool is not None for stage in plan.maps) and plan.packing is None
    if not has_pool or resolve_executor(plan.options.executor).name != "ray":
        return find_schema(plan.job(), skips_failed=skips_failed)
    from windrow.pipeline.executors.ray.data.remote_calls import call_stages_on_ray

    source = plan.read_source
    maps = tuple(
        stage if stage.pool is None else replace(stage, compute=ActorPool(size=1)) for stage in plan.maps
    )
    call = _FirstRow(source.reader, maps, plan.seed or 0, skips_failed)
    addresses = source.addresses(np.flatnonzero(source.blocks.rows).tolist())
    (schema,) = call_stages_on_ray(call, [addresses], lambda _: f"the first rows of {source!r}")
    return source.schema if schema is None else schema

"""to_ray: rows as a Ray Data dataset."""

from __future__ import annotations

from typing import Any

from windrow.core.optional_dependencies import require
from windrow.dataset.export.collect import check_fits_memory, stream_tables
from windrow.dataset.logical_plan import LogicalPlan
from windrow.pipeline.plan.job import Job

__all__ = ["to_ray"]


def to_ray(plan: LogicalPlan, job: Job) -> Any:
    """Return a lazy dataset whose blocks Ray tasks read; shuffled rows go into Ray's object store now."""
    require("ray.data", "ray", "to_ray()")
    from windrow.pipeline.executors.ray.data.ray_data_output import (
        object_store_bytes,
        put_tables,
        read_lazily,
    )

    if plan.seed is None:
        return read_lazily(plan.read_source, plan.maps)
    check_fits_memory(plan, "to_ray()", free_bytes=object_store_bytes())
    return put_tables(stream_tables(job), plan.source.schema)

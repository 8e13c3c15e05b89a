"""A dataset of Ray Data."""

from __future__ import annotations

from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan

__all__ = ["from_ray"]


def from_ray(dataset: Any, *, target_block_bytes: int | str = "64MiB") -> Dataset:
    """Return the rows of a ``ray.data.Dataset``, which is executed now; needs the extra ``ray``.

    Its blocks stay where they are in Ray's object store, and are read from there on either
    executor, for as long as the process lives that executed it. It must keep the order of its
    rows for a saved state to fit the next run (``DataContext.execution_options.preserve_order``).

    Parameters
    ----------
    dataset
        The Ray dataset.
    target_block_bytes
        Larger blocks are cut into several: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For anything else, or where Ray is not installed.
    SourceError
        If it cannot be executed, has no rows, or blocks differ in their columns.

    Examples
    --------
    >>> import ray, windrow
    >>> windrow.from_ray(ray.data.range(6)).count()  # doctest: +SKIP
    6
    """
    require("ray", "ray", "from_ray()")
    if not hasattr(dataset, "to_arrow_refs"):
        raise PlanError(f"from_ray: {type(dataset).__qualname__} is no ray.data.Dataset; give one")
    from windrow.pipeline.executors.ray.data.ray_data_source import list_blocks

    size = parse_bytes(target_block_bytes, "target_block_bytes")
    return Dataset(LogicalPlan(list_blocks(dataset, "from_ray", size)))

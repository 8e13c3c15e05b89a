"""from_ray: a Ray Data dataset as a Dataset."""

from __future__ import annotations

from typing import Any

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.core.optional_dependencies import require
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan


def from_ray(dataset: Any, *, target_block_bytes: int | str = "64MiB") -> Dataset:
    """Return the rows of a ``ray.data.Dataset``, which is executed now; needs the extra ``ray``.

    Its blocks stay in Ray's object store; both executors read them there while the process that
    executed the dataset lives. A checkpoint fits the next job only if the dataset preserves the
    order of its rows (``DataContext.execution_options.preserve_order``).

    Parameters
    ----------
    dataset
        The Ray dataset.
    target_block_bytes
        Larger blocks are divided: an integer, or a string such as ``"64MiB"``.

    Raises
    ------
    PlanError
        For any other object, or if Ray is not installed.
    SourceError
        If the dataset cannot be executed, has no rows, or its blocks differ in columns.

    Examples
    --------
    >>> import ray, windrow
    >>> windrow.from_ray(ray.data.range(6)).count()  # doctest: +SKIP
    6
    """
    require("ray", "ray", "from_ray()")
    if not hasattr(dataset, "to_arrow_refs"):
        raise PlanError(f"from_ray: {type(dataset).__qualname__} is not a ray.data.Dataset; give one")
    from windrow.pipeline.executors.ray.data.ray_data_source import list_blocks

    size = parse_bytes(target_block_bytes, "target_block_bytes")
    return Dataset(LogicalPlan(list_blocks(dataset, "from_ray", size)))

"""Makes a Dataset of Arrow tables in memory, for the ``from_*`` functions."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.ray_transport import reduce_blocks
from windrow.io.in_memory.in_memory_tables import hold_tables

__all__ = ["dataset_of_tables"]


def dataset_of_tables(tables: Sequence[pa.Table], caller: str, target_block_bytes: int | str) -> Dataset:
    """Return a dataset of the concatenated tables; ``caller`` is named in error messages."""
    if not tables:
        raise PlanError(f"{caller}: there is nothing to read; give at least one")
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    return Dataset(LogicalPlan(hold_tables(tables, caller, size, reduce_blocks)))

"""From tables in memory to a Dataset."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from windrow.core.byte_sizes import parse_bytes
from windrow.core.errors import PlanError
from windrow.dataset.dataset import Dataset
from windrow.dataset.logical_plan import LogicalPlan
from windrow.dataset.sources.ray_transport import carry_held
from windrow.io.in_memory.table_source import hold_tables

__all__ = ["dataset_of_tables"]


def dataset_of_tables(tables: Sequence[pa.Table], who: str, target_block_bytes: int | str) -> Dataset:
    """A dataset of tables, one after the other."""
    if not tables:
        raise PlanError(f"{who}: there is nothing to read; give at least one")
    size = parse_bytes(target_block_bytes, "target_block_bytes")
    return Dataset(LogicalPlan(hold_tables(tables, who, size, carry_held)))

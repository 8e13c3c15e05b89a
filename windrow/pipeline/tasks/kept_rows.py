"""Transformed rows that keep their order: they are cut into runs, and not moved."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from windrow.core.buffer_pool import BufferPool
from windrow.core.source import BlockPart
from windrow.pipeline.tasks.held_arrays import as_immutable
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.kernels.ordered_rows import OrderedRows, check_movable, cut_into_runs
from windrow.shuffle.order.runs import WindowRuns

__all__ = ["keep_part"]


def keep_part(
    part: BlockPart,
    first_row: int,
    layout: WindowRuns,
    output: Sequence[list[MapOutput | OrderedRows]],
    pool: BufferPool,
) -> NDArray[np.int64]:
    """Add rows of the epoch from ``first_row`` on to the output, by slice; returns the bytes of each slice."""
    table = part.select(list(range(len(part.schema))))
    check_movable(table.slice(0, 1), pool)
    # views of the source's own tables can be among them, which no batch may write to
    columns = [as_immutable(column) for column in table.columns]
    by_slice = cut_into_runs(pa.Table.from_arrays(columns, schema=table.schema), first_row, layout)
    for found, of_slice in zip(by_slice, output, strict=True):
        of_slice.extend(found)
    return np.array([sum(rows.nbytes for rows in found) for found in by_slice], np.int64)

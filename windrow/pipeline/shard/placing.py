"""Places the rows of a run, and finds where they are in the epoch."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from windrow.core.buffer_pool import BufferPool
from windrow.pipeline.executors.replicas.client import PlacedOutputs
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import EpochRows, RowPositions, StoredRows
from windrow.shuffle.kernels.place_rows import place_portion, place_rows
from windrow.shuffle.order.ordered_rows import OrderedOutputs, join_run
from windrow.shuffle.order.runs import Run, WindowRuns
from windrow.shuffle.order.step_runs import StepRuns


def place_run(map_outputs: Any, run: Run, rows: slice, pool: BufferPool) -> pa.RecordBatch:
    """Some rows of a run, out of the map outputs of its slice, without transforms."""
    if isinstance(map_outputs, PlacedOutputs):
        return map_outputs.take(run, rows)
    if isinstance(map_outputs, OrderedOutputs):
        return join_run(map_outputs, run, rows)
    schema = map_outputs[0].schema
    if rows == slice(0, run.rows):
        return place_rows(map_outputs, run.index, run.rows, schema, pool)
    return place_portion(map_outputs, run.index, run.rows, rows, schema, pool)


def find_positions(
    after: tuple[MapBatches, ...],
    layout: WindowRuns | StepRuns | None,
    shard: int,
    epoch: int,
    places: slice,
    seed: int,
) -> RowPositions:
    """Where rows at some places of a shard's stream are in the epoch, if a transform draws random numbers."""
    if not any(stage.rng for stage in after):
        return StoredRows()
    assert layout is not None, "placed rows have a layout"
    found = layout.assignment.epoch_rows(places.start, places.stop, shard, layout.total)
    return EpochRows(found, epoch, seed)

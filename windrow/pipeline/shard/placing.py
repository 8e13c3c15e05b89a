"""Places the rows of a run, transforms them, and finds where they are in the epoch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from windrow.core.buffer_pool import BufferPool
from windrow.core.cached_properties import cached_property
from windrow.core.errors import FailedRow
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.preparation import Preparation
from windrow.pipeline.executors.replicas.client import PlacedOutputs
from windrow.pipeline.tasks.row_generator import EpochRows, RowGenerator
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
    if rows == slice(0, run.rows):
        return place_rows(map_outputs, run.index, run.rows, pool)
    return place_portion(map_outputs, run.index, run.rows, rows, pool)


def prepare_rows(
    preparation: Preparation,
    rows: pa.RecordBatch,
    data: WindowData,
    key: Key,
    shard: int,
    place: int,
    seed: int,
) -> pa.RecordBatch:
    """Apply the transforms after the shuffle to rows of a window, from a place of a shard's stream on."""
    epoch, window = key
    origin = f"epoch {epoch}, window {window}, rows from place {place} of shard {shard}"
    places = slice(place, place + rows.num_rows)
    return preparation.run(rows, PlacedRows(data.layout, shard, epoch, places, seed), origin)


@dataclass(frozen=True)
class PlacedRows:
    """Rows at some places of a shard's stream, whose rows of the epoch are found when they are needed."""

    layout: WindowRuns | StepRuns | None
    shard: int
    epoch: int
    places: slice
    seed: int

    def generator(self, stage: int, start: int, rows: int, *, changes_rows: bool) -> RowGenerator:
        """See `RowPositions`."""
        assert self._found is not None, "placed rows have a layout"
        return self._found.generator(stage, start, rows, changes_rows=changes_rows)

    def find(self, row: int) -> FailedRow | None:
        """See `RowPositions`."""
        return None if self._found is None else self._found.find(row)

    @cached_property
    def _found(self) -> EpochRows | None:
        if self.layout is None:
            return None
        layout, places = self.layout, self.places
        rows = layout.assignment.epoch_rows(places.start, places.stop, self.shard, layout.total)
        return EpochRows(rows, self.epoch, self.seed)

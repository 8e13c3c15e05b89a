"""Places the rows of a run, finds where they are in the epoch, and applies the transforms after the shuffle to them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import pyarrow as pa

from windrow.core.buffer_pool import BufferPool
from windrow.pipeline.executors.replicas.client import PlacedOutputs
from windrow.pipeline.executors.workers import WorkerPool
from windrow.pipeline.plan.process_budget import calls_ahead
from windrow.pipeline.tasks.map_batches import MapBatches
from windrow.pipeline.tasks.row_generator import EpochRows, RowPositions, StoredRows
from windrow.pipeline.tasks.transforms import apply_maps, as_one_batch
from windrow.shuffle.kernels.place_rows import place_portion, place_rows
from windrow.shuffle.order.ordered_rows import OrderedOutputs, join_run
from windrow.shuffle.order.runs import Run, WindowRuns
from windrow.shuffle.order.step_runs import StepRuns

T = TypeVar("T")
R = TypeVar("R")


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


class Preparation:
    """Applies the transforms after the shuffle to placed rows, in a shard's or a host's process.

    Where a transform has workers in other processes, threads of its own wait for them, so that those that place rows,
    and on the threads executor read them, are free meanwhile.
    """

    def __init__(self, after: tuple[MapBatches, ...], name: str, shards: int) -> None:
        self.after = after
        # Runs that keep the workers of transforms busy, of which each shard has the same share; 0 without workers.
        most = max((stage.workers.most for stage in after if stage.workers is not None), default=0)
        self.calls = calls_ahead(most, shards)
        self._waiters = WorkerPool(self.calls, f"windrow-prepare-{name}") if self.calls else None

    def run(self, rows: pa.RecordBatch, positions: RowPositions, origin: str) -> pa.RecordBatch:
        """Apply the transforms to rows that have been placed."""
        table = apply_maps(pa.Table.from_batches([rows]), self.after, origin, positions)
        return as_one_batch(table, origin) if table.num_rows else rows

    def submit(
        self,
        submit: Callable[[Callable[[], Any]], Future[Any]],
        place: Callable[[], T],
        prepare: Callable[[T], R],
    ) -> Future[R]:
        """Have rows placed by ``submit``, and then prepared, there too or on threads that wait for other processes."""
        waiters = self._waiters
        if waiters is None:
            return submit(lambda: prepare(place()))
        placed: Future[T] = submit(place)
        return waiters.submit((), lambda: prepare(placed.result()))

    def close(self) -> None:
        """Submit nothing any more; calls that run end by themselves."""
        if self._waiters is not None:
            self._waiters.close(0.0)


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

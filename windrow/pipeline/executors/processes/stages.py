"""Starts and ends the worker processes of transforms on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from windrow.core.system.memory import SHARES_MEMORY
from windrow.pipeline.executors.processes.chosen import ChosenWorkers, may_move
from windrow.pipeline.executors.processes.pool import ProcessWorkers
from windrow.pipeline.tasks.map_batches import MapBatches


def start_processes(stages: Iterable[MapBatches], cores: int, spare: int = 0) -> tuple[MapBatches, ...]:
    """Give each transform with a pool its workers, whose processes start with their first batches.

    Transforms for which nothing was chosen get at most ``spare`` processes if they turn out to hold the GIL. Raises a
    `PlanError` if a transform cannot be pickled, or if this system does not support worker processes. They run until
    `end_processes`.
    """
    return tuple(_start(stage, cores, min(cores, spare)) for stage in stages)


def _start(stage: MapBatches, cores: int, spare: int) -> MapBatches:
    if stage.pool is not None:
        return replace(stage, workers=ProcessWorkers(stage, stage.pool.sizes(cores)))
    # with one core, processes would compute no more than threads
    moves = SHARES_MEMORY and spare > 1 and may_move(stage)
    return replace(stage, workers=ChosenWorkers(stage, spare)) if moves else stage


def end_processes(stages: Iterable[MapBatches]) -> None:
    """End the processes of transforms that `start_processes` returned."""
    for stage in stages:
        if isinstance(stage.workers, (ProcessWorkers, ChosenWorkers)):
            stage.workers.close()


def describe_processes(stages: Iterable[MapBatches], seconds: float) -> str:
    """Name the transforms that have worked on a batch for so many seconds, and since when; empty for none."""
    pools = [each.moved if isinstance(each := stage.workers, ChosenWorkers) else each for stage in stages]
    found = [pool.describe(seconds) for pool in pools if isinstance(pool, ProcessWorkers)]
    return "; ".join(filter(None, found))

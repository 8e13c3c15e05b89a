"""The real tasks and runs of one window over real files, for measuring unit costs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windrow.io.catalog.file_source import open_files
from windrow.io.parquet.block_reader import ParquetFormat
from windrow.pipeline.plan.epoch_shape import EpochCounts
from windrow.pipeline.plan.job import Job
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Task, Work
from windrow.shuffle.order.epoch_plan import WindowCut
from windrow.shuffle.order.runs import WindowRuns

__all__ = ["Plan", "make_plan"]


@dataclass(frozen=True)
class Plan:
    """One window over all rows, assigned to the shards of one node."""

    program: Program
    tasks: tuple[Task, ...]
    layout: WindowRuns

    @property
    def decoded_bytes(self) -> int:
        """Decoded bytes of all rows."""
        return int(self.program.job.source.blocks.decoded_bytes.sum())


def make_plan(paths: Sequence[str], shards: int, batch_rows: int) -> Plan:
    """Plan one epoch as the driver does."""
    program = Program(
        Job(open_files(list(paths), ParquetFormat()), WindowCut(), 1, 7), shards, False, tuple(range(shards))
    )
    counts = EpochCounts(program.shape(0, program.stored_rows))
    assignment = program.assignment(batch_rows, drop_last=False)
    stage = counts.shape.stages[0]
    works = [Work(0, 0, part, 0, 0) for part in range(len(counts.shape.windows[0]))]
    rows = program.stored_rows
    places = program.places(
        works[0], counts, rows, assignment=assignment, destinations=(program.members,), slices=1
    )
    tasks = [program.task(work, stage, rows, places) for work in works]
    return Plan(program, tuple(tasks), places.layouts[0])

"""The limits of a run, by its program and budget."""

from __future__ import annotations

import pytest

import windrow
from windrow.pipeline.coordinator.scheduling.memory_limit import make_limits
from windrow.pipeline.executors.threads import ThreadsExecutor
from windrow.pipeline.plan.memory_budget import budget_program
from windrow.pipeline.plan.program import Program


@pytest.mark.parametrize("transforms", [False, True])
def test_only_tasks_whose_rows_can_grow_are_bounded(transforms: bool) -> None:
    dataset = windrow.range(9)
    pipe = (dataset.map_batches(lambda batch: batch) if transforms else dataset).repeat(1)
    program = Program(pipe._job(), 1, False, (0,))
    budget = budget_program(program, ThreadsExecutor(2).resources(), 8)
    limits = make_limits(program, budget, 2, (0,))
    assert (limits.bounds_tasks, limits.exact) == (transforms, not transforms)

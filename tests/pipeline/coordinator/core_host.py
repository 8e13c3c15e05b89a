"""A coordinator core without Ray, whose tasks end when a test says so."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import pytest

from tests.laws.cases import Case
from windrow.pipeline.coordinator.core import TICK_SECONDS, Answer, CoordinatorCore
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.requests import OpenRequest
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.job import Resources
from windrow.pipeline.plan.program import Program
from windrow.pipeline.tasks.task import Task, TaskReport
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import WindowCut

CASE = Case((10,) * 6, WindowCut(blocks_per_window=2), shards=2, batch_rows=5, prefetch_windows=0)


class Handle:
    """Stands for an object."""


class Host:
    """Holds tasks back until `finish`."""

    def __init__(self, *, restarted: bool = False) -> None:
        self.seconds = 0.0
        self.restarted = restarted
        self.tasks: list[tuple[Driver, Task]] = []
        self.drivers = 0
        self.handles: list[Handle] = []

    def now(self) -> float:
        return self.seconds

    def name_driver(self) -> str:
        self.drivers += 1
        return f"driver{self.drivers}"

    def is_restarted(self) -> bool:
        return self.restarted

    def user_warnings(self) -> tuple[str, ...]:
        return ("mind the gap",)

    def submit(self, driver: Driver, task: Task, tables: Any, cached: Sequence[Any]) -> None:
        self.tasks.append((driver, task))

    def finish(self) -> None:
        """End all tasks, and those that they make possible."""
        while self.tasks:
            driver, task = self.tasks.pop()
            assert task.ordering is not None
            layouts = task.ordering.layouts
            self.handles.append(Handle())
            output = [[self.handles[-1]] * layout.slices for layout in layouts]
            sizes = (100,) * layouts[0].slices
            driver.task_done(task, TaskReport((10,) * len(task.blocks), sizes, None, 0.0, 0.0), output, "")


def make(host: Host, case: Case = CASE) -> CoordinatorCore:
    # a task for each block
    program = Program(case.job("threads"), case.shards, case.equal, tuple(range(case.shards)), part_bytes=1)
    resources = Resources("simulated", 4, 2**30, limit_covers_all=False)
    return CoordinatorCore(program, resources, dict.fromkeys(range(case.shards), "here"), host)


def request(shard: int, token: str = "first", epoch: int = 0, *, goes_on: bool = False) -> OpenRequest:
    return OpenRequest(shard, "here", token, epoch, Cursor(epoch), Batching(5), goes_on, CASE.seed)


def ask(coordination: CoordinatorCore, *question: Any) -> Answer:
    """The answer to a poll that needs no waiting."""
    with pytest.raises(StopIteration) as end:
        next(coordination.poll(*question))
    answer: Answer = end.value.value
    return answer


def parts(answer: Answer) -> set[int]:
    assert isinstance(answer, tuple)
    return set(answer[1].outputs)


def waits(polling: Generator[float, bool, Answer]) -> bool:
    return next(polling) == TICK_SECONDS

"""Rows that take more memory than expected: which tasks start, how they are bounded, and what raises."""

from __future__ import annotations

from typing import Any

import pytest

from tests.pipeline.coordinator.scheduling.small_clusters import cluster, run_everything
from windrow.pipeline.coordinator.scheduling.events import (
    Abort,
    Finished,
    Instruction,
    Limits,
    Opened,
    Overflowed,
    Run,
)
from windrow.pipeline.coordinator.scheduling.scheduler import Scheduler
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.epoch_shape import EpochShape, Part, Stage
from windrow.pipeline.plan.window_budget import RowOverhead
from windrow.pipeline.tasks.task import Shortfall, Work
from windrow.shuffle.order.shard_assignment import ShardAssignment


def test_window_that_outgrows_its_estimate_raises_with_its_size() -> None:
    part = Part(5, 5)
    shape = EpochShape(((part, part),), (Stage("map", needs_order=True),))
    limits = Limits((0,), 1, 1, 12, 1, True, 1, 5.0)
    scheduler = Scheduler(limits, lambda epoch: shape)
    assert scheduler.handle(Opened(0, Place(0, 0), ShardAssignment(1, 1)), 0.0) == [Run(Work(0, 0, 0, 0, 0))]
    (abort,) = scheduler.handle(Finished(Work(0, 0, 0, 0, 0), 5, (11,)), 1.0)
    assert isinstance(abort, Abort)
    assert (abort.epoch, abort.window, abort.window_bytes, abort.limit_bytes) == (0, 0, 22, 12)


def test_an_overestimate_of_what_runs_aborts_nothing() -> None:
    parts = (Part(5, 2), Part(5, 6), Part(5, 6))
    shape = EpochShape((parts,), (Stage("map", needs_order=True),))
    limits = Limits((0,), 1, 3, 13, 1, True, 1, 5.0)
    scheduler = Scheduler(limits, lambda epoch: shape)
    runs = scheduler.handle(Opened(0, Place(0, 0), ShardAssignment(1, 1)), 0.0)
    assert len(runs) == 2
    assert scheduler.handle(Finished(Work(0, 0, 0, 0, 0), 5, (3,)), 1.0) == []
    assert scheduler.handle(Finished(Work(0, 0, 1, 0, 0), 5, (1,)), 2.0) == [Run(Work(0, 0, 2, 0, 0))]


def test_tasks_that_put_out_more_than_expected_raise_what_is_expected_of_the_rest() -> None:
    limits = Limits((0,), 1, 1, 100, 0, True, 1, 5.0)
    parts = tuple(Part(5, 10) for _ in range(4))
    scheduler = Scheduler(limits, lambda _: EpochShape((parts,), (Stage("map", True),)))
    (run,) = scheduler.handle(Opened(0, Place(0, 0), ShardAssignment(1, 1)), 0.0)
    assert isinstance(run, Run)
    assert scheduler.held_bytes == 10
    scheduler.handle(Finished(run.work, 5, (20,)), 1.0)
    assert scheduler.held_bytes == 20 + 20


@pytest.mark.parametrize(("memory", "first"), [(320, 2), (319, 1)])
def test_unmeasured_growing_tasks_start_one_by_one_if_memory_is_short(memory: int, first: int) -> None:
    c = cluster(20, 20, slots=2, memory_bytes=memory, exact=False)
    c.open(0, 1)
    assert len(c.running) == first
    c.finish(c.running[0])
    assert len(c.running) == 2
    assert len(c.runs) == 1 + 2
    run_everything(c)
    c.read_all({0})
    c.close_all()


@pytest.mark.parametrize(("row_bytes", "block_bytes", "begun"), [(0, 0, 2), (1, 0, 1), (1, 1, 1), (0, 1, 1)])
def test_growing_task_counts_growth_of_concurrent_tasks(row_bytes: int, block_bytes: int, begun: int) -> None:
    overhead = RowOverhead(1, 1, 1, min_run_bytes=0, tasks=2, row_bytes=row_bytes, block_bytes=block_bytes)
    c = cluster(20, slots=2, memory_bytes=320, exact=False, overhead=overhead)
    c.open(0, 1)
    assert len(c.running) == begun


@pytest.mark.parametrize(("memory", "begun"), [(352, 2), (351, 1)])
def test_of_what_grows_beside_it_a_block_counts_for_each_task_that_runs(memory: int, begun: int) -> None:
    # two tasks of 10 that grow sixteenfold, and two of four blocks of 1 that do
    overhead = RowOverhead(0, 0, 0, min_run_bytes=0, tasks=4, block_bytes=1)
    c = cluster(20, slots=4, memory_bytes=memory, exact=False, overhead=overhead)
    c.open(0, 1)
    assert len(c.running) == begun


def scheduler_of(
    *sizes: int, memory: int, slots: int = 4, overhead: RowOverhead | None = None, row_bytes: int = 0
) -> Scheduler:
    """One window of parts of ten rows each, of the given expected sizes, whose rows can grow."""
    options: dict[str, Any] = {
        "exact": False,
        "bounds_tasks": True,
        "overhead": overhead,
        "row_bytes": row_bytes,
    }
    limits = Limits((0,), 1, slots, memory, 0, True, 1, 5.0, **options)
    parts = tuple(Part(10, size) for size in sizes)
    return Scheduler(limits, lambda _: EpochShape((parts,), (Stage("map", True),)))


def begin(scheduler: Scheduler) -> list[Run]:
    return only_runs(scheduler.handle(Opened(0, Place(0, 0), ShardAssignment(1, 1)), 0.0))


def only_runs(instructions: list[Instruction]) -> list[Run]:
    assert all(isinstance(each, Run) for each in instructions)
    return [each for each in instructions if isinstance(each, Run)]


def test_tasks_get_an_output_limit_and_the_first_ones_sample_rows() -> None:
    first, second = begin(scheduler_of(1, 1, memory=1001, slots=2))
    assert (first.max_bytes, first.samples) == (1 + 1000 // 2, True)
    assert second.max_bytes is not None
    assert 501 + second.max_bytes <= 1001


def test_what_is_known_exactly_has_no_bound() -> None:
    limits = Limits((0,), 1, 1, 100, 0, True, 1, 5.0)
    (run,) = begin(Scheduler(limits, lambda _: EpochShape(((Part(5, 10),),), (Stage("map", True),))))
    assert (run.max_bytes, run.samples) == (None, False)


def test_a_part_that_outgrew_its_bound_is_begun_again_with_what_it_takes() -> None:
    scheduler = scheduler_of(1, 1, memory=1000, slots=2)
    first, second = begin(scheduler)
    again = only_runs(scheduler.handle(Overflowed(first.work, Shortfall(0.5, 5, 600, 600)), 1.0))
    # both are expected to take 1,200 bytes now, and it waits until it can have all the memory
    assert again == []
    (run,) = only_runs(scheduler.handle(Finished(second.work, 10, (100,)), 2.0))
    assert (run.work, run.max_bytes, run.samples) == (first.work, 600 + 300 // 2, False)
    assert only_runs(scheduler.handle(Finished(run.work, 10, (700,)), 3.0)) == []
    assert scheduler.held_bytes == 800


def test_measured_output_updates_estimates_of_running_tasks() -> None:
    scheduler = scheduler_of(1, 1, 1, memory=1000, slots=2)
    first, second = begin(scheduler)
    # what still runs can output as much: together that is nearly all, and the third waits
    assert only_runs(scheduler.handle(Finished(first.work, 10, (480,)), 1.0)) == []
    assert scheduler.held_bytes == 480 + 480
    assert second.max_bytes is not None
    assert second.max_bytes > 480
    (third,) = only_runs(scheduler.handle(Finished(second.work, 10, (20,)), 2.0))
    assert third.work.part == 2


def test_estimates_alone_raise_nothing() -> None:
    scheduler = scheduler_of(1, 1, memory=1000, slots=1)
    (first,) = begin(scheduler)
    (second,) = only_runs(scheduler.handle(Finished(first.work, 10, (990,)), 1.0))
    assert (second.max_bytes, second.samples) == (10, True)
    assert only_runs(scheduler.handle(Finished(second.work, 10, (5,)), 2.0)) == []


def test_output_larger_than_the_memory_limit_raises() -> None:
    scheduler = scheduler_of(1, 1, memory=1000, slots=1)
    (first,) = begin(scheduler)
    (second,) = only_runs(scheduler.handle(Finished(first.work, 10, (990,)), 1.0))
    (abort,) = scheduler.handle(Overflowed(second.work, Shortfall(0.5, 5, 11, 11)), 2.0)
    assert isinstance(abort, Abort)
    assert abort.window_bytes >= 1001


def test_number_of_tasks_is_limited_by_the_memory_of_their_blocks() -> None:
    overhead = RowOverhead(0, 0, 0, min_run_bytes=0, tasks=4, block_rows=10)
    scheduler = scheduler_of(*[10] * 8, memory=1000, overhead=overhead, row_bytes=1)
    waiting = begin(scheduler)
    assert len(waiting) == 4
    # outputs of 100, and blocks of 100 in tasks
    running = []
    for _ in range(8):
        done = waiting.pop(0)
        waiting += only_runs(scheduler.handle(Finished(done.work, 10, (100,)), 1.0))
        running.append(scheduler.running)
        assert len(waiting) == scheduler.running
    assert running == [4, 4, 3, 3, 2, 2, 1, 0]


@pytest.mark.parametrize(
    ("sizes", "memory", "slots"),
    [((1,), 1000, 1), ((1, 1), 1000, 2), ((1, 30, 1), 1030, 3), ((50, 1), 1000, 4), ((900,), 1000, 2)],
)
def test_unmeasured_block_is_estimated_as_large_as_its_output(
    sizes: tuple[int, ...], memory: int, slots: int
) -> None:
    overhead = RowOverhead(1, 1, 1, min_run_bytes=30, tasks=slots, block_rows=10)
    runs = begin(scheduler_of(*sizes, memory=memory, slots=slots, overhead=overhead))
    assert all(run.samples for run in runs)
    most = [run.max_bytes or 0 for run in runs]
    assert 2 * sum(most) <= memory - 30
    # no output limit is below the expected output, except for a task that would not fit beside its block
    assert all(may >= min(size, (memory - 30) // 2) for may, size in zip(most, sizes, strict=False))


def test_a_task_that_outgrew_its_share_is_retried_with_what_its_block_leaves() -> None:
    overhead = RowOverhead(0, 0, 0, min_run_bytes=0, tasks=2, block_rows=10)
    scheduler = scheduler_of(1, 1, memory=1000, slots=2, overhead=overhead)
    first, second = begin(scheduler)
    assert (first.max_bytes, second.max_bytes) == (250, 250)
    # ten rows of 40 bytes, in the output and in the block: no second such task fits beside the first one
    assert only_runs(scheduler.handle(Overflowed(first.work, Shortfall(0.5, 5, 200, 400)), 1.0)) == []
    (again,) = only_runs(scheduler.handle(Overflowed(second.work, Shortfall(0.5, 5, 200, 400)), 2.0))
    assert not again.samples
    assert again.max_bytes is not None
    assert 400 <= again.max_bytes <= 1000 - 400


def test_task_without_output_does_not_change_the_growth_estimate() -> None:
    c = cluster(30, parts=3, slots=3, memory_bytes=100, exact=False)
    c.open(0, 1)
    (first,) = c.running
    for instruction in c.scheduler.handle(Finished(first, 5, (0,)), c.now):
        assert isinstance(instruction, Run)
    assert c.scheduler.running == 1

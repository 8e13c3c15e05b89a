"""The state of one window: what waits, runs, and is held."""

from __future__ import annotations

import logging

import pytest

from tests.pipeline.coordinator.scheduling.test_memory_limit import memory_budget as make_room
from windrow.pipeline.coordinator.scheduling.events import Finished, Overflowed
from windrow.pipeline.coordinator.scheduling.window_state import WindowState, WindowTotals
from windrow.pipeline.plan.epoch_shape import Part, Stage
from windrow.pipeline.tasks.task import Shortfall, Work
from windrow.shuffle.order.shard_assignment import ShardAssignment

READ, PLACE, MAP = (
    Stage("read", needs_order=False),
    Stage("place", needs_order=True),
    Stage("map", needs_order=True),
)


def state(*stages: Stage, slices: int = 2, parts: int = 2) -> WindowState:
    sizes = [Part(3, 10 * (i + 1)) for i in range(parts)]
    assignment = ShardAssignment(1, 1)
    totals = WindowTotals()
    return WindowState(
        1, 4, 9, parts=sizes, stages=stages, slices=slices, assignment=assignment, totals=totals
    )


def test_parts_wait_in_order_and_only_with_an_order() -> None:
    window = state(MAP)
    assert list(window.waiting(ordered=False, limit=10)) == []
    assert list(window.waiting(ordered=True, limit=10)) == [
        (Work(1, 4, 0, 0, 9), 10),
        (Work(1, 4, 1, 0, 9), 20),
    ]


def test_running_tasks_count_as_expected_and_finished_ones_as_measured() -> None:
    window = state(MAP)
    (first, size), (second, _) = window.waiting(ordered=True, limit=10)
    window.start(first, size)
    assert window.held_bytes == 10
    window.finish(Finished(first, 3, (4, 5)))
    assert (window.held_bytes, window.complete) == (9, False)
    window.start(second, 20)
    assert window.held_bytes == 29
    window.finish(Finished(second, 3, (1, 1)))
    assert (window.held_bytes, window.complete) == (11, True)


def test_placed_output_replaces_the_memory_of_its_input() -> None:
    window = state(READ, PLACE, parts=1)
    read = Work(1, 4, 0, 0, 9)
    window.start(read, 10)
    assert not window.fully_read
    window.finish(Finished(read, 3, (12,)))
    assert window.fully_read
    assert window.held_bytes == 12
    assert list(window.waiting(ordered=False, limit=10)) == []
    ((place, size),) = window.waiting(ordered=True, limit=10)
    assert (place.stage, size) == (1, 0)
    window.start(place, size)
    assert window.held_bytes == 12
    window.finish(Finished(place, 3, (7, 6)))
    assert (window.held_bytes, window.complete) == (13, True)


def test_slices_are_released_once_even_before_they_exist() -> None:
    window = state(MAP, slices=3, parts=1)
    assert window.release(1) == (0,)
    assert window.release(1) == ()
    work = Work(1, 4, 0, 0, 9)
    window.start(work, 10)
    window.finish(Finished(work, 3, (5, 6, 7)))
    assert window.held_bytes == 13
    assert window.release(3) == (1, 2)
    assert (window.held_bytes, window.first_kept) == (0, 3)


def test_a_task_repeated_with_a_higher_limit_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    window, work = state(MAP), Work(1, 4, 1, 0, 9)
    window.start(work, 20)
    with caplog.at_level(logging.DEBUG, "windrow"):
        window.overflow(Overflowed(work, Shortfall(0.5, 1, 70, 80)))
    text = "epoch 1, window 4, part 1: its task stopped at its output limit and is repeated, with 80 bytes"
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [(logging.DEBUG, text)]


def test_measured_splits_estimate_the_window() -> None:
    window, memory_budget = state(MAP, parts=4), make_room()
    assert window.total_bytes(memory_budget) == 100
    work = Work(1, 4, 0, 0, 9)
    window.start(work, 10)
    finished = Finished(work, 3, (20, 20))
    memory_budget.measure(window.parts[0], finished)
    window.finish(finished)
    # each row takes 10 more than was expected, and the parts have 3
    assert window.total_bytes(memory_budget) == 40 + (20 + 30 + 40) + 3 * 30
    second = Work(1, 4, 1, 0, 9)
    window.start(second, 20)
    window.overflow(Overflowed(second, Shortfall(0.5, 1, 70, 80)))
    assert window.held_bytes == 40
    assert window.total_bytes(memory_budget) == 40 + 80 + (30 + 40) + 2 * 30
    assert [work.part for work, _ in window.waiting(ordered=True, limit=10)] == [1, 2, 3]


def test_tasks_that_run_are_expected_to_put_out_what_others_were_measured_to_but_no_more_than_they_may() -> (
    None
):
    window, memory_budget = state(MAP, parts=4), make_room()
    works = [Work(1, 4, part, 0, 9) for part in range(4)]
    for work, max_bytes in zip(works, (None, None, 45, 1000), strict=True):
        window.start(work, 10 * (work.part + 1), max_bytes)
    finished = Finished(works[0], 3, (20, 20))
    memory_budget.measure(window.parts[0], finished)
    window.finish(finished)
    window.update_estimates(memory_budget)
    assert window.held_bytes == 40 + (20 + 30) + 45 + (40 + 30)
    window.overflow(Overflowed(works[2], Shortfall(1.0, 3, 50, 50)))
    window.update_estimates(memory_budget)
    assert window.held_bytes == 40 + (20 + 30) + (40 + 30)
    for work in (works[1], works[3]):
        window.finish(Finished(work, 3, (1, 1)))
    assert window.held_bytes == 40 + 2 + 2


def test_a_task_starts_once() -> None:
    window = state(MAP)
    work = Work(1, 4, 0, 0, 9)
    window.start(work, 10)
    assert not window.is_waiting(work)
    with pytest.raises(ValueError, match="not in deque"):
        window.start(work, 10)


def test_outputs_that_wait_for_an_order_are_measured() -> None:
    window, memory_budget = state(READ, PLACE), make_room()
    read = Work(1, 4, 0, 0, 9)
    window.start(read, 10)
    assert window.measured_bytes == 0
    window.finish(Finished(read, 3, (12,)))
    assert window.measured_bytes == 12
    # the other part has not been read
    assert window.total_bytes(memory_budget) == 12 + 20
    place = Work(1, 4, 0, 1, 9)
    window.start(place, 0)
    window.finish(Finished(place, 3, (7, 6)))
    assert window.measured_bytes == 13

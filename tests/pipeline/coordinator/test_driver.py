"""The driver: it carries out instructions on any runner, in any order, and answers shards."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.laws.cases import Case
from windrow.core.buffer_pool import BufferPool
from windrow.core.errors import PlanError, TransformError
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.coordinator.failures import Failure
from windrow.pipeline.plan import output_bytes
from windrow.pipeline.plan import program as program_module
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.window_budget import Budget
from windrow.pipeline.tasks.map_task import run_task
from windrow.pipeline.tasks.task import Task
from windrow.shuffle.order.balance import Balance
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import WindowCut

CUT = WindowCut(blocks_per_window=2)


class Runner:
    """Keeps tasks until the test runs them."""

    def __init__(self, program: Program) -> None:
        self.destinations: tuple[tuple[int, ...], ...] = (program.members,)
        self.program = program
        self.queue: list[tuple[Task, Any, tuple[Any, ...]]] = []
        self.seen: list[Task] = []
        self.driver: Driver

    def run(self, task: Task, tables: Any, *cached: Any) -> None:
        self.queue.append((task, tables, cached))
        self.seen.append(task)

    def finish(self, at: int = 0) -> None:
        task, tables, cached = self.queue.pop(at)
        report, output, kept = run_task(self.program.context, task, tables, BufferPool(2**20), cached)
        self.driver.task_done(task, report, output, "test", kept)

    def finish_all(self, chance: random.Random | None = None) -> None:
        while self.queue:
            self.finish(0 if chance is None else chance.randrange(len(self.queue)))


def start(
    case: Case, *, workers: int = 4, memory: int = 10**6, slices: int = 1, spare: int = 0, ahead: int = 10**6
) -> tuple[Driver, Runner, list[float]]:
    program = Program(case.job("threads"), case.shards, case.equal, tuple(range(case.shards)))
    budget = Budget(memory, ahead, memory, 0, 0, memory, slices, 2 + spare, exact=True, extra_windows=spare)
    runner, clock = Runner(program), [100.0]
    runner.driver = Driver(program, budget, runner, workers=workers, clock=lambda: clock[0])
    return runner.driver, runner, clock


def is_complete(driver: Driver, shard: int, epoch: int, window: int) -> bool:
    reply = driver.poll(shard, epoch, window, ())
    return len(reply.outputs) == reply.parts


def test_opening_an_epoch_returns_its_known_facts() -> None:
    driver, runner, _ = start(Case((5, 5, 5), CUT, shards=2, batch_rows=4, equal=True))
    facts = driver.open_epoch(0, Cursor(), Batching(4))
    assert (facts.epoch, facts.first_window, facts.windows, facts.total) == (0, 0, 2, 15)
    assert facts.run_rows % 4 == 0
    assert driver.run_stats(spans=False).left_out_rows == 1
    assert runner.queue


@pytest.mark.parametrize(("asked", "spare", "windows"), [(1, 0, 2), (1, 2, 4), (0, 0, 1)])
def test_spare_windows_are_prepared_beyond_requested_ones(asked: int, spare: int, windows: int) -> None:
    case = Case((5,) * 6, WindowCut(blocks_per_window=1), prefetch_windows=asked)
    # no read-ahead: windows of one size leave no memory for it
    driver, runner, _ = start(case, workers=6, spare=spare, ahead=0)
    assert driver.open_epoch(0, Cursor(), Batching(4)).extra_windows == spare
    assert [task.work.window for task in runner.seen] == list(range(windows))


def test_another_batch_size_names_both() -> None:
    driver, _, _ = start(Case((5,), shards=2))
    driver.open_epoch(0, Cursor(), Batching(4))
    with pytest.raises(PlanError, match=r"batch_size=4.*batch_size=5"):
        driver.open_epoch(1, Cursor(), Batching(5))
    with pytest.raises(PlanError, match=r"drop_last=False.*drop_last=True"):
        driver.open_epoch(1, Cursor(), Batching(4, drop_last=True))
    driver.open_epoch(1, Cursor(), Batching(4))


def test_replies_bring_only_what_a_shard_lacks() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_module, "TASK_BYTES", 1)
        driver, runner, _ = start(Case((5, 5), CUT))
        driver.open_epoch(0, Cursor(), Batching(2))
        assert driver.poll(0, 0, 0, ()).parts == 2
        runner.finish(1)
        reply = driver.poll(0, 0, 0, ())
        assert list(reply.outputs) == [1]
        runner.finish()
        assert list(driver.poll(0, 0, 0, {1}).outputs) == [0]


def test_late_results_of_an_epoch_that_was_left_change_nothing() -> None:
    # with a filter the tasks of the first epoch have two stages, those of later ones only one
    driver, runner, _ = start(Case((20, 20), shards=1, change="filtered", epochs=3))
    driver.open_epoch(0, Cursor(), Batching(2))
    runner.finish()
    (at,) = [i for i, (task, *_) in enumerate(runner.queue) if task.work.stage == 1][-1:]
    late, tables, _ = runner.queue[at]
    del runner.queue[at]
    driver.acknowledge(0, Place(1, 0))
    driver.open_epoch(0, Cursor(epoch=1), Batching(2))
    report, output, _ = run_task(runner.program.context, late, tables, BufferPool(2**20))
    driver.task_done(late, report, output, "test")
    runner.finish_all()
    assert is_complete(driver, 0, 1, 0)
    driver.close_shard(0)
    assert driver.run_stats(spans=False).held_bytes == 0


@pytest.mark.parametrize("before", [None, Balance("half")])
def test_late_results_that_were_not_measured_do_not_count(
    before: Balance | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_module, "TASK_BYTES", 100)
    driver, runner, _ = start(Case((20,) * 4, CUT, shards=1, epochs=2), workers=2)
    driver.open_epoch(0, Cursor(), Batching(2, balance=before))
    for window in (1, 2):
        while of_epoch := [at for at, (task, *_) in enumerate(runner.queue) if not task.work.epoch]:
            runner.finish(of_epoch[0])
        driver.acknowledge(0, Place(0, window))
    # the first windows of the next epoch are prepared as for the same batches
    assert {task.work.epoch for task, *_ in runner.queue} == {1}
    late = len(runner.queue)
    driver.open_epoch(0, Cursor(epoch=1), Batching(2, balance=Balance("x")))
    for _ in range(late):
        runner.finish()
    runner.finish_all()
    assert is_complete(driver, 0, 1, 0)


def test_acknowledged_slices_are_not_cached_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_bytes, "_BLOCK_BYTES", 200)
    driver, runner, clock = start(Case((20,) * 6, CUT, shards=2), memory=1400, slices=4)
    for shard in range(2):
        driver.open_epoch(shard, Cursor(), Batching(2))
    runner.finish_all()
    driver.acknowledge(0, Place(0, 1))
    driver.acknowledge(1, Place(0, 0, 2))
    for _ in range(20):
        clock[0] += 2
        driver.heartbeat(0)
        runner.finish_all()
        if driver.run_stats(spans=False).dropped_windows:
            break
        window = 1 + int(is_complete(driver, 0, 0, 1))
        driver.acknowledge(0, Place(0, window))
    assert driver.run_stats(spans=False).dropped_windows
    driver.acknowledge(0, Place(1, 0))
    driver.heartbeat(1)
    runner.finish_all()
    reply = driver.poll(1, 0, 0, ())
    (slices,) = reply.outputs.values()
    assert [handle is None for handle in slices] == [True, True, False, False]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("change", ["none", "filtered", "doubled"])
def test_tasks_can_end_in_any_order(seed: int, change: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_module, "TASK_BYTES", 100)
        case = Case((9, 0, 14, 3, 20), CUT, seed=seed, shards=2, change=change)
        driver, runner, _ = start(case)
        chance = random.Random(seed)
        for shard in range(2):
            driver.open_epoch(shard, Cursor(), Batching(3))
        for window in range(3):
            runner.finish_all(chance)
            assert is_complete(driver, 0, 0, window)
            for shard in range(2):
                driver.acknowledge(shard, Place(0, window + 1))
        assert driver.run_stats(spans=False).held_bytes == 0


def test_a_failed_task_fails_every_question() -> None:
    driver, _, _ = start(Case((5,), shards=2))
    driver.open_epoch(0, Cursor(), Batching(1))
    driver.task_failed(Failure.capture(TransformError("map failed")))
    driver.task_failed(Failure.capture(TransformError("another")))
    for shard in range(2):
        with pytest.raises(TransformError, match="map failed"):
            driver.poll(shard, 0, 0, ())


def test_last_shard_to_close_is_reported() -> None:
    driver, runner, _ = start(Case((5,), shards=2))
    driver.open_epoch(0, Cursor(), Batching(1))
    runner.finish_all()
    assert driver.close_shard(0) is False
    assert driver.close_shard(1) is True
    assert driver.run_stats(spans=False).held_bytes == 0


def test_a_window_that_cannot_fit_fails_the_run() -> None:
    driver, _, _ = start(Case((20,) * 6, CUT, shards=2), memory=1)
    driver.open_epoch(0, Cursor(), Batching(1))
    with pytest.raises(PlanError, match="memory_limit"):
        driver.poll(0, 0, 0, ())


def test_report_of_who_waits_for_whom() -> None:
    driver, _, clock = start(Case((20,) * 6, CUT, shards=2))
    driver.open_epoch(0, Cursor(), Batching(1))
    clock[0] += 7
    text, seconds = driver.diagnose(0)
    assert "1 running tasks" in text
    assert seconds == 7


def test_what_goes_wrong_with_an_output_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, runner, _ = start(Case((20, 20), shards=1))
    driver.open_epoch(0, Cursor(), Batching(2))

    def fail(*_: object) -> None:
        raise MemoryError("no room for counts")

    monkeypatch.setattr(driver._rows, "record", fail)
    runner.finish()
    with pytest.raises(Exception, match="no room for counts"):
        driver.poll(0, 0, 0, ())
    waiting = len(runner.queue)
    driver.tick()
    assert len(runner.queue) == waiting, "nothing more is started for a run that has ended"


def test_events_reported_during_handling_are_queued(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, _, _ = start(Case((20, 20), shards=2))
    handled: list[str] = []
    original = driver._scheduler.handle

    def handle(event: Any, now: float) -> Any:
        handled.append(f"begin {type(event).__name__}")
        if type(event).__name__ == "Opened":
            # as a finalizer would that runs in the middle of it
            driver.close_shard(1)
        instructions = original(event, now)
        handled.append(f"end {type(event).__name__}")
        return instructions

    monkeypatch.setattr(driver._scheduler, "handle", handle)
    driver.open_epoch(0, Cursor(), Batching(2))
    assert handled == ["begin Opened", "end Opened", "begin Closed", "end Closed"]


def test_rows_left_out_are_counted_once_they_are_known() -> None:
    case = Case((20, 20), shards=3, equal=True, change="filtered")
    driver, runner, _ = start(case)
    for shard in range(3):
        driver.open_epoch(shard, Cursor(), Batching(3))
    assert driver.run_stats(spans=False).left_out_rows == 0
    runner.finish_all()
    total = driver.run_stats(spans=False).epoch_rows
    assert total is not None
    assert driver.run_stats(spans=False).left_out_rows == total % 3
    assert total % 3, "the case must leave rows out"


def test_a_run_that_begins_in_mid_epoch_counts_what_lies_before() -> None:
    driver, runner, _ = start(Case((20,) * 6, CUT, shards=1, change="filtered"))
    driver.open_epoch(0, Cursor(window=1), Batching(2))
    runner.finish_all()
    assert is_complete(driver, 0, 0, 1)

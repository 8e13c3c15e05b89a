"""A round of a mixture has runs of several windows: all are placed for the nodes on which its shards are now."""

from __future__ import annotations

from tests.laws.mixture_cases import MixedCase, SourceCase
from tests.pipeline.coordinator.test_driver import Runner
from windrow.pipeline.coordinator.driver import Driver
from windrow.pipeline.plan.cursor import Cursor
from windrow.pipeline.plan.program import Program
from windrow.pipeline.plan.shares import Shares
from windrow.pipeline.plan.window_budget import Budget
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import WindowCut

SHARDS = 3


def test_windows_are_placed_again_for_the_node_of_a_shard_that_opens_later() -> None:
    cut = WindowCut(blocks_per_window=1)
    sources = tuple(SourceCase((20, 20), cut, seed=seed) for seed in (1, 2))
    case = MixedCase(sources, (0, 1), Shares.constant({"c": 1, "a": 1}))
    job = case.pipeline("threads")._plan.job()
    program = Program(job, SHARDS, False, tuple(range(SHARDS)))
    budget = Budget(10**6, 10**6, 10**6, 0, 0, 10**6, 1, 2, exact=True, extra_windows=0)
    runner = Runner(program)
    runner.driver = driver = Driver(program, budget, runner, workers=2, clock=lambda: 100.0)

    runner.destinations = ((0,), (1, 2))
    driver.open_epoch(0, Cursor(), Batching(4))
    runner.finish()
    # one window has been placed, and the others wait for their tasks
    runner.destinations = ((0, 2), (1,))
    for shard in (1, 2):
        driver.open_epoch(shard, Cursor(), Batching(4))
    runner.finish_all()
    for shard in range(SHARDS):
        reply = driver.poll(shard, 0, 0, ())
        assert len(reply.outputs) == reply.parts > 1
        assert reply.layout is not None
        assert len({count for _, count in reply.runs.values()}) == 1
        assert shard in reply.layout.shards
    placed = [task for task in runner.seen if task.ordering is not None]
    latest = {(task.work.window, task.work.part): task for task in placed}
    for task in latest.values():
        assert task.ordering is not None
        assert [layout.shards for layout in task.ordering.layouts] == [(0, 2), (1,)]

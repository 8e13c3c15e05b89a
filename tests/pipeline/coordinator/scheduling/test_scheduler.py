"""The scheduler, simulated: its guarantees hold whatever happens, and each rule by itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.pipeline.coordinator.scheduling.simulation import Chunk, Cluster, Shape
from windrow.pipeline.coordinator.scheduling.events import (
    Abort,
    Drop,
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
from windrow.pipeline.tasks.task import Work
from windrow.shuffle.order.shard_assignment import ShardAssignment

CHUNKS = st.builds(Chunk, rows=st.integers(0, 9), size_bytes=st.integers(0, 10), known=st.just(True))
UNKNOWN = st.builds(Chunk, rows=st.integers(0, 9), size_bytes=st.integers(0, 10), known=st.booleans())


def shapes(chunks: st.SearchStrategy[Chunk]) -> st.SearchStrategy[Shape]:
    window = st.lists(chunks, max_size=4).map(tuple)
    return st.lists(window, max_size=5).map(tuple)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    shape = draw(shapes(draw(st.sampled_from([CHUNKS, UNKNOWN]))))
    largest = max((sum(chunk.size_bytes for chunk in window) for window in shape), default=0)
    prefetch = draw(st.integers(0, 3))
    return Cluster(
        shape,
        shards=draw(st.integers(1, 3)),
        epochs=draw(st.sampled_from([1, 2, 3, None])),
        slots=draw(st.integers(1, 4)),
        memory_bytes=largest + draw(st.integers(0, 40)),
        prefetch_windows=prefetch,
        read_ahead_bytes=draw(st.sampled_from([0, (1 + prefetch) * largest])),
        crosses_epochs=draw(st.booleans()),
        slices=draw(st.sampled_from([1, 2, 8])),
        exact=draw(st.booleans()),
    )


def disturb(cluster: Cluster, data: st.DataObject) -> None:
    """Let anything happen: tasks end in any order, shards come, read, pause, leave and close."""
    for _ in range(data.draw(st.integers(0, 40))):
        shard = data.draw(st.sampled_from(sorted(cluster.readers)))
        reader = cluster.readers[shard]
        action = data.draw(
            st.sampled_from(
                ["finish", "finish", "finish", "step", "step", "open", "leave", "close", "wait", "pause"]
            )
        )
        if action == "finish" and cluster.running:
            cluster.finish(data.draw(st.sampled_from(sorted(cluster.running))))
        elif action == "step":
            cluster.step(shard)
        elif action == "open" and cluster.can_open(shard):
            cluster.open(shard, data.draw(st.integers(1, 4)))
        elif action == "leave" and not reader.closed and reader.window is not None:
            cluster.leave(shard)
        elif action == "close" and not reader.closed and data.draw(st.integers(0, 3)) == 0:
            cluster.close(shard)
        elif action == "wait":
            cluster.pass_time(1.0)
        elif action == "pause":
            awake = data.draw(st.sets(st.sampled_from(sorted(cluster.readers))))
            cluster.pass_time(7.0, awake)


@examples(250)
@given(clusters(), st.data())
def test_invariants_after_any_sequence_of_events(cluster: Cluster, data: st.DataObject) -> None:
    disturb(cluster, data)
    awake = data.draw(st.sets(st.sampled_from(sorted(cluster.readers))))
    # some go on alone, while the others keep silent; then these catch up
    cluster.read_all(awake)
    cluster.read_all(set(cluster.readers) - awake)
    cluster.read_all(set(cluster.readers))
    cluster.close_all()


def cluster(*windows: int, parts: int = 2, shards: int = 1, known: bool = True, **options: Any) -> Cluster:
    """Windows of the given bytes, in equal parts of five rows."""
    shape = tuple(tuple(Chunk(5, size // parts, known) for _ in range(parts)) for size in windows)
    defaults: dict[str, Any] = {
        "epochs": 1,
        "slots": 2,
        "memory_bytes": 20,
        "prefetch_windows": 1,
        "crosses_epochs": True,
        "slices": 1,
    }
    return Cluster(shape, shards=shards, **{**defaults, **options})


def run_everything(cluster: Cluster) -> None:
    while cluster.running:
        cluster.finish(cluster.running[0])


def started(cluster: Cluster) -> list[tuple[int, int, int]]:
    return [(work.epoch, work.window, work.part) for work in cluster.runs]


def test_nothing_runs_before_a_shard_opens_an_epoch() -> None:
    c = cluster(10, 10)
    c.pass_time(100)
    assert not c.runs


def test_the_window_that_is_read_comes_first_then_the_next() -> None:
    c = cluster(10, 10, 10, slots=1)
    c.open(0, 1)
    run_everything(c)
    assert started(c) == [(0, 0, 0), (0, 0, 1), (0, 1, 0), (0, 1, 1)]


def test_a_late_shards_window_goes_before_what_is_prepared_ahead() -> None:
    c = cluster(10, 10, 10, 10, shards=2, slots=1, memory_bytes=100)
    c.open(0, 1)
    run_everything(c)
    c.step(0)
    c.step(0)
    # window 2 is being prepared for shard 0; window 0 is still held for shard 1
    c.open(1, 1)
    run_everything(c)
    assert started(c)[-4:] == [(0, 2, 0), (0, 2, 1), (0, 3, 0), (0, 3, 1)]
    assert c.is_ready(c.readers[1])


def test_the_next_epoch_is_prepared_across_the_border() -> None:
    c = cluster(10, 10, epochs=2, memory_bytes=100)
    c.open(0, 1)
    run_everything(c)
    c.step(0)
    run_everything(c)
    assert (1, 0, 0) in started(c)


@pytest.mark.parametrize("window_bytes", [10, 0])
def test_a_pass_on_demand_prepares_nothing_beyond_itself(window_bytes: int) -> None:
    c = cluster(window_bytes, window_bytes, epochs=None, memory_bytes=100, crosses_epochs=False)
    c.open(0, 1)
    c.read_all({0}, epochs=1)
    assert {epoch for epoch, *_ in started(c)} == {0}
    assert c.held_bytes == 0


def test_a_pass_on_demand_prepares_nothing_beyond_itself_while_others_read_on() -> None:
    c = cluster(10, 10, epochs=None, shards=2, memory_bytes=100, crosses_epochs=False)
    c.open(0, 1)
    c.open(1, 1)
    c.read_all({0}, epochs=1)
    run_everything(c)
    assert {epoch for epoch, *_ in started(c)} == {0}


def test_windows_without_parts_are_looked_past() -> None:
    c = cluster(10, 10, memory_bytes=100)
    c.shape = ((), c.shape[0], (), (), c.shape[1])
    c.open(0, 1)
    run_everything(c)
    assert started(c) == [(0, 1, 0), (0, 1, 1), (0, 4, 0), (0, 4, 1)]
    c.read_all({0})
    c.close_all()


def test_no_read_ahead_beyond_the_last_epoch() -> None:
    c = cluster(10, epochs=1, memory_bytes=100, prefetch_windows=3)
    c.open(0, 1)
    run_everything(c)
    assert started(c) == [(0, 0, 0), (0, 0, 1)]


def test_memory_bounds_what_is_prepared() -> None:
    c = cluster(10, 10, 10, memory_bytes=15, prefetch_windows=2)
    c.open(0, 1)
    run_everything(c)
    assert started(c) == [(0, 0, 0), (0, 0, 1), (0, 1, 0)]
    assert c.held_bytes == 15
    # the first window that does not fit, not a later one
    assert c.scheduler.short_of_memory == (0, 1)


def test_slices_let_the_next_window_in_as_this_one_is_consumed() -> None:
    c = cluster(20, 20, memory_bytes=20, slices=2)
    c.open(0, 1)
    run_everything(c)
    assert len(c.runs) == 2
    c.step(0)
    run_everything(c)
    assert started(c)[2:] == [(0, 1, 0)]
    assert c.drops == [Drop(0, 0, slices=(0,))]


def test_new_batch_size_discards_windows_prepared_for_the_old_one() -> None:
    c = cluster(10, epochs=2, memory_bytes=100)
    c.open(0, 4)
    run_everything(c)
    assert (1, 0, 0) in started(c)
    c.step(0)
    c.step(0)
    c.open(0, 3)
    assert Drop(1, 0) in c.drops
    run_everything(c)
    assert started(c).count((1, 0, 0)) == 2


def test_same_batch_size_keeps_prepared_windows() -> None:
    c = cluster(10, epochs=2, memory_bytes=100)
    c.open(0, 4)
    run_everything(c)
    c.step(0)
    c.step(0)
    c.open(0, 4)
    run_everything(c)
    assert started(c).count((1, 0, 0)) == 1


def test_late_shard_of_an_earlier_epoch_does_not_change_the_next_assignment() -> None:
    c = cluster(10, epochs=3, shards=2, memory_bytes=100)
    c.open(0, 4)
    run_everything(c)
    c.step(0)
    c.step(0)
    c.open(0, 3)
    run_everything(c)
    assert (2, 0, 0) in started(c)
    before = len(c.drops)
    c.open(1, 4)
    assert c.drops[before:] == []


def test_rows_of_silent_shards_are_dropped_after_a_while_and_made_again() -> None:
    c = cluster(10, 10, 10, shards=2, memory_bytes=20)
    c.open(0, 1)
    c.open(1, 1)
    run_everything(c)
    c.step(0)
    c.step(0)
    c.pass_time(1, {0})
    assert c.waits(0)
    assert not c.drops
    c.pass_time(5, {0})
    assert c.drops == [Drop(0, 0, rebuild=True)]
    c.read_all({0})
    c.read_all({1})
    assert c.scheduler.dropped_windows >= 1
    c.close_all()


def test_evicted_windows_of_a_silent_shard_wait_for_its_heartbeat() -> None:
    c = cluster(*[10] * 6, shards=2, memory_bytes=20)
    c.open(0, 1)
    c.open(1, 1)
    c.read_all({0})
    assert started(c).count((0, 0, 0)) == 1
    c.pass_time(1, {1})
    run_everything(c)
    assert started(c).count((0, 0, 0)) == 2


def test_shards_read_one_after_the_other_make_each_window_once_each() -> None:
    c = cluster(*[10] * 6, shards=3, memory_bytes=20, epochs=2)
    for shard in range(3):
        c.read_all({shard})
    for window in range(6):
        for epoch in range(2):
            assert started(c).count((epoch, window, 0)) <= 3
    c.close_all()


def test_the_oldest_window_waited_for_has_the_right_of_way() -> None:
    c = cluster(20, 20, parts=4, shards=2, memory_bytes=20, slots=1)
    c.open(0, 1)
    c.open(1, 1)
    run_everything(c)
    # shard 1 continues, shard 0 is silent and loses window 0
    c.step(1)
    c.pass_time(6, {1})
    assert Drop(0, 0, rebuild=True) in c.drops
    c.finish(c.running[0])
    # now it waits again: half of window 1 is there, and both cannot fit
    c.readers[0].fetched = False
    c.pass_time(1, {0, 1})
    run_everything(c)
    assert Drop(0, 1, rebuild=True) in c.drops
    assert c.is_ready(c.readers[0])
    c.read_all({0, 1})
    c.close_all()


def test_a_closed_shard_holds_nothing() -> None:
    c = cluster(10, 10, shards=2)
    c.open(0, 1)
    run_everything(c)
    c.step(0)
    assert not c.drops
    c.close(1)
    assert c.drops == [Drop(0, 0)]


def test_cancelled_task_counts_until_it_ends() -> None:
    c = cluster(10, 10, slots=2, memory_bytes=20)
    c.open(0, 1)
    assert len(c.running) == 2
    c.leave(0)
    assert c.held_bytes == 10
    run_everything(c)
    assert c.held_bytes == 0


def test_unknown_counts_are_read_first_then_placed() -> None:
    c = cluster(10, known=False)
    c.open(0, 1)
    run_everything(c)
    assert [(work.part, work.stage) for work in c.runs] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_step_past_the_window_is_counted_behind_without_waiting_for_memory() -> None:
    # a step takes 7 rows, the window has 10, and its four missing ones are one part behind
    c = cluster(20, 20, known=False, memory_bytes=20, slots=1)
    c.open(0, 7)
    run_everything(c)
    assert [(work.window, work.part, work.stage) for work in c.runs[:3]] == [(0, 0, 0), (0, 1, 0), (1, 0, 0)]
    assert c.is_ready(c.readers[0])
    c.read_all({0})
    c.close_all()


def test_counts_once_learnt_serve_later_epochs() -> None:
    c = cluster(10, 10, known=False, epochs=3, memory_bytes=100)
    c.open(0, 1)
    c.read_all({0})
    assert all(work.stage == 0 for work in c.runs if work.epoch == 2)
    c.close_all()


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


def test_shard_without_an_open_epoch_holds_nothing() -> None:
    c = cluster(10, 10, epochs=None, shards=2, memory_bytes=20, crosses_epochs=False)
    for epoch in range(3):
        c.open(0, 1)
        c.read_all({0}, epochs=epoch + 1)
        assert c.held_bytes == 0
    assert not c.scheduler._counts


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
    again = only_runs(scheduler.handle(Overflowed(first.work, 0.5, 5, 600, 600), 1.0))
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
    (abort,) = scheduler.handle(Overflowed(second.work, 0.5, 5, 11, 11), 2.0)
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
    assert only_runs(scheduler.handle(Overflowed(first.work, 0.5, 5, 200, 400), 1.0)) == []
    (again,) = only_runs(scheduler.handle(Overflowed(second.work, 0.5, 5, 200, 400), 2.0))
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


def test_farthest_read_ahead_is_evicted_first() -> None:
    c = cluster(*[10] * 6, epochs=None, shards=2, memory_bytes=30, prefetch_windows=2, crosses_epochs=False)
    c.open(0, 1)
    run_everything(c)
    c.step(0)
    c.step(0)
    run_everything(c)
    assert c.held_bytes == 30
    before = len(c.drops)
    c.open(1, 1)
    assert c.drops[before:] == [Drop(0, 4, rebuild=True)]


def test_memory_of_a_silent_shard_is_not_refilled_with_its_windows() -> None:
    c = cluster(20, 4, 4, 4, shards=2, memory_bytes=28)
    c.open(0, 1)
    c.open(1, 1)
    run_everything(c)
    for _ in range(3):
        c.step(0)
        run_everything(c)
    c.pass_time(6, {0})
    run_everything(c)
    assert c.drops == [Drop(0, 0, rebuild=True)]
    assert started(c).count((0, 0, 0)) == 1


def test_of_a_window_made_again_only_what_is_still_needed_is_held() -> None:
    c = cluster(20, 20, shards=2, memory_bytes=20, slices=2)
    c.open(0, 1)
    c.open(1, 1)
    run_everything(c)
    c.step(0)
    c.step(1)
    c.step(1)
    c.pass_time(6, {1})
    run_everything(c)
    assert Drop(0, 0, rebuild=True) in c.drops
    c.readers[0].fetched = False
    c.pass_time(1, {0})
    run_everything(c)
    window = c.scheduler.window(0, 0)
    assert window is not None
    assert (window.complete, window.held_bytes) == (True, 10)


def test_scheduler_waits_for_memory_of_running_tasks() -> None:
    c = cluster(10, shards=2, epochs=2, slots=8, memory_bytes=20)
    c.open(0, 1)
    c.open(1, 1)
    for work in [work for work in c.running if work.epoch == 0]:
        c.finish(work)
    c.step(0)
    c.step(0)
    c.pass_time(6, set())
    # the tasks of the other assignment still run, and nothing is dropped for theirs
    c.open(0, 2)
    assert c.drops == [Drop(1, 0)]
    c.read_all({0, 1})
    c.close_all()


def test_a_shard_that_moves_is_not_silent() -> None:
    c = cluster(10, 10, 10, shards=2, memory_bytes=20, slices=2)
    c.open(0, 1)
    c.open(1, 1)
    run_everything(c)
    for _ in range(4):
        c.step(0)
    c.pass_time(4, {0})
    c.step(1)
    c.pass_time(4, {0})
    assert not any(drop.rebuild for drop in c.drops)
    c.pass_time(2, {0})
    assert any(drop.rebuild for drop in c.drops)


def test_windows_that_everybody_has_read_do_not_count_as_dropped() -> None:
    c = cluster(10, 10, epochs=2)
    c.read_all({0})
    assert c.drops
    assert c.scheduler.dropped_windows == 0


def test_the_next_epoch_is_not_begun_while_this_one_is_being_counted() -> None:
    c = cluster(10, 10, known=False, epochs=2, memory_bytes=100, slots=8, prefetch_windows=3)
    c.open(0, 1)
    c.read_all({0})
    assert {work.stage for work in c.runs if work.epoch == 1} == {0}

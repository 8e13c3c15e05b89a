"""The scheduler, simulated: its guarantees hold whatever happens, and each rule by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.laws.examples import examples
from tests.pipeline.coordinator.scheduling.simulation import Chunk, Cluster, Shape
from tests.pipeline.coordinator.scheduling.small_clusters import cluster, run_everything, started
from windrow.pipeline.coordinator.scheduling.events import (
    Drop,
    Opened,
)
from windrow.pipeline.plan.cursor import Place
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


def test_another_batch_size_at_the_same_place_prepares_its_window_again() -> None:
    c = cluster(10, 10, memory_bytes=100)
    c.open(0, 4)
    run_everything(c)
    c.handle(Opened(0, Place(0, 0), ShardAssignment(1, 3)))
    run_everything(c)
    assert [started(c).count((0, window, 0)) for window in range(2)] == [2, 2]


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


def test_shard_without_an_open_epoch_holds_nothing() -> None:
    c = cluster(10, 10, epochs=None, shards=2, memory_bytes=20, crosses_epochs=False)
    for epoch in range(3):
        c.open(0, 1)
        c.read_all({0}, epochs=epoch + 1)
        assert c.held_bytes == 0
    assert not c.scheduler.epochs._counts


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


def test_windows_are_complete_once_all_of_their_tasks_have_finished() -> None:
    c = cluster(10, 10, 10)
    c.open(0, 1)
    assert c.running
    assert c.scheduler.window(0, 0) is not None
    assert not c.scheduler.are_complete(0, (0,))
    run_everything(c)
    assert c.scheduler.are_complete(0, (0,))
    # nobody has asked for it
    assert not c.scheduler.are_complete(0, (0, 7))


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

"""Shards without a heartbeat: what is held for them, and when it is made again."""

from __future__ import annotations

from tests.pipeline.coordinator.scheduling.small_clusters import cluster, run_everything, started
from windrow.pipeline.coordinator.scheduling.events import Drop


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

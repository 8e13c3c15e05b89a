"""Read-ahead beyond the prefetched windows: only in memory that windows smaller than the largest leave."""

from __future__ import annotations

from dataclasses import replace

from tests.pipeline.coordinator.core_host import CASE, Host, make, request
from tests.pipeline.coordinator.scheduling.simulation import Cluster
from tests.pipeline.coordinator.scheduling.small_clusters import cluster, run_everything
from windrow.pipeline.coordinator.scheduling.events import Opened
from windrow.pipeline.plan.cursor import Place
from windrow.pipeline.plan.epoch_shape import EpochShape
from windrow.shuffle.order.epoch_plan import WindowCut


def begun(cluster: Cluster) -> list[tuple[int, int]]:
    """The windows with parts started since the last call, and the bytes of each."""
    windows: dict[int, int] = {}
    for work in cluster.runs:
        at = work.epoch * len(cluster.shape) + work.window
        windows[at] = windows.get(at, 0) + cluster.shape[work.window][work.part].size_bytes
    cluster.runs.clear()
    return list(windows.items())


def test_small_windows_have_more_read_ahead() -> None:
    c = cluster(10, 4, 4, 10, slots=8, memory_bytes=100, read_ahead_bytes=20)
    c.open(0, 1)
    run_everything(c)
    assert begun(c) == [(0, 10), (1, 4), (2, 4)], "two of the largest take 20 bytes"


def test_part_of_a_window_is_prepared_if_only_that_fits() -> None:
    c = cluster(10, 4, 10, slots=8, memory_bytes=100, read_ahead_bytes=20)
    c.open(0, 1)
    run_everything(c)
    assert begun(c) == [(0, 10), (1, 4), (2, 5)]
    c.step(0)
    c.step(0)
    run_everything(c)
    assert begun(c) == [(2, 5)], "the rest, once a window has been passed"


def test_windows_of_one_size_are_prepared_in_requested_number() -> None:
    c = cluster(10, 10, 10, 10, slots=8, memory_bytes=100, read_ahead_bytes=20)
    c.open(0, 1)
    run_everything(c)
    assert begun(c) == [(0, 10), (1, 10)]


def test_requested_windows_come_before_read_ahead() -> None:
    c = cluster(4, 4, 4, slots=1, memory_bytes=100, read_ahead_bytes=20)
    c.open(0, 1)
    assert len(c.running) == 1, "no worker is free for more"
    run_everything(c)
    assert begun(c) == [(0, 4), (1, 4), (2, 4)]


def test_no_extra_read_ahead_for_shards_that_read_no_epoch() -> None:
    c = cluster(4, 4, 4, epochs=2, slots=8, memory_bytes=100, read_ahead_bytes=20)
    c.open(0, 1)
    run_everything(c)
    assert begun(c) == [(0, 4), (1, 4), (2, 4)]
    c.leave(0)
    run_everything(c)
    assert begun(c) == [(3, 4)]


def test_no_extra_read_ahead_where_rows_must_be_counted_first() -> None:
    c = cluster(10, 4, 4, known=False, slots=8, memory_bytes=100, read_ahead_bytes=20)
    c.open(0, 1)
    run_everything(c)
    assert [window for window, _ in begun(c)] == [0, 1]


def test_read_ahead_plans_no_further_epoch() -> None:
    c = cluster(10, epochs=None, slots=8, memory_bytes=100, read_ahead_bytes=30)
    planned = set[int]()
    shape_of = c.scheduler.epochs._shape_of

    def note(epoch: int) -> EpochShape:
        planned.add(epoch)
        return shape_of(epoch)

    c.scheduler.epochs._shape_of = note
    c.open(0, 1)
    run_everything(c)
    assert begun(c) == [(0, 10), (1, 10)]
    assert planned == {0, 1}


def test_waiting_shard_evicts_the_farthest_read_ahead() -> None:
    c = cluster(10, 4, 4, 4, 4, shards=2, slots=8, memory_bytes=20, read_ahead_bytes=20)
    for shard in (0, 1):
        c.open(shard, 1)
    run_everything(c)
    for shard in (0, 1):
        c.step(shard)
        c.step(shard)
    run_everything(c)
    assert [window for window, _ in begun(c)] == [0, 1, 2, 3, 4]
    c.drops.clear()
    # one returns to the first window
    assignment = c.scheduler.epochs.opened_assignment(0)
    assert assignment is not None
    c.readers[1].window, c.readers[1].fetched = 0, False
    c.handle(Opened(1, Place(0, 0), assignment))
    assert [(drop.window, drop.rebuild) for drop in c.drops] == [(4, True)]
    assert begun(c) == [(0, 10), (1, 2)]


def test_no_read_ahead_unless_requested() -> None:
    host = Host()
    unequal = replace(CASE, sizes=(20_000, 10, 10), cut=WindowCut(blocks_per_window=1), seed=None, shards=1)
    for asked, ready in ((0, 1), (1, 3)):
        coordination = make(host, replace(unequal, prefetch_windows=asked))
        coordination.open_epoch(request(0))
        host.finish()
        assert len(coordination.run_stats(spans=False).windows_ready) == ready

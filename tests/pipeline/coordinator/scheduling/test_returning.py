"""A shard that returns to a window which others, or its former reader, have partly passed."""

from __future__ import annotations

from tests.pipeline.coordinator.scheduling.simulation import Chunk, Cluster
from windrow.pipeline.coordinator.scheduling.events import Drop, Opened
from windrow.pipeline.plan.cursor import Place
from windrow.shuffle.order.shard_assignment import ShardAssignment

SHAPE = ((Chunk(4, 100), Chunk(4, 100)), (Chunk(4, 100),))


def test_a_window_that_lacks_slices_for_it_is_made_again() -> None:
    cluster = Cluster(SHAPE, shards=2, epochs=1, slots=4, memory_bytes=400, prefetch_windows=0,
                      crosses_epochs=True, slices=4)  # fmt: skip
    for shard in (0, 1):
        cluster.open(shard, 2)
    for work in cluster.running:
        cluster.finish(work)
    for shard in (0, 1):
        assert cluster.step(shard)
    assert Drop(0, 0, slices=(0,)) in cluster.drops
    before = cluster.scheduler.window(0, 0)
    # shard 0 dies, and another reader starts where it started
    reader = cluster.readers[0]
    reader.slice, reader.fetched = 0, False
    cluster.handle(Opened(0, Place(0, 0), ShardAssignment(2, 2)))
    assert cluster.drops[-1] == Drop(0, 0, rebuild=True)
    again = cluster.scheduler.window(0, 0)
    assert before is not None
    assert again is not None
    assert (before.first_kept, again.first_kept) == (1, 0)
    assert cluster.read_all({0, 1}) < 40
    cluster.close_all()


def test_a_window_that_lacks_nothing_for_it_stays() -> None:
    cluster = Cluster(SHAPE, shards=2, epochs=1, slots=4, memory_bytes=400, prefetch_windows=0,
                      crosses_epochs=True, slices=4)  # fmt: skip
    for shard in (0, 1):
        cluster.open(shard, 2)
    for work in cluster.running:
        cluster.finish(work)
    assert cluster.step(0)
    cluster.readers[0].slice = 0
    cluster.handle(Opened(0, Place(0, 0), ShardAssignment(2, 2)))
    assert cluster.drops == []

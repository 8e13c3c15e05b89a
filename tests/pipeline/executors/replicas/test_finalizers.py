"""Finalizers of what replicas hold run in any thread, also in one that holds a lock: they wait for nobody."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import cast

import pyarrow as pa

from windrow.core.shared_batches import SharedBatch
from windrow.pipeline.delivery.wanted import EVERYTHING
from windrow.pipeline.executors.replicas.client import HostConnection, PlacedOutputs, _Progress
from windrow.pipeline.executors.replicas.host import ReplicaHost
from windrow.pipeline.executors.replicas.placed_runs import LentRuns
from windrow.pipeline.executors.replicas.replica_states import Reader
from windrow.pipeline.plan.cursor import Place

LIMIT_SECONDS = 20.0


class BusyHost:
    """The connection to a host whose lock is held until `free` is set."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.told: Future[Place] = Future()

    def acknowledge(self, place: Place) -> None:
        assert self.free.wait(LIMIT_SECONDS)
        self.told.set_result(place)


def test_a_collected_slice_does_not_wait_for_the_host() -> None:
    host = BusyHost()
    connection = cast(HostConnection, host)
    progress = _Progress(connection)
    dropped = progress.begin(Place(0, 0, slice=0))
    outputs = PlacedOutputs(connection, (0, 0), EVERYTHING, threading.Event(), dropped)
    progress.acknowledge(Place(0, 3))
    del outputs
    assert not host.told.done()
    host.free.set()
    assert host.told.result(LIMIT_SECONDS) == Place(0, 3)


def test_a_collected_run_does_not_wait_for_the_host() -> None:
    host = ReplicaHost(
        lambda _: NotImplemented,
        NotImplemented,
        NotImplemented,
        0,
        ["a"],
        limit_bytes=0,
        max_ahead=1,
        leads_on=lambda _: True,
    )
    with ThreadPoolExecutor(1) as pool, host._changed:
        pool.submit(host.released, Reader(0, 1), 0).result(LIMIT_SECONDS)


def test_a_run_is_kept_until_every_reader_has_released_it_as_often_as_it_maps_it() -> None:
    lent, readers = LentRuns(), [Reader(0, 1), Reader(1, 1)]
    placed = lent.make()
    placed.future.set_result(SharedBatch(pa.schema([]), 0, {}, None))
    for reader in (*readers, readers[0]):
        lent.lend(placed, reader)
    for reader in (*readers, readers[1]):
        # a second release is that of a reader that has ended
        lent.released(reader, placed.number)
        lent.collect_released()
        assert lent._runs
    # one that has returned everything may still be collected
    for _ in range(2):
        lent.released(readers[0], placed.number)
        lent.collect_released()
        assert not lent._runs

"""What a host tells the coordinator where its replicas go on from one epoch to the next, whichever comes first."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from itertools import pairwise, permutations
from typing import Any, cast

import pytest

from tests.end_to_end.reading import eventually
from windrow.pipeline.coordinator.requests import EpochFacts
from windrow.pipeline.delivery.wanted import EVERYTHING
from windrow.pipeline.executors.base import WindowData
from windrow.pipeline.executors.replicas.host import ReplicaHost
from windrow.pipeline.executors.replicas.replica_states import Opening, Reader
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.shard_assignment import ShardAssignment

BATCHING = Batching(1)
WINDOWS = 3


class Coordinator:
    """The client of a coordinator that has windows without rows; notes what it is told."""

    after = ()

    def __init__(self) -> None:
        self.told: list[Place | int] = []

    def want(self, wanted: Any) -> None:
        pass

    def begin_prefetch(self) -> None:
        pass

    def open_epoch(self, cursor: Cursor, batching: Batching) -> EpochFacts:
        self.told.append(cursor.epoch)
        return EpochFacts(cursor.epoch, 0, WINDOWS, ShardAssignment(1, 1), 1, WINDOWS)

    def open_next(self, cursor: Cursor, batching: Batching) -> Future[EpochFacts]:
        opened: Future[EpochFacts] = Future()
        opened.set_result(self.open_epoch(cursor, batching))
        return opened

    def window(self, epoch: int, window: int, stop: threading.Event) -> WindowData:
        return WindowData(layout=None, slices=[])

    def acknowledge(self, place: Place) -> None:
        self.told.append(place)

    def heartbeat(self, *_: Any, **__: Any) -> None:
        pass

    def close(self, _: Any) -> None:
        self.told.append(-1)


def open_epoch(host: ReplicaHost, reader: Reader, epoch: int) -> None:
    host.open_epoch(reader, Opening(Cursor(epoch), BATCHING, EVERYTHING), goes_on=epoch > 0)


@pytest.mark.parametrize("order", sorted({*permutations(["a opens", "a reads", "b opens", "b reads"])}))
def test_what_is_read_of_an_epoch_is_told_once_it_is_open(order: tuple[str, ...]) -> None:
    """A replica may have taken windows of an epoch ahead, and have said so, before it opens that epoch."""
    client = Coordinator()
    host = ReplicaHost(
        lambda _: cast(Any, client),
        NotImplemented,
        NotImplemented,
        0,
        ["a", "b"],
        limit_bytes=0,
        max_ahead=1,
        leads_on=lambda epoch: not epoch,
    )
    readers = {"a": host.connect(0), "b": host.connect(1)}
    for reader in readers.values():
        open_epoch(host, reader, 0)
    # all windows have been fetched, so that nothing but the replicas decides what is released
    assert eventually(lambda: host._fetching == Place(1, WINDOWS))
    for reader in readers.values():
        host.acknowledge(reader, Place(1, 0))
    for event in order:
        name, _, verb = event.partition(" ")
        if verb == "opens":
            open_epoch(host, readers[name], 1)
        else:
            host.acknowledge(readers[name], Place(1, 2))
    opened = client.told.index(1)
    assert client.told.count(1) == 1
    assert all(place <= Place(1, 0) for place in client.told[1:opened] if isinstance(place, Place))
    assert client.told[-1] == Place(1, 2)
    after = [place for place in client.told[opened:] if isinstance(place, Place)]
    assert all(one < other for one, other in pairwise(after))
    host._stop_fetching()


@pytest.mark.parametrize("is_ended", [False, True])
def test_the_client_is_closed_though_the_preparation_of_rows_raises(
    monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    client = Coordinator()
    host = ReplicaHost(
        lambda _: cast(Any, client),
        NotImplemented,
        NotImplemented,
        0,
        ["a"],
        limit_bytes=0,
        max_ahead=1,
        leads_on=lambda epoch: not epoch,
    )
    reader = host.connect(0)
    open_epoch(host, reader, 0)
    assert eventually(lambda: host._fetching == Place(1, WINDOWS))
    close = host._preparation.close

    def fail() -> None:
        close()
        raise RuntimeError("cannot be closed")

    monkeypatch.setattr(host._preparation, "close", fail)
    with pytest.raises(RuntimeError, match="cannot be closed"):
        host.end() if is_ended else host.close(reader, None)
    assert client.told[-1] == -1

"""How a shard on Ray fetches windows: what it releases, and objects that are lost, silent or late."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from ray.exceptions import (
    ObjectLostError,
)

from tests.laws.cases import Case
from tests.shuffle.tables import rows_of
from windrow.core.errors import PlanError, StallError
from windrow.pipeline.coordinator.requests import Ask
from windrow.pipeline.coordinator.scheduling.shard_tracker import Key
from windrow.pipeline.executors import window_fetch
from windrow.pipeline.executors.base import CoordinatorClient, Waiting, WindowData
from windrow.pipeline.executors.ray import client, coordinator_calls
from windrow.pipeline.executors.ray import fetch_thread as fetcher_module
from windrow.pipeline.executors.ray.executor import RayExecutor
from windrow.pipeline.executors.ray.fetch_thread import Fetcher
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.pipeline.plan.program import Program
from windrow.shuffle.kernels.map_output import MapOutput
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.epoch_plan import WindowCut

ONE_BLOCK = WindowCut(blocks_per_window=1)
WAIT_SECONDS = 30.0


@pytest.fixture
def shard_client(ray_local: Any) -> Iterator[CoordinatorClient]:
    case = Case((10,) * 6, ONE_BLOCK)
    program = Program(case.job("ray"), 1, False, (0,))
    shard_client = RayExecutor().session(program, None).shard_client(0, 5, program.job.seed)
    yield shard_client
    shard_client.close()


def contents(data: WindowData | None) -> list[Any]:
    assert data is not None
    slices = [[each for each in of_slice if isinstance(each, MapOutput)] for of_slice in data.slices]
    return [[rows_of(map_output).to_pydict() for map_output in of_slice] for of_slice in slices]


def fetcher_of(shard_client: CoordinatorClient) -> Fetcher:
    return cast("Fetcher", cast("Any", shard_client)._fetcher)


@pytest.mark.nightly
def test_evicted_windows_return_and_nothing_is_fetched_meanwhile(
    shard_client: CoordinatorClient,
) -> None:
    stop = threading.Event()
    shard_client.open_epoch(Cursor(), Batching(5))
    first = contents(shard_client.window(0, 0, stop))
    fetcher = fetcher_of(shard_client)
    with fetcher._changed:
        assert fetcher._changed.wait_for(lambda: fetcher._ahead.next() is None, WAIT_SECONDS)
        under_way = fetcher._ahead.fetched[0, 1]
    assert (0, 0) not in fetcher._ahead.fetched, "what is being consumed is not fetched again"
    stopped = threading.Event()
    stopped.set()
    shard_client.release(stopped)
    assert fetcher._ahead.fetched, "a stopped prefetch loop releases no window that another one fetches"
    shard_client.release(stop)
    fetcher._store((0, 1), under_way)
    assert fetcher._ahead.fetched == {}
    assert fetcher._ahead.next() is None
    assert contents(shard_client.window(0, 0, stop)) == first
    shard_client.acknowledge(Place(0, 1))
    assert contents(shard_client.window(0, 1, stop)) != first


def test_stopped_client_takes_nothing(shard_client: CoordinatorClient) -> None:
    shard_client.open_epoch(Cursor(), Batching(5))
    stopped = threading.Event()
    stopped.set()
    assert shard_client.window(0, 1, stopped) is None
    assert fetcher_of(shard_client)._ahead._requested is None


@pytest.mark.nightly
def test_client_closed_while_opening_an_epoch_fetches_nothing(
    shard_client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close_meanwhile(ref: Any, who: str, waiting: Waiting) -> Any:
        answer = coordinator_calls.await_answer(ref, who, waiting)
        shard_client.close()
        return answer

    monkeypatch.setattr(client, "await_answer", close_meanwhile)
    with pytest.raises(PlanError, match="shard 0 was closed while epoch 0 was being opened"):
        shard_client.open_epoch(Cursor(), Batching(5))
    assert fetcher_of(shard_client) is None


def test_the_place_of_a_fetcher_never_goes_back(shard_client: CoordinatorClient) -> None:
    shard_client.open_epoch(Cursor(), Batching(5))
    for window in (3, 1):
        shard_client.acknowledge(Place(0, window))
    assert fetcher_of(shard_client)._ahead.place == Place(0, 3)


def test_objects_that_stay_lost_end_in_an_error(
    shard_client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(self: Fetcher, reply: Any, *arguments: Any) -> Any:
        raise ObjectLostError("ab" * 28, "", "")

    monkeypatch.setattr(Fetcher, "_load", lose)
    monkeypatch.setattr(window_fetch, "_MAX_PAUSE_SECONDS", 0.001)
    shard_client.open_epoch(Cursor(), Batching(5))
    with pytest.raises(StallError, match=r"shard 0: map outputs of epoch 0, window 0 were lost 30 times"):
        shard_client.window(0, 0, threading.Event())


@pytest.mark.parametrize("call", [pytest.param("wait", marks=pytest.mark.nightly), "get"])
def test_silent_objects_are_requested_again(
    shard_client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """Ray can fail to notify one of two threads of a process that an object is local."""
    deaf = threading.Event()
    heard = getattr(ray, call)

    def forget(refs: Any, **options: Any) -> Any:
        if (
            deaf.is_set()
            and isinstance(refs, list)
            and threading.current_thread().name.startswith("windrow-fetch")
        ):
            assert options.get("timeout") is not None, "this would wait forever"
            if call == "wait":
                time.sleep(0.1)
                return [], refs
            raise ray.exceptions.GetTimeoutError("not heard of")
        return heard(refs, **options)

    asked: list[str] = []
    replies: list[weakref.ref[Any]] = []
    patience: list[float] = []
    poll, load = Fetcher._poll, Fetcher._load

    def note_ask(self: Fetcher, key: Key, ask: Ask) -> Any:
        # releasing a reply would cancel transfers
        assert all(reply() is not None for reply in replies)
        asked.append(ask.attempt)
        if len(asked) > 3:
            deaf.clear()
        return poll(self, key, ask)

    def note_load(self: Fetcher, reply: Any, patience_seconds: float, wanted: Any) -> Any:
        replies.append(weakref.ref(reply))
        patience.append(patience_seconds)
        return load(self, reply, patience_seconds, wanted)

    monkeypatch.setattr(window_fetch, "_LOAD_TIMEOUT_SECONDS", 0.2)
    monkeypatch.setattr(window_fetch, "_MAX_LOAD_TIMEOUT_SECONDS", 0.5)
    monkeypatch.setattr(Fetcher, "_poll", note_ask)
    monkeypatch.setattr(Fetcher, "_load", note_load)
    monkeypatch.setattr(ray, call, forget)
    deaf.set()
    shard_client.open_epoch(Cursor(), Batching(5))
    data = shard_client.window(0, 0, threading.Event())
    assert data is not None
    assert asked[:4] == [""] * 4
    assert patience[:4] == [0.2, 0.4, 0.5, 0.5]


def test_objects_that_arrive_one_by_one_are_waited_for(
    shard_client: CoordinatorClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard_client.open_epoch(Cursor(), Batching(5))
    me, waits, clock = threading.current_thread(), count(), count()
    wait = ray.wait

    def dawdle(refs: Any, **options: Any) -> Any:
        if threading.current_thread() is not me:
            return wait(refs, **options)
        ready = next(waits) % 2
        return refs[:ready], refs[ready:]

    monkeypatch.setattr(ray, "wait", dawdle)
    monkeypatch.setattr(fetcher_module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    refs = [ray.put(number) for number in range(9)]
    assert fetcher_of(shard_client)._get(refs, 4.0) == dict(zip(refs, range(9), strict=True))

"""When a shard on Ray acknowledges windows to the coordinator: with its next poll, or with a separate call."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from windrow.core.errors import PlanError
from windrow.pipeline.coordinator.requests import EpochFacts, OpenRequest, WindowReply
from windrow.pipeline.delivery.wanted import EVERYTHING
from windrow.pipeline.executors.ray import fetch_thread as module
from windrow.pipeline.executors.ray.coordinator_calls import PendingCalls
from windrow.pipeline.executors.ray.fetch_thread import Fetcher
from windrow.pipeline.executors.ray.narrowed_objects import Narrower
from windrow.pipeline.plan.cursor import Cursor, Place
from windrow.shuffle.order.batching import Batching
from windrow.shuffle.order.shard_assignment import ShardAssignment

WAIT_SECONDS = 10.0
WINDOWS = 6
NEVER = threading.Event()


class Coordinator:
    """Records acknowledgements; answers for windows before the first that it lacks, and never for that one."""

    def __init__(self, lacks: int) -> None:
        self.lacks = lacks
        self.broken = threading.Event()
        self.told: list[Place] = []
        self.asked: list[tuple[int, Place]] = []
        self.poll, self.acknowledge = _Method(self._poll), _Method(self._acknowledged)

    def answer(self, ref: Any, who: str, stopped: threading.Event) -> Any:
        """What `await_answer_until` waits for."""
        while ref is None and not stopped.wait(0.01):
            if self.broken.is_set():
                raise ValueError("no window comes any more")
        return ref

    def _poll(self, request: OpenRequest, place: Place, key: tuple[int, int], *_: Any) -> Any:
        self.asked.append((key[1], place))
        return None if key[1] >= self.lacks else ("a-0", WindowReply(0, 0, None, {}))

    def _acknowledged(self, shard: int, token: str, place: Place) -> None:
        self.told.append(place)


class _Method:
    def __init__(self, call: Callable[..., Any]) -> None:
        self.remote = call


def begin(monkeypatch: pytest.MonkeyPatch, *, spare: int, lacks: int) -> tuple[Fetcher, Coordinator]:
    coordinator = Coordinator(lacks)
    monkeypatch.setattr(module, "await_answer_until", coordinator.answer)
    monkeypatch.setattr(module, "notify", lambda method, *args: method.remote(*args))
    request = OpenRequest(0, "node", "token", 0, Cursor(), Batching(4), False, 7)
    facts = EpochFacts(0, 0, WINDOWS, ShardAssignment(1, 4, False, False), 4, None, extra_windows=spare)
    fetcher = Fetcher(
        coordinator,
        request,
        facts,
        PendingCalls(),
        shard=0,
        leads_on=False,
        wanted=EVERYTHING,
        narrower=Narrower(coordinator),
    )
    return fetcher, coordinator


def wait_until(found: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_SECONDS
    while not found():
        assert time.monotonic() < deadline, "it has not come to that in time"
        time.sleep(0.01)


def test_next_request_acknowledges_a_window_with_spare_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher, coordinator = begin(monkeypatch, spare=2, lacks=WINDOWS)
    assert fetcher.take((0, 0), NEVER) is not None
    wait_until(lambda: coordinator.asked[-1][0] == 2)
    fetcher.acknowledge(Place(0, 1))
    wait_until(lambda: coordinator.asked[-1] == (3, Place(0, 1)))
    assert coordinator.told == []
    fetcher.stop()


def test_each_window_is_acknowledged_at_once_without_spare_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    fetcher, coordinator = begin(monkeypatch, spare=0, lacks=WINDOWS)
    for window in range(WINDOWS):
        assert fetcher.take((0, window), NEVER) is not None
        fetcher.acknowledge(Place(0, window + 1))
    assert coordinator.told == [Place(0, window + 1) for window in range(WINDOWS)]
    fetcher.stop()


@pytest.mark.parametrize("end", ["waits", "releases", "fails"])
def test_waits_releases_and_failures_send_pending_acknowledgements(
    monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    fetcher, coordinator = begin(monkeypatch, spare=2, lacks=1)
    assert fetcher.take((0, 0), NEVER) is not None
    wait_until(lambda: coordinator.asked[-1][0] == 1)
    fetcher.acknowledge(Place(0, 1))
    assert coordinator.told == [], "a question is under way, and another will follow"
    if end == "waits":
        stop = threading.Event()
        waiting = threading.Thread(target=fetcher.take, args=((0, 1), stop), daemon=True)
        waiting.start()
        wait_until(lambda: coordinator.told == [Place(0, 1)])
        stop.set()
        fetcher.stop()
        waiting.join(WAIT_SECONDS)
        assert not waiting.is_alive()
    elif end == "releases":
        fetcher.release(NEVER)
        assert coordinator.told == [Place(0, 1)]
    else:
        coordinator.broken.set()
        wait_until(lambda: coordinator.told == [Place(0, 1)])
        fetcher.acknowledge(Place(0, 2))
        assert coordinator.told == [Place(0, 1), Place(0, 2)]
    fetcher.stop()


def test_an_error_of_sequences_is_raised_where_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise PlanError("cannot be cut")

    monkeypatch.setattr(Fetcher, "_load", refuse)
    fetcher, _ = begin(monkeypatch, spare=0, lacks=WINDOWS)
    with pytest.raises(PlanError, match="cannot be cut"):
        fetcher.take((0, 0), NEVER)
    fetcher.stop()
